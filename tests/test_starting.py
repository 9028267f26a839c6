"""Where threads cannot be started, there are fewer of them, or one clear sentence; never an endless wait."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brand import BrandDataset, BrandLoader, DecodeImage
from brand.errors import NoThreadError
from brand.starting import ThreadPool, not_started, why_no_thread
from brand.storage.io.crew import Crew
from tests.sandbox import environment, without
from tests.support import LIMIT_S

ENGINE = "the container's filter refuses the system call clone3, as those of Docker before 20.10.10 do"


def let_start(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """From now on, this many threads start in this process; for each later one Python says what it says at a limit."""
    start, left = threading.Thread.start, [None] * count

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)


def without_threads() -> tuple[str, ...]:
    """The start of a command that can start no thread. Skips the test if older C libraries do without clone3."""
    command, probe = without(clone3="EPERM"), "import threading; threading.Thread(target=int).start()"
    run = [*command, sys.executable, "-c", probe]
    if not subprocess.run(run, env=environment(), capture_output=True, check=False).returncode:
        pytest.skip("the C library starts threads without clone3")
    return command


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_pool_works_with_the_threads_that_start(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """All tasks are done; a `ThreadPoolExecutor` raises for some that it does later all the same."""
    let_start(monkeypatch, count)
    with ThreadPool(4) as pool:
        assert sorted(future.result(LIMIT_S) for future in [pool.submit(abs, -n) for n in range(50)]) == list(range(50))
    let_start(monkeypatch, 0)
    with ThreadPoolExecutor(4) as pool, pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(abs, 1)


def test_a_pool_of_no_thread_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and the next step; other errors are not taken for it."""
    let_start(monkeypatch, 0)
    with ThreadPool(4) as pool, pytest.raises(NoThreadError, match=r"no more threads .* raise the limit .*pids\.max"):
        pool.submit(abs, 1)
    assert why_no_thread()
    assert not_started(BlockingIOError(11, "Resource temporarily unavailable"))  # of fork
    assert not_started(RuntimeError("dictionary changed size")) == not_started(FileNotFoundError(2, "")) == ""


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_crew_copies_in_its_own_thread(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Each part once, and nothing after `each` has returned: the caller may release the memory then."""
    let_start(monkeypatch, count)
    crew, done = Crew(4), []
    for _ in range(3):
        parts = [slice(n, n + 1) for n in range(4)]
        assert crew.each(lambda number, part: done.append(number) or part, parts) == parts  # type: ignore[func-returns-value]
    assert sorted(done) == sorted(3 * list(range(4)))


@pytest.mark.slow
def test_an_epoch_with_few_threads(photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the limit is: the same batches, or an error that says what helps."""

    def epoch() -> list[list[int]]:
        decode = {"image": DecodeImage(size=(8, 8))}
        ds = BrandDataset(photos_set, fields=("image", "index"), decode=decode, memory=0.5, server="none")
        return [indices.tolist() for _, indices in BrandLoader(ds, 4, num_workers=3)]

    wanted, trained = epoch(), []
    for count in range(12):
        with monkeypatch.context() as limited:
            let_start(limited, count)
            try:
                assert epoch() == wanted
                trained.append(count)
            except NoThreadError as error:
                assert "raise the limit" in str(error)  # noqa: PT017 - either is right
    assert trained
    assert trained == list(range(trained[0], 12))


def test_a_command_whose_container_refuses_threads() -> None:
    """One line instead of the output of libraries that end the process while they are loaded."""
    run = [*without_threads(), sys.executable, "-m", "brand", "doctor"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert ENGINE in done.stderr


@pytest.mark.slow
def test_a_server_that_can_start_no_thread(photos_set: Path) -> None:
    """Its client says why; the training is told that in its own error."""
    code = """
import sys
from brand import BrandDataset
from brand.errors import ServerError
try:
    BrandDataset(sys.argv[1], fields=("label",), memory=0.5).__getitems__([1, 2])
    from torch.utils.data import DataLoader
    from brand import BrandSampler
    ds = BrandDataset(sys.argv[1], fields=("label",), memory=0.5)
    list(DataLoader(ds, 4, sampler=BrandSampler(ds)))
except ServerError as error:
    print(error)
"""
    run = [*without_threads(), sys.executable, "-c", code, str(photos_set)]
    variables = environment() | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=variables)
    assert ENGINE in done.stdout, done.stderr
    assert "Traceback" not in done.stderr
