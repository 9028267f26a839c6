"""`BrandLoader(worker_type="process")` makes the batches of `worker_type="thread"`, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import SequentialSampler, default_collate, get_worker_info

from brand import pack
from brand.errors import ChecksumError, UsageError, WorkerDiedError
from brand.formats.crops import RandomResizedCrop
from brand.formats.preparation import DecodeImage
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler
from brand.torch.loader import processes
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, descriptors, session_processes, wait_until
from tests.torch.support import equal, indices_of, loader_threads, make_samples, make_set, served
from tests.torch.test_loader_faults import damage

pytestmark = pytest.mark.slow
COUNT, BATCH = 100, 8
SIDE = 8
Numbers = tuple[int, ...]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A hundred samples."""
    path = make_set(tmp_path_factory.mktemp("sets") / "set", make_samples(COUNT, 50), 16)
    with running_server(path, memory=0.5) as running:
        yield running


def opened(server: RunningServer, transform: Any = None, fields: tuple[str, ...] | None = ("index",)) -> BrandDataset:
    return BrandDataset(server.path, fields=fields, transform=transform, server=server.address)


def in_processes(data_set: Any, *args: Any, context: str = "fork", **more: Any) -> BrandLoader:
    """A loader with two processes."""
    options: dict[str, Any] = {"num_workers": 2, "worker_type": "process", "multiprocessing_context": context} | more
    return BrandLoader(data_set, *args, **options)


class Remembers:
    """Has generators of its own, and stores the window of a sample in itself: its image and its mask must have it."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)
        self.window = 0

    def __call__(self, sample: tuple[int]) -> tuple[int, torch.Tensor, torch.Tensor, float, torch.Tensor]:
        self.window = int(self.generator.integers(0, SIDE))
        image = torch.arange(SIDE * 2) + sample[0]
        image, mask = self.crop(image), self.crop(image)
        return sample[0], image, mask, float(self.generator.random()), torch.rand(2, dtype=torch.float64)

    def crop(self, values: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0005)
        return values[self.window : self.window + SIDE]


def mixed(samples: list[Any]) -> Any:
    """A collate function with random numbers."""
    return [*default_collate(samples), torch.rand(3)]


# -- the same batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_values_order_and_seeds_are_those_of_threads(server: RunningServer, context: str) -> None:
    """In two epochs, with a transform and a collate function that have random numbers."""
    data_set = opened(server, Remembers())
    loaders = [
        BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, seed=3), num_workers=2, collate_fn=mixed),
        in_processes(data_set, BATCH, sampler=BrandSampler(data_set, seed=3), collate_fn=mixed, context=context),
    ]
    for _ in range(2):
        threads, found = (list(loader) for loader in loaders)
        assert equal(threads, found)
        assert sorted(indices_of(found)) == list(range(COUNT))
    assert multiprocessing.active_children() == []
    if context == "spawn":
        return
    assert loader_threads("brand-worker") == []


def plain(sample: Any) -> Any:
    return sample


SOURCES: dict[str, Callable[[RunningServer], tuple[Any, dict[str, Any]]]] = {
    "columns": lambda s: (opened(s, None, None), {"batch_size": BATCH}),
    "dicts": lambda s: (opened(s, plain, None), {"batch_size": BATCH, "drop_last": True}),
    "by index": lambda s: (opened(s, Remembers()), {"batch_size": 7, "sampler": SequentialSampler(range(COUNT))}),
    "not shuffled": lambda s: (opened(s, Remembers()), {"batch_size": 7, "shuffle": False}),
    "pinned": lambda s: (opened(s, Remembers()), {"batch_size": BATCH, "pin_memory": True}),
    "lists": lambda s: (opened(s, plain, ("key", "data")), {"batch_size": 3, "collate_fn": plain}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_forms_of_batches(server: RunningServer, name: str) -> None:
    data_set, options = SOURCES[name](server)
    torch.manual_seed(1)
    assert equal(list(BrandLoader(data_set, **options)), list(in_processes(data_set, **options)))


def uneven(data_set: BrandDataset, rank: int) -> dict[str, Any]:
    return {"sampler": BrandSampler(data_set, num_replicas=3, rank=rank, even=False), "batch_size": BATCH}


@pytest.mark.parametrize("rank", range(3))
def test_ranks_with_different_numbers_of_samples(server: RunningServer, rank: int) -> None:
    data_set = opened(server, Remembers())
    threads = list(BrandLoader(data_set, **uneven(data_set, rank)))
    assert equal(threads, list(in_processes(data_set, **uneven(data_set, rank))))


def test_weights(server: RunningServer) -> None:
    data_set = opened(server, Remembers())
    weights = np.arange(COUNT) % 4
    threads, found = (
        list(make(data_set, BATCH, sampler=BrandSampler(data_set, weights=weights, seed=2)))
        for make in (BrandLoader, in_processes)
    )
    assert equal(threads, found)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of 1 to 12 tokens."""
    samples = [{"tokens": np.arange(100 * i, 100 * i + i % 12 + 1, dtype=np.int32), "n": i} for i in range(60)]
    target = tmp_path_factory.mktemp("sets") / "documents.brand"
    pack(samples, target, {"tokens": "ndarray", "n": "int"}, chunk_size=8, jobs=1)
    return target


def first_token(sample: Any) -> tuple[int, int]:
    return sample["index"], int(sample["tokens"][0])


@pytest.mark.parametrize("plan", ["by length", "packed"])
def test_batch_samplers(documents: Path, plan: str) -> None:
    """With their states in each batch."""
    lengths = [i % 12 + 1 for i in range(60)]
    transform = first_token if plan == "by length" else None
    with served(documents, fields=None, transform=transform) as data_set:

        def options() -> dict[str, Any]:
            if plan == "by length":
                return {"batch_sampler": LengthBatchSampler(data_set, lengths, batch_size=4)}
            sampler = PackedBatchSampler(data_set, lengths, tokens_per_row=16, rows_per_batch=3)
            return {"batch_sampler": sampler, "collate_fn": sampler.collate("tokens")}

        one, other = BrandLoader(data_set, **options()), in_processes(data_set, **options())
        for expected, found in zip(one, other, strict=True):
            assert equal(expected, found)
            assert one.state_dict() == other.state_dict()


def test_a_mixture(server: RunningServer, documents: Path) -> None:
    """Its members begin new epochs within an epoch of the mixture, in any process."""
    with running_server(documents, memory=0.5) as second:
        members = [
            BrandDataset(s.path, fields=("index",), transform=Remembers(), server=s.address) for s in (server, second)
        ]
        mixture = Mixture({members[0]: 0.25, members[1]: 0.75}, seed=1)
        one, other = BrandLoader(mixture, BATCH), in_processes(mixture, BATCH)
        for _ in range(2):
            for expected, found in zip(one, other, strict=True):
                assert equal(expected, found)
                assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("how", [DecodeImage(size=(8, 8)), DecodeImage(crop=RandomResizedCrop(8), flip=0.5)], ids=str)
def test_images_decoded_into_a_batch(photos_set: Path, how: DecodeImage) -> None:
    with served(photos_set, fields=("index", "image"), decode={"image": how}) as data_set:
        assert equal(list(BrandLoader(data_set, 4)), list(in_processes(data_set, 4)))


def test_an_automatic_number_of_processes(server: RunningServer) -> None:
    data_set = opened(server, Remembers())
    loader = in_processes(data_set, 2, num_workers="auto")
    for _ in range(3):
        assert sorted(indices_of(loader)) == list(range(COUNT))
    assert 1 <= loader.stats()["threads"] <= loader.num_workers


# -- states ----------------------------------------------------------------------------------------------------------


def test_a_state_after_each_batch(server: RunningServer) -> None:
    """It is that of threads, and another loader continues from it, with processes or with threads."""
    data_set = opened(server, Remembers())

    def loader(make: Any) -> Any:
        return make(data_set, BATCH, sampler=BrandSampler(data_set, seed=5))

    whole, states = list(loader(BrandLoader)), []
    running, threads = loader(in_processes), loader(BrandLoader)
    for _ in zip(running, threads, strict=True):
        assert running.state_dict() == threads.state_dict()
        states.append(running.state_dict())
    for done, state in enumerate(states[:-1], 1):
        resumed = loader(in_processes if done % 3 else BrandLoader)
        resumed.load_state_dict(state)
        assert equal(list(resumed), whole[done:])


def test_an_epoch_may_be_left_early(server: RunningServer) -> None:
    """By `break`: the processes end, and the next iteration is the next epoch, and whole."""
    data_set = opened(server, Remembers())
    loader = in_processes(data_set, BATCH)
    before = descriptors()
    for epoch in range(3):
        for _ in loader:
            break
        assert multiprocessing.active_children() == []
        assert loader_threads("brand-draw") == []
        assert loader.state_dict()["epoch"] == epoch
    assert sorted(indices_of(loader)) == list(range(COUNT))
    wait_until(lambda: not loader_threads("brand-worker"), "threads end")
    assert {name for _, name in descriptors() - before if "memfd" in name} == set()


class Sleeps:
    """Takes very long for most samples."""

    def __init__(self, seconds: float, first: int) -> None:
        self.seconds, self.first = seconds, first

    def __call__(self, sample: tuple[int]) -> tuple[int]:
        if sample[0] >= self.first:
            time.sleep(self.seconds)
        return sample


def test_a_process_that_does_not_end_is_killed(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch takes an hour: the end of the iteration does not wait for it."""
    monkeypatch.setattr(processes, "END_LIMIT_S", 0.1)
    loader = in_processes(opened(server, Sleeps(3600, BATCH)), BATCH, shuffle=False)
    start_s = time.monotonic()
    next(iter(loader))
    assert multiprocessing.active_children() == []
    assert time.monotonic() - start_s < LIMIT_S / 2


# -- transforms ------------------------------------------------------------------------------------------------------


def test_an_image_and_its_mask_have_the_same_random_window(server: RunningServer) -> None:
    """In three epochs; other windows in each."""
    loader, windows = in_processes(opened(server, Remembers()), BATCH), []
    for _ in range(3):
        batches = list(loader)
        assert all(torch.equal(image, mask) for _, image, mask, *_ in batches)
        windows.append(
            {int(i): int(image[0] - i) for index, images, *_ in batches for i, image in zip(index, images, strict=True)}
        )
    assert windows[0] != windows[1] != windows[2]


CHANGED = [0]


def changes_a_global(sample: tuple[int]) -> tuple[int, int]:
    CHANGED[0] = sample[0]
    time.sleep(0.0005)
    return sample[0], CHANGED[0]


def test_a_global_variable_is_a_copy(server: RunningServer) -> None:
    for indices, stored in in_processes(opened(server, changes_a_global), BATCH):
        assert torch.equal(indices, stored)
    assert CHANGED == [0]


def rolls(sample: tuple[int]) -> tuple[int, float, float, float]:
    return sample[0], random.random(), np.random.rand(), torch.rand(()).item()


def test_random_functions_of_python_and_numpy_have_the_seed_of_a_sample(server: RunningServer) -> None:
    """The same numbers in one process and in two, others for each sample; the training's numbers do not change."""
    data_set = opened(server, rolls)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    (one, other), found = (in_processes(data_set, BATCH, num_workers=n) for n in (1, 2)), list[float]()
    for first, second in zip(one, other, strict=True):
        assert equal(first, second)
        found += [value for column in first[1:] for value in column.tolist()]
    assert len(set(found)) == 3 * COUNT
    assert random.random() == expected


def where(sample: tuple[int]) -> tuple[int, int, int, bool]:
    return sample[0], os.getpid(), torch.get_num_threads(), get_worker_info() is None


def test_all_processes_work_and_the_training_does_not(server: RunningServer) -> None:
    _, workers, threads, unknown = zip(*in_processes(opened(server, where), 1), strict=True)
    numbers = {int(process) for process in workers}
    assert len(numbers) == 2
    assert os.getpid() not in numbers
    assert {int(each) for each in threads} == {1}
    assert all(unknown)  # PyTorch would put batches into files in /dev/shm


def test_a_slow_transform_is_seen_as_the_slowest_stage(server: RunningServer) -> None:
    loader = in_processes(opened(server, Sleeps(0.002, 0)), BATCH)
    assert len(list(loader)) == -(-COUNT // BATCH)
    stats = loader.stats()
    assert stats["slowest"] == "decode"
    assert stats["decode_s"] > 0.002 * COUNT
    assert loader.stages.totals()["decoded"] == COUNT
    assert stats["waits"]["cause"] == "decode"


def test_a_trace(server: RunningServer, tmp_path: Path) -> None:
    """It has the work of each process."""
    loader = in_processes(opened(server, plain), BATCH)
    loader.trace(tmp_path / "trace.json")
    list(loader)
    loader.trace(None)
    said = (tmp_path / "trace.json").read_text()
    assert "process 0" in said
    assert '"decode"' in said


# -- errors ----------------------------------------------------------------------------------------------------------


class Fails:
    """Fails in one sample, with any error."""

    def __init__(self, fail: Callable[[], Any], at: int = 3 * BATCH + 1) -> None:
        self.fail, self.at = fail, at

    def __call__(self, sample: tuple[int]) -> Any:
        return self.fail() if sample[0] == self.at else sample


def until_it_fails(loader: BrandLoader) -> tuple[list[int], BaseException]:
    """The indices before the error, and the error."""
    found: list[int] = []
    try:
        for batch in loader:
            found += indices_of([batch])
    except BaseException as error:  # noqa: BLE001 - whatever it is, a test looks at it
        return found, error
    raise AssertionError("nothing failed")


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("mine"), ValueError), (SystemExit(3), SystemExit), (Odd(1, 2), RuntimeError)],
    ids=repr,
)
def test_an_error_in_a_transform(server: RunningServer, error: BaseException, kind: type[BaseException]) -> None:
    """Raised where its batch is due, with the sample and the traceback in the process."""
    loader = in_processes(opened(server, Fails(raises(error))), BATCH, shuffle=False)
    found, raised = until_it_fails(loader)
    assert found == list(range(3 * BATCH))
    assert type(raised) is kind
    assert str(error) in str(raised)
    notes = "\n".join(raised.__notes__)
    assert "in brand-worker-" in notes
    assert "test_processes.py" in notes
    if isinstance(error, Exception):
        assert f"in the transform of sample {3 * BATCH + 1} of" in notes
    assert multiprocessing.active_children() == []
    assert loader.state_dict()["position"] == 3 * BATCH


@pytest.mark.parametrize("make", [BrandLoader, in_processes])
def test_a_damaged_sample(tmp_path: Path, make: Any) -> None:
    """It is named, and fails its own batch, as in threads."""
    path = make_set(tmp_path / "set", make_samples(COUNT, 50), 16)
    damage(path, 3 * BATCH + 2)
    with served(path) as data_set:
        found, error = until_it_fails(make(data_set, BATCH, shuffle=False))
    assert isinstance(error, ChecksumError)
    assert error.sample == 3 * BATCH + 2
    assert found == list(range(3 * BATCH))


def kill_myself(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_a_process_that_is_killed(server: RunningServer, number: signal.Signals) -> None:
    """Batches before its own arrive; then the error names the process and the signal; the next iteration is whole."""
    transform = Fails(kill_myself(number))
    data_set = opened(server, transform)
    loader = in_processes(data_set, BATCH, shuffle=False)
    found, error = until_it_fails(loader)
    assert found == list(range(3 * BATCH))
    assert isinstance(error, WorkerDiedError)
    assert isinstance(error, RuntimeError)
    assert f"was killed by {number.name}" in str(error)
    assert "worker process" in str(error)
    assert multiprocessing.active_children() == []
    transform.at = -1
    loader.set_epoch(1)
    assert sorted(indices_of(loader)) == list(range(COUNT))


def test_all_processes_are_killed_while_they_wait(server: RunningServer) -> None:
    """The loop has all batches that were made."""
    loader = in_processes(opened(server, plain), BATCH, prefetch_batches=2)
    batches = iter(loader)
    next(batches)
    time.sleep(0.3)
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        list(batches)


@rounds(10)
def test_a_process_is_killed_at_any_moment(server: RunningServer, chance: Chance) -> None:
    """The loop gets an error or all batches, and another loader continues from the state, in the same order."""
    data_set = opened(server, Sleeps(0.0005, 0))
    order = indices_of(BrandLoader(data_set, BATCH))
    loader, found, moment_s = in_processes(data_set, BATCH), list[int](), chance.rng.uniform(0, 0.15)

    def kill() -> None:
        running = multiprocessing.active_children()
        for process in chance.rng.sample(running, k=min(1, len(running))):
            process.kill()

    timer = threading.Timer(moment_s, kill)
    timer.start()
    with suppress(WorkerDiedError):
        for batch in loader:
            found += indices_of([batch])
    timer.join()
    assert found == order[: len(found)]
    assert multiprocessing.active_children() == []
    if len(found) < COUNT:
        resumed = in_processes(data_set, BATCH)
        resumed.load_state_dict(loader.state_dict())
        assert found + indices_of(resumed) == order


def test_a_process_that_exits(server: RunningServer) -> None:
    loader = in_processes(opened(server, Fails(lambda: os._exit(3))), BATCH, shuffle=False)
    _, error = until_it_fails(loader)
    assert isinstance(error, WorkerDiedError)
    assert "ended with exit code 3" in str(error)


def test_a_batch_that_cannot_be_sent(server: RunningServer) -> None:
    loader = in_processes(opened(server, plain), BATCH, collate_fn=lambda _: threading.Lock())
    with pytest.raises(UsageError, match=r"cannot be sent from a worker process: .*pickle"):
        next(iter(loader))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_transform_that_cannot_be_pickled(server: RunningServer, context: str) -> None:
    loader = in_processes(opened(server, lambda sample: sample), BATCH, context=context)
    with pytest.raises(
        UsageError, match=f"(?s)cannot be sent.*started by {context}.*functions and classes of a module"
    ):
        next(iter(loader))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"worker_type": "processes"}, "'thread' or 'process'"),
        ({"multiprocessing_context": "fork"}, "leave it out, or give worker_type='process'"),
        ({"worker_type": "process", "multiprocessing_context": "thread"}, "'fork', 'spawn', 'forkserver'"),
        ({"worker_type": "process", "num_workers": 0}, "num_workers=1"),
    ],
)
def test_arguments_that_cannot_work(server: RunningServer, options: dict[str, Any], cure: str) -> None:
    with pytest.raises(UsageError, match=cure):
        BrandLoader(opened(server), **options)


def test_a_daemon_process_cannot_start_processes(server: RunningServer) -> None:
    """Such as a worker of a DataLoader."""
    data_set = opened(server)

    def iterate(said: Any) -> None:
        try:
            next(iter(in_processes(data_set, BATCH)))
        except UsageError as error:
            said.put(str(error))

    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()
    process = fork.Process(target=iterate, args=(said,), daemon=True)
    process.start()
    process.join(LIMIT_S)
    assert 'worker_type="thread"' in said.get()


def test_a_server_that_is_killed_in_mid_epoch(server: RunningServer) -> None:
    """Another one starts; nothing is lost or arrives twice."""
    data_set, found, killed = BrandDataset(server.path, fields=("index",), memory=0.3, transform=plain), list[int](), 0
    try:
        for number, batch in enumerate(in_processes(data_set, 4, prefetch_batches=2)):
            found += indices_of([batch])
            if number == 5:
                os.kill(killed := data_set.stats()["process"], signal.SIGKILL)
        assert sorted(found) == list(range(COUNT))
        assert data_set.stats()["process"] != killed
    finally:
        with suppress(ProcessLookupError):
            os.kill(data_set.stats()["process"], signal.SIGKILL)


def test_loaders_in_several_threads(server: RunningServer) -> None:
    """Each starts processes while others do."""

    def train(seed: int) -> list[int]:
        data_set = opened(server, plain)
        return sorted(indices_of(in_processes(data_set, BATCH, sampler=BrandSampler(data_set, seed=seed))))

    with ThreadPool(3) as pool:
        assert pool.map_async(train, range(3)).get(LIMIT_S) == [list(range(COUNT))] * 3


# -- lost trainings --------------------------------------------------------------------------------------------------

TRAINING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from brand.torch import BrandDataset, BrandLoader

def slowly(sample):
    time.sleep(0.01 if sample[0] < 40 else 30)
    return sample

if __name__ == "__main__":
    data_set = BrandDataset(sys.argv[1], fields=("index", "data"), memory=0.3, transform=slowly)
    loader = BrandLoader(
        data_set, 8, shuffle=False, num_workers=2, worker_type="process", multiprocessing_context=sys.argv[2],
        collate_fn=list,
    )
    for number, batch in enumerate(loader):
        if number == 4:
            print("begun", flush=True)  # the processes are at work for 30 s
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return path


def train(program: Path, server: RunningServer, context: str, left: Leftovers) -> subprocess.Popen[bytes]:
    """Start a training, and wait until its processes work."""
    process = subprocess.Popen(
        [sys.executable, str(program), str(server.path), context],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | left.environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    left.sessions.add(process.pid)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n", process.communicate()[1].decode()
    left.note_sockets()
    return process


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_training_that_is_killed_leaves_nothing(
    program: Path, server: RunningServer, context: str, left: Leftovers
) -> None:
    """No process, no socket, nothing in `/dev/shm`, and no file in `TMPDIR`: its processes end within seconds."""
    process = train(program, server, context, left)
    assert len(session_processes(process.pid)) >= 3
    process.kill()
    process.communicate()
    left.check()
    assert [path.name for path in left.folder.iterdir() if context != "forkserver"] == []


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_ctrl_c_ends_everything(program: Path, server: RunningServer, context: str, left: Leftovers) -> None:
    """To all processes of the terminal; the training says KeyboardInterrupt, and nothing else."""
    process = train(program, server, context, left)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGINT
    assert said.decode().strip().splitlines()[-1] == "KeyboardInterrupt"
    assert said.decode().count("Traceback") == 1
    left.check()


def test_signals_for_the_training_do_not_reach_its_processes(
    program: Path, server: RunningServer, left: Leftovers
) -> None:
    """A scheduler sends SIGUSR1 to all processes of a job."""
    process = train(program, server, "fork", left)
    workers = [each for each in session_processes(process.pid) if each != process.pid]
    for worker in workers:
        os.kill(worker, signal.SIGUSR1)
    time.sleep(0.2)
    assert set(workers) <= set(session_processes(process.pid))
    process.kill()
    process.communicate()
    left.check()


def test_a_script_that_ends_within_an_iteration_says_nothing(server: RunningServer) -> None:
    code = """
import sys
from brand.torch import BrandDataset, BrandLoader
loader = BrandLoader(
    BrandDataset(sys.argv[1], memory=0.5), 4, num_workers=2, worker_type="process", multiprocessing_context="fork"
)
batches = iter(loader)
next(batches)
"""
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code, server.path]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_spawned_script_without_a_guard(server: RunningServer, tmp_path: Path) -> None:
    """The error says what to write."""
    path = tmp_path / "unguarded.py"
    path.write_text(TRAINING.replace('if __name__ == "__main__":', "if True:"))
    ended = subprocess.run(
        [sys.executable, path, server.path, "spawn"], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert ended.returncode == 1
    assert 'the script needs `if __name__ == "__main__":`' in ended.stderr
