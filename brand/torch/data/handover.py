"""How does a worker of a DataLoader send a batch to the training process? All samples together, not one by one.

    samples    the data set marks the first sample of a batch that a worker has fetched
    collated   PyTorch's `default_collate` looks up the type of the first sample, finds `_collated` here, and so makes
               its usual batch, a dict or a list, but of a type of this module
    sent       that type is pickled between processes in another way: the bytes of strings, bytes and small tensors are
               concatenated in a buffer (`brand.torch.data.crates`) or in the message
    received   a plain dict or list, with the same values

PyTorch pickles each string, copies all bytes through a pipe, and passes a file descriptor for each small tensor. If a
loader has a `collate_fn` that does not call `default_collate`, batches are sent as PyTorch does it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from mmap import mmap
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from brand.torch.data.crates import BatchHandle, SharedBatches, empty_probe, unstowed

LEAST_BYTES: Final = 1 << 16
"""Fewer bytes are sent in the message: a pipe holds this many."""
SMALL_TENSOR: Final = 1 << 16
"""Smaller tensors are sent with the strings; PyTorch shares larger tensors in memory."""


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
    made = collate([plain, *others], collate_fn_map=collate_fn_map)
    return HandedDict(made) if isinstance(made, dict) else HandedList(made)


Form = tuple[Callable[..., Any] | None, int, Any]
"""The stored form of a column: a function that restores it, the size of its bytes, and the function's other arguments.

If the function is None, the last element is the column itself, which is pickled.
"""
Memory = bytes | mmap


def _packed(column: Any) -> tuple[Form, Sequence[bytes]]:
    """Return the form of a column in the memory of its batch, and its bytes."""
    kind = type(column)
    if kind is torch.Tensor:
        dense = column.layout is torch.strided and column.device.type == "cpu" and not column.requires_grad
        if dense and column.dim() and 0 < column.nbytes < SMALL_TENSOR:
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


def _crates() -> SharedBatches:
    """Return the buffers of this process."""
    global _own
    if _own is None or _own.process != os.getpid():
        _own = SharedBatches()
    return _own


def _sent(batch: HandedDict | HandedList) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the arguments with which a batch is pickled. Must not fail: the queue would lose the batch."""
    columns, keys = (list(batch.values()), list(batch)) if isinstance(batch, HandedDict) else (batch, None)
    packed = [_packed(column) for column in columns]
    forms, parts = [form for form, _ in packed], [part for _, some in packed for part in some]
    crates, size = _crates(), sum(form[1] for form in forms)
    slip = crates.stow(parts, size) if size >= LEAST_BYTES else None
    if slip is not None:
        return _from_crate, (slip, forms, keys)
    return _from_message, (b"".join(parts), None if crates.opened else crates.probe, forms, keys)


def _from_crate(slip: BatchHandle, forms: Sequence[Form], keys: Sequence[str] | None) -> Any:
    with unstowed(slip) as memory:
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


for _first in (FirstDict, FirstTuple):
    default_collate_fn_map[_first] = _collated
for _handed in (HandedDict, HandedList):
    ForkingPickler.register(_handed, _sent)
