"""How does a worker of a DataLoader send a batch to the training process? All samples together, through shared memory.

    samples    the data set marks the first sample of a batch that a worker has fetched
    collated   PyTorch's `default_collate` looks up the type of the first sample, finds `_collated` here, and so makes
               its usual batch, a dict or a list, but of a type of this module
    sent       that type is pickled between processes in another way: the bytes of strings, bytes and small tensors are
               concatenated in a buffer or in the message
    received   a plain dict or list, with the same values

PyTorch pickles each string, copies all bytes through a pipe, and passes a file descriptor for each small tensor. If a
loader has a `collate_fn` that does not call `default_collate`, batches are sent as PyTorch does it.

A worker has a few *buffers*: anonymous memory (memfd), which it reuses. The message of a batch has a *handle*, which
names the buffer of the batch. The training process opens the buffer through /proc, copies the batch out, and empties
the buffer: it writes zeros over the token at its end. A worker fills only empty buffers, so an empty buffer belongs to
the worker, and a buffer whose token is in a handle belongs to the training process. A pipe would copy a batch five
times, half of these copies into memory that was never touched before. A buffer costs one copy on each side, into memory
that is warm.

A worker begins with an empty buffer, the *probe*. It uses other buffers once the training process has emptied the
probe, which proves that the training process can open them. If it cannot, or if all buffers are full, a batch is sent
through the pipe.

PyTorch's own way for tensors is a file in `/dev/shm`, into which `default_collate` writes them. Containers have 64 MB
there by default. If it is that small, tensors of any size are sent as the strings are: two copies more, and no file.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate, pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from brand.errors import UsageError
from brand.formats.values import FieldList
from brand.reprs import Reprs

MOST_BUFFERS: Final = 4
"""Largest number of buffers of a worker. By default, a worker of a DataLoader is at most two batches ahead."""
MOST_BYTES: Final = 256 << 20
"""Larger batches are sent through the pipe."""
_TOKEN: Final = 16
"""Bytes of the token, which follows the space for batches."""
_EMPTY: Final = bytes(_TOKEN)
_NAME: Final = "brand-batch"
LEAST_BYTES: Final = 1 << 16
"""Fewer bytes are sent in the message: a pipe holds this many."""
SMALL_TENSOR: Final = 1 << 16
"""Smaller tensors are sent with the strings; PyTorch shares larger tensors in `/dev/shm`, unless that is small."""
SHARED_FILES: Final = "/dev/shm"
LEAST_SHARED: Final = 1 << 30
"""Bytes of `/dev/shm` from which on PyTorch shares tensors there."""


@cache
def shares_tensors() -> bool:
    """Return whether `/dev/shm` is large enough for the tensors of a DataLoader's workers."""
    try:
        facts = os.statvfs(SHARED_FILES)
    except OSError:  # there is none
        return False
    return facts.f_blocks * facts.f_frsize >= LEAST_SHARED


class BatchHandle(NamedTuple):
    """Names the buffer that holds a batch."""

    process: int
    descriptor: int
    """The file descriptor of the buffer, in that process."""
    size: int
    """Bytes of the buffer, without its token."""
    token: bytes
    """The bytes after the batch, until the buffer is emptied. Each batch has another token."""


class _SharedBatch:
    """One buffer of a worker. Raises OSError if there is no memory or no file descriptor left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            os.ftruncate(self._descriptor, size + _TOKEN)
            self._memory = mmap.mmap(self._descriptor, size + _TOKEN)
        except BaseException:
            self._close()
            raise

    @property
    def empty(self) -> bool:
        return self._memory[self.size :] == _EMPTY

    def fill(self, parts: Sequence[bytes]) -> BatchHandle:
        at = 0
        for part in parts:
            self._memory[at : at + len(part)] = part
            at += len(part)
        token = secrets.token_bytes(_TOKEN)
        self._memory[self.size :] = token
        return BatchHandle(os.getpid(), self._descriptor, self.size, token)

    def close(self) -> None:
        self._memory.close()
        self._close()


class SharedBatches(Reprs, shows="_buffers opened"):
    """The buffers of this process. Several threads may use them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._buffers: list[_SharedBatch] = []
        self._probe: _SharedBatch | None = None
        self.probe: BatchHandle | None = None
        """The handle that the training process gives to `empty_probe`; None if a process can have no buffers."""
        with suppress(AttributeError, OSError):  # no Linux; no descriptor left
            self._probe = _SharedBatch(0)
            self.probe = self._probe.fill(())

    @property
    def opened(self) -> bool:
        """Whether the training process has shown that it can open buffers."""
        return self._probe is not None and self._probe.empty

    def store(self, parts: Sequence[bytes], size: int) -> BatchHandle | None:
        """Copy `parts`, one after the other, into a buffer. Returns None if no buffer has space for `size` bytes."""
        if size > MOST_BYTES or not self.opened:
            return None
        with self._lock:
            empty = [buffer for buffer in self._buffers if buffer.empty]
            fits = [buffer for buffer in empty if buffer.size >= size]
            if fits:
                return min(fits, key=lambda buffer: buffer.size).fill(parts)
            if empty:
                self._buffers.remove(empty[0])
                empty[0].close()
            elif len(self._buffers) == MOST_BUFFERS:
                return None
            try:
                buffer = _SharedBatch(size + size // 4)
            except OSError:
                return None
            self._buffers.append(buffer)
            return buffer.fill(parts)


@contextmanager
def batch_memory(handle: BatchHandle) -> Iterator[mmap.mmap]:
    """Yield the memory of a buffer, which begins with the bytes of the batch. Empties the buffer afterwards.

    Raises OSError if the worker has ended, `UsageError` if the batch was taken out before.
    """
    descriptor = _open(handle)
    try:
        if os.pread(descriptor, _TOKEN, handle.size) != handle.token:
            raise UsageError("a batch of a DataLoader's worker can be unpickled once only, and was unpickled before")
        with mmap.mmap(descriptor, handle.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ) as memory:
            yield memory
        # A system call, so no processor makes this write visible before the copies are done.
        os.pwrite(descriptor, _EMPTY, handle.size)
    finally:
        os.close(descriptor)


def empty_probe(probe: BatchHandle) -> None:
    """Show the worker that this process can open its buffers, if it can."""
    with suppress(OSError, UsageError), batch_memory(probe):  # `UsageError`: it was emptied before
        pass


def _open(handle: BatchHandle) -> int:
    """Return a file descriptor of a buffer. Raises OSError."""
    path = Path(f"/proc/{handle.process}/fd/{handle.descriptor}")
    if not str(path.readlink()).startswith(f"/memfd:{_NAME}"):  # another process has the number of one that has ended
        raise FileNotFoundError(f"the DataLoader's worker {handle.process} has ended, and its batch with it")
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


class FirstDict(dict[str, Any]):
    """The first sample of a batch, if samples are dicts. It is pickled and copied as a dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FirstTuple(tuple[Any, ...]):
    """The first sample of a batch, if samples are tuples. It is pickled and copied as a tuple."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)


class HandedDict(dict[str, Any]):
    """A batch of samples that are dicts. Only `ForkingPickler`, which multiprocessing uses, packs it."""


class HandedList(list[Any]):
    """A batch of samples that are tuples; see `HandedDict`."""


def marked(samples: list[Any]) -> list[Any]:
    """Return the samples of a batch. In a worker of a DataLoader, the first sample is marked."""
    if samples and get_worker_info() is not None:
        first = samples[0]
        if type(first) is dict:
            samples[0] = FirstDict(first)
        elif type(first) is tuple:
            samples[0] = FirstTuple(first)
    return samples


def _collated(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Return the batch that `default_collate` makes of samples whose first one is marked."""
    first, *others = batch
    plain: Any = dict(first) if isinstance(first, dict) else tuple(first)
    if collate_fn_map is not None and not shares_tensors():
        collate_fn_map = {**collate_fn_map, torch.Tensor: _stacked}
    made = collate([plain, *others], collate_fn_map=collate_fn_map)
    return HandedDict(made) if isinstance(made, dict) else HandedList(made)


def _stacked(batch: Sequence[torch.Tensor], *, collate_fn_map: Any) -> Any:
    """Return tensors as one, in memory of this process. In a worker, PyTorch takes a file in `/dev/shm`."""
    if batch[0].is_nested or batch[0].layout is not torch.strided:  # PyTorch's error says what to do
        return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
    return torch.stack(tuple(batch))


Form = tuple[Callable[..., Any] | None, int, Any]
"""The stored form of a column: a function that restores it, the size of its bytes, and the function's other arguments.

If the function is None, the last element is the column itself, which is pickled.
"""
Memory = bytes | mmap.mmap


def _packed(column: Any) -> tuple[Form, Sequence[bytes]]:
    """Return the form of a column in the memory of its batch, and its bytes."""
    kind = type(column)
    if kind is torch.Tensor:
        dense = column.layout is torch.strided and column.device.type == "cpu" and not column.requires_grad
        if dense and column.dim() and column.nbytes and (column.nbytes < SMALL_TENSOR or not shares_tensors()):
            plain = column.resolve_conj().resolve_neg().reshape(-1)
            with suppress(RuntimeError):  # PyTorch has no view as bytes of this one: it is quantized, say
                content = plain.view(torch.uint8).numpy().tobytes()
                return (_tensor, len(content), (column.dtype, tuple(column.shape))), (content,)
    elif kind in (list, tuple):
        kinds = set(map(type, column))
        if kinds in ({str}, {bytes}):
            lengths = array("q", map(len, column))
            if kinds == {bytes}:
                return (_pieces, sum(lengths), (kind, lengths.tobytes())), column
            content = "".join(column).encode("utf-8", "surrogatepass")
            return (_texts, len(content), (kind, lengths.tobytes())), (content,)
    return (None, 0, column), ()


def _tensor(memory: Memory, start: int, end: int, facts: tuple[torch.dtype, tuple[int, ...]]) -> torch.Tensor:
    dtype, shape = facts
    return torch.frombuffer(bytearray(memory[start:end]), dtype=dtype).reshape(shape).clone()


def _texts(memory: Memory, start: int, end: int, facts: tuple[type[Any], bytes]) -> Any:
    kind, lengths = facts
    text = str(memory[start:end], "utf-8", "surrogatepass")
    return kind([text[first:last] for first, last in _borders(0, lengths)])


def _pieces(memory: Memory, start: int, _: int, facts: tuple[type[Any], bytes]) -> Any:
    kind, lengths = facts
    return kind([memory[first:last] for first, last in _borders(start, lengths)])


def _borders(start: int, lengths: bytes) -> Iterator[tuple[int, int]]:
    """Return the first byte and the end of each of several contiguous pieces of these lengths."""
    return pairwise(accumulate(array("q", lengths), initial=start))


_own: SharedBatches | None = None


def _own_buffers() -> SharedBatches:
    global _own
    if _own is None or _own.process != os.getpid():
        _own = SharedBatches()
    return _own


def _sent(batch: HandedDict | HandedList) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the arguments with which a batch is pickled. Must not fail: the queue would lose the batch."""
    columns, keys = (list(batch.values()), list(batch)) if isinstance(batch, HandedDict) else (batch, None)
    packed = [_packed(column) for column in columns]
    forms, parts = [form for form, _ in packed], [part for _, some in packed for part in some]
    buffers, size = _own_buffers(), sum(form[1] for form in forms)
    handle = buffers.store(parts, size) if size >= LEAST_BYTES else None
    if handle is not None:
        return _from_buffer, (handle, forms, keys)
    return _from_message, (b"".join(parts), None if buffers.opened else buffers.probe, forms, keys)


def _from_buffer(handle: BatchHandle, forms: Sequence[Form], keys: Sequence[str] | None) -> Any:
    with batch_memory(handle) as memory:
        return _received(memory, forms, keys)


def _from_message(memory: bytes, probe: BatchHandle | None, forms: Sequence[Form], keys: Sequence[str] | None) -> Any:
    if probe is not None:
        empty_probe(probe)
    return _received(memory, forms, keys)


def _received(memory: Memory, forms: Sequence[Form], keys: Sequence[str] | None) -> Any:
    columns, start = list[Any](), 0
    for make, size, facts in forms:
        columns.append(facts if make is None else make(memory, start, start + size, facts))
        start += size
    return columns if keys is None else dict(zip(keys, columns, strict=True))


def _collated_lists(batch: Sequence[FieldList], *, collate_fn_map: Any = None) -> list[list[Any]]:  # noqa: ARG001
    """Return the lists of a batch as lists. Arrays in them become tensors, as elsewhere in a batch.

    PyTorch would transpose lists of one length, and refuse a batch in which their lengths differ.
    """
    return [[torch.as_tensor(v) if isinstance(v, np.ndarray) else v for v in each] for each in batch]


default_collate_fn_map[FieldList] = _collated_lists
for _first in (FirstDict, FirstTuple):
    default_collate_fn_map[_first] = _collated
for _handed in (HandedDict, HandedList):
    ForkingPickler.register(_handed, _sent)
