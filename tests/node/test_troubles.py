"""What the log says of storage that stalls or fails: who waits for which file, once, and then counts."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brand import BrandDataset, BrandLoader, pack
from brand.node.decide.draws import job_stats
from brand.node.decide.draws.job_stats import LATE_S
from brand.node.serve import troubles
from brand.node.serve.troubles import EVERY_S, Troubles
from brand.node.wire.numbers import RunNumber
from brand.testing.node import running_server
from brand.testing.storage import BlockedStorage, Fault, FaultyStorage
from tests.node.test_core import ORDER, SAMPLES, world
from tests.node.world import World
from tests.support import LIMIT_S, wait_until


def file_of(chunk: int) -> str:
    """A path that wants to forge a line."""
    return f"/data/set\n/{chunk}"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines since the last call."""
    lines = [record.getMessage() for record in caplog.records if record.name == "brand.node"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    caplog.clear()
    return lines


def waiting_world(pages: int = SAMPLES // 2, *, ranks: int = 2) -> tuple[World, Troubles, RunNumber]:
    """Ranks that have begun an epoch, whose first reads are on their way."""
    made = world(pages)
    run = RunNumber(0)
    for rank in range(ranks):
        run = made.register(1 + rank, **ORDER)
        made.begin(1 + rank, run, 0, rank=rank, replicas=ranks)
    made.step()
    return made, Troubles(file_of, lambda client: 4000 + client, made.chunk_size), run


def tend(made: World, log: Troubles, later_s: float) -> None:
    """The loop goes on."""
    made.now_s += later_s
    log.tend(made.core.epochs, made.now_s)


def test_a_draw_that_waits_for_storage_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """After five seconds, with the rank, its process, the position and the file that the storage has not brought."""
    made, log, run = waiting_world()
    made.finish_plan()
    made.step()
    made.draw(1, run, 0, range(0, 10, 2))
    live = made.core.epochs.get((run, 0))
    assert live is not None
    first = live.epoch
    places = first.plan.sample_of[0:10:2]
    tend(made, log, LATE_S - 0.1)
    assert told(caplog) == []
    tend(made, log, 1.1)
    (line,) = told(caplog)
    at = int(first.states.on_the_way(places).argmax())
    assert first.states.on_the_way(places)[at]
    assert line == (
        f"rank 0 of 2 (process 4001) has waited 6 s for position {2 * at} of epoch 0: "
        f"the storage has not answered a read of /data/set\\n/{places[at] // 8}"
    )
    for _ in range(100):
        tend(made, log, 0.1)
    assert told(caplog) == []


def test_more_draws_that_wait_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A second rank is no second line, but one of a sum, half a minute after the first."""
    made, log, run = waiting_world()
    made.finish_plan()
    made.step()
    made.draw(1, run, 0, [0])
    made.draw(2, run, 0, [1])
    tend(made, log, LATE_S)
    assert len(told(caplog)) == 1
    assert repr(log).startswith("Troubles(counted=1,")
    tend(made, log, EVERY_S)
    (line,) = told(caplog)
    assert line.startswith(
        "1 more request has waited longer than 5 s within 30 s; the last: rank 1 of 2 (process 4002)"
    )
    assert repr(log).startswith("Troubles(counted=0,")


def test_a_draw_that_is_answered_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits any more."""
    made, log, run = waiting_world(ranks=1)
    made.quiet()
    made.draw(1, run, 0, range(5))
    tend(made, log, 60.0)
    assert told(caplog) == []


def test_a_draw_that_waits_for_its_plan_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """There is no file yet that could be named."""
    made, log, run = waiting_world(ranks=1)
    made.draw(1, run, 0, range(5))
    tend(made, log, LATE_S)
    assert told(caplog) == [
        "process 4001 has waited 5 s for position 0 of epoch 0: the order of the epoch is still being computed"
    ]


def test_a_read_that_has_not_begun_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """Other reads come first: the line names the file all the same."""
    made, log, run = waiting_world(ranks=1)
    made.finish_plan()
    made.step()
    live = made.core.epochs.get((run, 0))
    assert live is not None
    epoch = live.epoch
    late = int(epoch.states.due(epoch.plan.sample_of[:]).argmax())
    made.draw(1, run, 0, [late])
    tend(made, log, LATE_S)
    (line,) = told(caplog)
    assert f"position {late} of epoch 0: a read of /data/set\\n/{epoch.plan.sample_of[late] // 8} has not begun" in line


def test_reads_that_fail_are_counted_by_kind(caplog: pytest.LogCaptureFixture) -> None:
    """400 failures in four seconds: a line for each kind, and a sum at the end."""
    log = Troubles(file_of, lambda client: client, 8)
    for number in range(400):
        log.read_failed(file_of(number), OSError(errno.EIO, os.strerror(errno.EIO)), number / 100)
    log.read_failed(file_of(7), EOFError(), 4.0)
    assert told(caplog) == [
        "/data/set\\n/0 cannot be read as a whole: Input/output error",
        "/data/set\\n/7 cannot be read as a whole: EOFError",
    ]
    log.close(5.0)
    assert told(caplog) == [
        "399 more reads have failed within 5 s; the last: "
        "/data/set\\n/399 cannot be read as a whole: Input/output error"
    ]


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    """50 chunks."""
    pack([{"n": n} for n in range(400)], tmp_path / "set", {"n": "int"}, chunk_size=8, jobs=1)
    return tmp_path / "set"


@pytest.mark.slow
def test_a_server_whose_storage_stalls_says_so(
    chunks: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the draw still waits, and it is answered as soon as the storage is."""
    for module in (job_stats, troubles):
        monkeypatch.setattr(module, "LATE_S", 0.05)
    with BlockedStorage() as storage, running_server(chunks, memory=0.5, storage=storage) as server:
        loader = BrandLoader(BrandDataset(chunks, server=server.address, fields=("n",)), 8)
        with ThreadPoolExecutor(1) as training:
            epoch = training.submit(lambda: [n for (numbers,) in loader for n in numbers.tolist()])
            wait_until(lambda: bool(caplog.records), "the log says who waits")
            storage.release()
            assert len(epoch.result(LIMIT_S)) == 400
    first = told(caplog)[0]
    assert first.startswith(f"rank 0 of 1 (process {os.getpid()}) has waited ")
    assert f"the storage has not answered a read of {chunks}/chunks/" in first


def test_a_server_whose_storage_fails_says_so_once(chunks: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every large read fails; the epoch is whole all the same, and the log has two lines."""
    with running_server(chunks, memory=0.5, storage=FaultyStorage(Fault())) as server:
        loader = BrandLoader(BrandDataset(chunks, server=server.address, fields=("n",)), 8)
        assert len([n for (numbers,) in loader for n in numbers.tolist()]) == 400
        failed = server.facts()["failed_reads"]
    assert failed > 10
    one, rest = told(caplog)
    assert "cannot be read as a whole: Input/output error" in one
    count, _, what = rest.partition(" ")
    assert int(count) >= failed - 1  # the next epoch's reads begin meanwhile
    assert what.startswith("more reads have failed within ")


@pytest.mark.slow
def test_what_the_server_says_reaches_the_training(chunks: Path) -> None:
    """A server that started by itself writes its warnings to the standard error of the training: a line, and a sum."""
    for chunk in (chunks / "chunks").iterdir():
        if int(chunk.stem) % 2:
            chunk.unlink()
    code = (
        "import sys\n"
        "from brand import BrandDataset, BrandLoader\n"
        "data_set = BrandDataset(sys.argv[1], fields=('n',), memory=0.5, on_error='skip')\n"
        "for _ in BrandLoader(data_set, 8): pass\n"
        "print(len(data_set.stats()['replaced']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(chunks)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout == "200\n"
    one, rest = [line for line in done.stderr.splitlines() if line.startswith("brand server: ")]
    assert "cannot be read as a whole: No such file or directory" in one
    assert "more reads have failed within" in rest
