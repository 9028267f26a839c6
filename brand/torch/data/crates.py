"""How do the bytes of a batch get from a worker of a DataLoader to the training process? Through memory that both map.

A worker has a few *buffers*: anonymous memory (memfd), which it reuses. The message of a batch has a *handle*, which
names the buffer of the batch. The training process opens the buffer through /proc, copies the batch out, and empties
the buffer: it writes zeros over the token at its end. A worker fills only empty buffers, so an empty buffer belongs to
the worker, and a buffer whose token is in a handle belongs to the training process.

A pipe would copy a batch five times, half of these copies into memory that was never touched before. A buffer costs one
copy on each side, into memory that is warm.

A worker begins with an empty buffer, the *probe*. It uses other buffers once the training process has emptied the
probe, which proves that the training process can open them. If it cannot, or if all buffers are full, a batch is sent
through the pipe.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from brand.errors import UsageError

MOST_CRATES: Final = 4
"""Largest number of buffers of a worker. By default, a worker of a DataLoader is at most two batches ahead."""
MOST_BYTES: Final = 256 << 20
"""Larger batches are sent through the pipe."""
_TOKEN: Final = 16
"""Bytes of the token, which follows the space for batches."""
_EMPTY: Final = bytes(_TOKEN)
_NAME: Final = "brand-crate"


class BatchHandle(NamedTuple):
    """Names the buffer that holds a batch."""

    process: int
    descriptor: int
    """The file descriptor of the buffer, in that process."""
    room: int
    """Bytes of the buffer, without its token."""
    token: bytes
    """The bytes after the batch, until the buffer is emptied. Each batch has another token."""


class _SharedBatch:
    """One buffer of a worker. Raises OSError if there is no memory or no file descriptor left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            os.ftruncate(self._descriptor, room + _TOKEN)
            self._memory = mmap.mmap(self._descriptor, room + _TOKEN)
        except BaseException:
            self._close()
            raise

    @property
    def empty(self) -> bool:
        return self._memory[self.room :] == _EMPTY

    def fill(self, parts: Sequence[bytes]) -> BatchHandle:
        at = 0
        for part in parts:
            self._memory[at : at + len(part)] = part
            at += len(part)
        token = secrets.token_bytes(_TOKEN)
        self._memory[self.room :] = token
        return BatchHandle(os.getpid(), self._descriptor, self.room, token)

    def close(self) -> None:
        self._memory.close()
        self._close()


class SharedBatches:
    """The buffers of this process. Several threads may use them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._crates: list[_SharedBatch] = []
        self._probe: _SharedBatch | None = None
        self.probe: BatchHandle | None = None
        """The handle that the training process gives to `empty_probe`; None if a process can have no buffers."""
        with suppress(AttributeError, OSError):  # no Linux; no descriptor left
            self._probe = _SharedBatch(0)
            self.probe = self._probe.fill(())

    def __repr__(self) -> str:
        return f"SharedBatches({len(self._crates)} of {MOST_CRATES}, {'open' if self.opened else 'not opened yet'})"

    @property
    def opened(self) -> bool:
        """Whether the training process has shown that it can open crates."""
        return self._probe is not None and self._probe.empty

    def stow(self, parts: Sequence[bytes], size: int) -> BatchHandle | None:
        """Copy `parts`, one after the other, into a buffer.

        Returns None if no buffer has space for their `size` bytes.
        """
        if size > MOST_BYTES or not self.opened:
            return None
        with self._lock:
            empty = [crate for crate in self._crates if crate.empty]
            fits = [crate for crate in empty if crate.room >= size]
            if fits:
                return min(fits, key=lambda crate: crate.room).fill(parts)
            if empty:
                self._crates.remove(empty[0])
                empty[0].close()
            elif len(self._crates) == MOST_CRATES:
                return None
            try:
                crate = _SharedBatch(size + size // 4)
            except OSError:
                return None
            self._crates.append(crate)
            return crate.fill(parts)


@contextmanager
def unstowed(slip: BatchHandle) -> Iterator[mmap.mmap]:
    """Yield the memory of a buffer, which begins with the bytes of the batch. Empties the buffer afterwards.

    Raises OSError if the worker has ended, `UsageError` if the batch was taken out before.
    """
    descriptor = _open(slip)
    try:
        if os.pread(descriptor, _TOKEN, slip.room) != slip.token:
            raise UsageError("a batch of a DataLoader's worker can be unpickled once only, and was unpickled before")
        with mmap.mmap(descriptor, slip.room, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) as memory:
            yield memory
        # A system call, so no processor makes this write visible before the copies are done.
        os.pwrite(descriptor, _EMPTY, slip.room)
    finally:
        os.close(descriptor)


def empty_probe(probe: BatchHandle) -> None:
    """Show the worker that this process can open its crates, if it can."""
    with suppress(OSError):
        descriptor = _open(probe)
        try:
            if os.pread(descriptor, _TOKEN, probe.room) == probe.token:
                os.pwrite(descriptor, _EMPTY, probe.room)
        finally:
            os.close(descriptor)


def _open(slip: BatchHandle) -> int:
    """Return a file descriptor of a buffer. Raises OSError."""
    path = Path(f"/proc/{slip.process}/fd/{slip.descriptor}")
    if not str(path.readlink()).startswith(f"/memfd:{_NAME}"):  # another process has the number of one that has ended
        raise FileNotFoundError(f"the DataLoader's worker {slip.process} has ended, and its batch with it")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
