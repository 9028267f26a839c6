"""Crates: a batch lies in one until the other process has taken it out, and is never taken for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brand.errors import UsageError
from brand.torch.data import crates as module
from brand.torch.data.crates import MOST_CRATES, BatchHandle, SharedBatches, empty_probe, unstowed
from tests.support import descriptors

PARTS = [b"one", b"", b"three"]


def opened() -> SharedBatches:
    """Crates that were shown to be within reach."""
    crates = SharedBatches()
    assert crates.probe is not None
    empty_probe(crates.probe)
    return crates


def stowed(crates: SharedBatches, parts: list[bytes]) -> BatchHandle:
    """The slip of what has a crate."""
    slip = crates.stow(parts, sum(map(len, parts)))
    assert slip is not None
    return slip


def taken(slip: BatchHandle, size: int) -> bytes:
    """What lies in a crate, which is empty then."""
    with unstowed(slip) as memory:
        return memory[:size]


def test_none_is_used_before_one_was_opened() -> None:
    """The training process may not be able to open them."""
    crates = SharedBatches()
    assert not crates.opened
    assert crates.stow(PARTS, 8) is None
    assert crates.probe is not None
    empty_probe(crates.probe)
    assert crates.opened
    assert taken(stowed(crates, PARTS), 8) == b"onethree"
    empty_probe(crates.probe)  # a second message that was under way says so again


def test_a_full_crate_is_left_alone_until_it_is_emptied() -> None:
    """Any number of batches, a few crates; larger ones replace those that are too small."""
    crates = opened()
    slips = [stowed(crates, [bytes([number]) * 50]) for number in range(MOST_CRATES)]
    assert crates.stow([b"more"], 4) is None
    for number, slip in reversed(list(enumerate(slips))):
        assert taken(slip, 50) == bytes([number]) * 50
    for size in (10, 70, 5_000, 3, 100_000):
        slips = [stowed(crates, [bytes([number]) * size]) for number in range(MOST_CRATES)]
        assert crates.stow([b"more"], 4) is None
        assert [taken(slip, size) for slip in slips] == [bytes([number]) * size for number in range(MOST_CRATES)]
    assert repr(crates) == "SharedBatches(4 of 4, open)"


def test_a_batch_is_taken_out_once() -> None:
    """A second look would see the next batch."""
    crates = opened()
    slip = stowed(crates, PARTS)
    taken(slip, 8)
    with pytest.raises(UsageError, match="unpickled before"):
        taken(slip, 8)
    later = stowed(crates, [b"another1"])
    assert later.descriptor == slip.descriptor
    with pytest.raises(UsageError, match="unpickled before"):
        taken(slip, 8)
    assert taken(later, 8) == b"another1"


def test_a_batch_whose_taking_failed_stays() -> None:
    """Memory was short, say."""
    crates = opened()
    slip = stowed(crates, PARTS)
    with pytest.raises(MemoryError), unstowed(slip):
        raise MemoryError
    assert taken(slip, 8) == b"onethree"


def test_a_large_batch_has_no_crate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of workers is bounded."""
    monkeypatch.setattr(module, "MOST_BYTES", 8)
    crates = opened()
    assert crates.stow([b"123456789"], 9) is None
    assert crates.stow(PARTS, 8) is not None


def test_without_memory_there_is_no_crate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch goes another way."""
    crates = opened()
    monkeypatch.setattr(os, "ftruncate", _refuse)
    before = descriptors()
    assert crates.stow(PARTS, 8) is None
    assert SharedBatches().probe is None
    assert descriptors() <= before


def _refuse(*_: int) -> None:
    raise OSError(28, "No space left on device")


OTHER = """
from brand.torch.data.crates import SharedBatches, empty_probe
crates = SharedBatches()
empty_probe(crates.probe)
process, descriptor, room, token = crates.stow([b"from another process"], 20)
print(process, descriptor, room, token.hex(), flush=True)
input()
"""


@pytest.mark.slow
def test_another_process_takes_it_out_until_the_worker_ends() -> None:
    """The crate vanishes with the worker, and leaves nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        process, descriptor, room, token = worker.stdout.readline().split()
        slip = BatchHandle(int(process), int(descriptor), int(room), bytes.fromhex(token))
        with unstowed(slip) as memory:
            assert memory[:20] == b"from another process"
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        with pytest.raises(FileNotFoundError):
            taken(slip, 20)
        empty_probe(slip)  # says nothing


def test_a_file_of_another_process_is_not_opened(tmp_path: Path) -> None:
    """A process that has the number of the worker that has ended may have any file under that descriptor."""
    file = tmp_path / "file"
    file.write_bytes(b"precious" * 10)
    with file.open("rb+") as other:
        slip = BatchHandle(os.getpid(), other.fileno(), 8, b"precious" * 2)
        with pytest.raises(FileNotFoundError, match="has ended"):
            taken(slip, 8)
        empty_probe(slip)
    assert file.read_bytes() == b"precious" * 10
