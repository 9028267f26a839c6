"""How do a training and a process of its own exchange values? Through anonymous memory, and a pair of sockets.

One side writes a value to the memory and sends a head, and the other side answers in the same memory. So a value must
be received before the answer is sent. Arrays and tensors are written as they are, and each gets memory of its own when
it is received: a training that keeps one field of a batch does not keep the others. Nothing has a name, so nothing
remains of processes that are killed.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from multiprocessing.connection import wait
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from brand.anonymous import anonymous_file
from brand.reprs import Reprs
from brand.torch.pytorch import torch, torch_types

_TENSOR: Final = torch_types("Tensor")
_HEAD: Final = 8
"""Bytes of a head: the number of parts of a value. Their sizes are at the beginning of the memory."""


class MemoryPipe(Reprs, shows="_memory"):
    """One end. `memory` is the open file of the anonymous memory; None if the other end sends it first."""

    def __init__(self, connection: socket.socket, memory: int | None = None) -> None:
        self._connection, self._memory = connection, memory
        self._close = weakref.finalize(self, connection.close)
        if memory is not None:
            weakref.finalize(self, os.close, memory)

    def __reduce__(self) -> tuple[Any, ...]:  # only while multiprocessing starts a process
        return type(self), (self._connection,)

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Return both ends: that of this process, and that of a process to be started. Raises OSError."""
        ours, theirs = socket.socketpair()
        near, far = cls(ours, anonymous_file("brand-worker")), cls(theirs)
        socket.send_fds(ours, [bytes(_HEAD)], [near._descriptor])
        return near, far

    @property
    def _descriptor(self) -> int:
        if self._memory is None:
            _, (self._memory,), *_ = socket.recv_fds(self._connection, _HEAD, 1)
            weakref.finalize(self, os.close, self._memory)
        return self._memory

    def wait(self, seconds: float, ended: int) -> bool:
        """Wait until something can be received, or the descriptor `ended` is ready. Returns whether one of them is."""
        return bool(wait([self._connection, ended], seconds))

    @property
    def filled(self) -> bool:
        """Whether something can be received now: a value, or the end of the other side."""
        return bool(wait([self._connection], 0))

    def send(self, value: Any) -> None:
        """Send a value. Raises ConnectionError, OSError, and the errors of pickle, before anything is sent."""
        stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        _Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(value)
        parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        sizes = np.array([len(part) for part in parts], np.int64)
        for part, (at, _) in zip([sizes.data.cast("B"), *parts], _spans(sizes), strict=True):
            done = 0
            while done < len(part):
                done += os.pwrite(self._descriptor, part[done:], at + done)
        self._connection.sendall(len(parts).to_bytes(_HEAD))

    def receive(self) -> Any:
        """Wait for a value, and return it. Raises EOFError if the other side has ended, ConnectionError, OSError."""
        descriptor = self._descriptor
        head = self._connection.recv(_HEAD, socket.MSG_WAITALL)
        if len(head) < _HEAD:
            raise EOFError
        sizes = np.empty(int.from_bytes(head), np.int64)
        _read(descriptor, sizes, 0)
        spans = _spans(sizes)[1:]
        parts = [np.empty(end - start, np.uint8) for start, end in spans]
        for part, (start, _) in zip(parts, spans, strict=True):
            _read(descriptor, part, start)
        return pickle.loads(parts[0].data, buffers=parts[1:])

    def hang_up(self) -> None:
        """Send nothing more: the other side ends once it has answered, whichever processes have copies of this end."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._close()


class _Pickler(pickle.Pickler):
    """Leaves the bytes of dense tensors out of the pickle, as pickle itself leaves out those of arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) in _TENSOR and value.numel() and value.device.type == "cpu" and not value.requires_grad:
            with suppress(RuntimeError):  # PyTorch has no view as bytes of this one: it is sparse or quantized, say
                plain = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
                return _tensor, (pickle.PickleBuffer(plain), value.dtype, tuple(value.shape))
        return NotImplemented


def _tensor(memory: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


def _spans(sizes: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the first byte and the end of the table of sizes, and of each part."""
    return list(pairwise(accumulate([0, sizes.nbytes, *sizes.tolist()])))


def _read(descriptor: int, into: NDArray[Any], at: int) -> None:
    """Fill an array with the bytes at a place of a file. Raises EOFError."""
    view, done = into.data.cast("B"), 0
    while done < len(view):
        if not (count := os.preadv(descriptor, [view[done:]], at + done)):
            raise EOFError
        done += count
