"""Buffers: a batch lies in one until the other process has taken it out, and is never taken for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from brand.errors import UsageError
from brand.torch.data import shared_batches as module
from brand.torch.data.shared_batches import MOST_BUFFERS, BatchHandle, SharedBatches, batch_memory, empty_probe
from tests.support import descriptors

PARTS = [b"one", b"", b"three"]


def opened() -> SharedBatches:
    """Buffers that were shown to be within reach."""
    buffers = SharedBatches()
    assert buffers.probe is not None
    empty_probe(buffers.probe)
    return buffers


def stored(buffers: SharedBatches, parts: list[bytes]) -> BatchHandle:
    """The handle of what has a buffer."""
    handle = buffers.store(parts, sum(map(len, parts)))
    assert handle is not None
    return handle


def taken(handle: BatchHandle, size: int) -> bytes:
    """What lies in a buffer, which is empty then."""
    with batch_memory(handle) as memory:
        return memory[:size]


def test_none_is_used_before_one_was_opened() -> None:
    """The training process may not be able to open them."""
    buffers = SharedBatches()
    assert not buffers.opened
    assert buffers.store(PARTS, 8) is None
    assert buffers.probe is not None
    empty_probe(buffers.probe)
    assert buffers.opened
    assert taken(stored(buffers, PARTS), 8) == b"onethree"
    empty_probe(buffers.probe)  # a second message that was under way says so again


def test_a_full_buffer_is_left_alone_until_it_is_emptied() -> None:
    """Any number of batches, a few buffers; larger ones replace those that are too small."""
    buffers = opened()
    handles = [stored(buffers, [bytes([number]) * 50]) for number in range(MOST_BUFFERS)]
    assert buffers.store([b"more"], 4) is None
    for number, handle in reversed(list(enumerate(handles))):
        assert taken(handle, 50) == bytes([number]) * 50
    for size in (10, 70, 5_000, 3, 100_000):
        handles = [stored(buffers, [bytes([number]) * size]) for number in range(MOST_BUFFERS)]
        assert buffers.store([b"more"], 4) is None
        assert [taken(handle, size) for handle in handles] == [bytes([number]) * size for number in range(MOST_BUFFERS)]
    assert repr(buffers) == "SharedBatches(buffers=4 items, opened=True)"


def test_a_batch_is_taken_out_once() -> None:
    """A second look would see the next batch."""
    buffers = opened()
    handle = stored(buffers, PARTS)
    taken(handle, 8)
    with pytest.raises(UsageError, match="unpickled before"):
        taken(handle, 8)
    later = stored(buffers, [b"another1"])
    assert later.descriptor == handle.descriptor
    with pytest.raises(UsageError, match="unpickled before"):
        taken(handle, 8)
    assert taken(later, 8) == b"another1"


def test_a_batch_whose_taking_failed_stays() -> None:
    """Memory was short, say."""
    buffers = opened()
    handle = stored(buffers, PARTS)
    with pytest.raises(MemoryError), batch_memory(handle):
        raise MemoryError
    assert taken(handle, 8) == b"onethree"


def test_a_large_batch_has_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of workers is bounded."""
    monkeypatch.setattr(module, "MOST_BYTES", 8)
    buffers = opened()
    assert buffers.store([b"123456789"], 9) is None
    assert buffers.store(PARTS, 8) is not None


def test_without_memory_there_is_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch goes another way."""
    buffers = opened()
    monkeypatch.setattr(os, "ftruncate", _refuse)
    before = descriptors()
    assert buffers.store(PARTS, 8) is None
    assert SharedBatches().probe is None
    assert descriptors() <= before


def _refuse(*_: int) -> None:
    raise OSError(28, "No space left on device")


OTHER = """
from brand.torch.data.shared_batches import SharedBatches, empty_probe
buffers = SharedBatches()
empty_probe(buffers.probe)
process, descriptor, room, token = buffers.store([b"from another process"], 20)
print(process, descriptor, room, token.hex(), flush=True)
input()
"""


@pytest.mark.slow
def test_another_process_takes_it_out_until_the_worker_ends() -> None:
    """The buffer vanishes with the worker, and leaves nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        process, descriptor, room, token = worker.stdout.readline().split()
        handle = BatchHandle(int(process), int(descriptor), int(room), bytes.fromhex(token))
        with batch_memory(handle) as memory:
            assert memory[:20] == b"from another process"
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        with pytest.raises(FileNotFoundError):
            taken(handle, 20)
        empty_probe(handle)  # says nothing


def test_a_file_of_another_process_is_not_opened(tmp_path: Path) -> None:
    """A process that has the number of the worker that has ended may have any file under that descriptor."""
    file = tmp_path / "file"
    file.write_bytes(b"precious" * 10)
    with file.open("rb+") as other:
        handle = BatchHandle(os.getpid(), other.fileno(), 8, b"precious" * 2)
        with pytest.raises(FileNotFoundError, match="has ended"):
            taken(handle, 8)
        empty_probe(handle)
    assert file.read_bytes() == b"precious" * 10


CHILD = """
import sys
from torch.utils.data import DataLoader
from brand import BrandDataset, BrandSampler, DecodeImage
from brand.torch.data.shared_batches import shares_tensors

if __name__ == "__main__":
    size = (224, 224)
    ds = BrandDataset(sys.argv[1], fields=("image", "label"), decode={"image": DecodeImage(size=size)}, memory=0.5)
    loader = DataLoader(ds, batch_size=16, sampler=BrandSampler(ds), num_workers=2)
    sums = sorted(int(image.sum()) for images, _ in loader for image in images)
    print(shares_tensors(), len(sums), sum(sums))
"""


@pytest.mark.slow
def test_batches_of_workers_need_no_large_dev_shm(photos_set: Path, tmp_path: Path) -> None:
    """In a container with 1 MB there: a batch of tensors is larger. The values are the same."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    run = [sys.executable, str(script), str(photos_set)]
    small = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    if subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[3])}
    found = [
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
        for command in (run, ["unshare", "-Urm", "sh", "-c", small, "sh", *run])
    ]
    assert found[1][0] == "False"
    assert found[0][1:] == found[1][1:]
    assert int(found[1][1]) > 16


def test_large_tensors_travel_in_buffers_if_dev_shm_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any dtype and shape, bit for bit."""
    monkeypatch.setattr(module, "shares_tensors", lambda: False)
    tensors = [torch.arange(1 << 16).reshape(16, -1), torch.rand(3, 1 << 15), torch.zeros(1 << 17, dtype=torch.bool)]
    for tensor in tensors:
        (form, size, more), parts = module._packed(tensor)
        assert form is not None
        assert size == tensor.nbytes
        assert torch.equal(form(b"".join(parts), 0, size, more), tensor)
    monkeypatch.setattr(module, "shares_tensors", lambda: True)
    assert module._packed(tensors[0])[0][0] is None
