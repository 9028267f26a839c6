"""Samples from Python -> their records, in blocks that are bounded by bytes.

A block is encoded column by column, which is fast if it holds many samples. It ends when its samples hold
`BLOCK_BYTES`, so a block holds a thousand short texts, or one volume of a hundred megabytes.

The bytes of a text, of a file's contents and of an array are known before they are encoded. Those of nested values
(JSON, lists) are not: one of sixteen is looked at, and the largest record of a block limits the number of samples of
the next block.

A generator may fill one array, or one dict, again and again. So the first sample is encoded before the second one is
asked for. If the second one is in the memory of the first, each sample is encoded before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from sys import getsizeof
from types import NoneType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.record import Records, encode_records

BLOCK_BYTES: Final = 4 << 20
MOST_SAMPLES: Final = 1024
_KINDS: Final = {"str": 0, "bytes": 0, "audio": 0, "image": 1, "ndarray": 1}
"""Codec -> 0: the length is the size, 1: the value tells its size, 2: only all parts of the value tell it."""
_SELDOM: Final = 16
"""Of this many nested values, one is looked at, because that takes time."""
_GROWTH: Final = 8
_LOOKED_AT: Final = 8
_NUMBER_BYTES: Final = 32
"""Bytes of a Python number and its place in a list."""


def encoded(
    samples: Iterable[Mapping[str, Any]], schema: Schema, numbers: Sequence[int] | None = None
) -> Iterator[Records]:
    """Yield the records of samples, in blocks. `numbers` are their indices for messages; None: from 0 on.

    Raises `SchemaError`, which names the sample at fault.
    """
    iterator, pull = iter(samples), _Pull(schema)
    most, done = (1 if pull.nested else MOST_SAMPLES), 0
    alone, first = not isinstance(samples, list | tuple), None
    while block := pull.next(iterator, 1 if alone else most, partial(_called, numbers, done)):
        records = encode_records(schema, block, _called(numbers, done, len(block)))
        if done == 0:
            first = block[0], [block[0][name] for name in schema.names]
        elif first is not None:
            (sample, values), first = first, None
            alone &= sample is block[0] or any(
                _is_shared(v, block[0][n]) for n, v in zip(schema.names, values, strict=True)
            )
            del sample, values
        if pull.nested:
            most = min(MOST_SAMPLES, _GROWTH * most, max(1, BLOCK_BYTES // max(1, int(records.sizes.max()))))
        done += len(block)
        del block  # large samples are freed before their records are written
        yield records
        del records


class _Pull:
    """Takes the samples of a block from an iterator."""

    def __init__(self, schema: Schema) -> None:
        self.plain, self.single, self.nested = (
            [name for name, codec in schema.variable if _KINDS.get(codec, 2) == kind] for kind in range(3)
        )

    def next(
        self, iterator: Iterator[Mapping[str, Any]], most: int, called: Callable[[int], Sequence[int]]
    ) -> list[Mapping[str, Any]]:
        """Return the next samples: `most`, or those that hold `BLOCK_BYTES`; an empty list at the end.

        `called` returns the numbers of so many samples. An error of the iterator gets a note with that of the sample.
        """
        block: list[Mapping[str, Any]] = []
        plain, single, nested, held = self.plain, self.single, self.nested, 0
        try:
            for sample in islice(iterator, most):
                block.append(sample)
                try:
                    for name in plain:
                        held += len(sample[name])
                    for name in single:
                        held += bytes_of(sample[name])
                    if nested and not len(block) % _SELDOM:
                        held += _SELDOM * sum(bytes_of(sample[name]) for name in nested)
                except Exception:  # noqa: BLE001 - encoding refuses the sample, or finds its size
                    break
                if held >= BLOCK_BYTES:
                    break
        except Exception as error:
            error.add_note(f"while reading sample {called(len(block) + 1)[-1]}")
            raise
        return block


def _is_shared(first: Any, second: Any) -> bool:
    """Return whether two values of samples that follow each other are in one memory, which can change."""
    if first is second:
        return not isinstance(first, str | bytes | int | float | NoneType)
    at = [np.asarray(value).__array_interface__["data"] for value in (first, second) if _is_in_place(value)]
    return len(at) == 2 and at[0] == at[1] and not at[0][1]


def _is_in_place(value: Any) -> bool:
    """Return whether NumPy sees a value where it is, without a copy: an array, a tensor, a view of memory."""
    return bool(getattr(value, "nbytes", 0)) or (isinstance(value, bytearray) and bool(value))


def _called(numbers: Sequence[int] | None, done: int, count: int) -> Sequence[int]:
    return range(done, done + count) if numbers is None else numbers[done : done + count]


def cut(sizes: NDArray[np.integer[Any]], most: int = MOST_SAMPLES) -> list[tuple[int, int]]:
    """Return begin and end of each block of samples that hold these bytes. Pure."""
    return [
        (start, min(start + most, high))
        for low, high in cut_blocks(sizes, BLOCK_BYTES)
        for start in range(low, high, most)
    ]


def bytes_of(value: Any) -> int:
    """Return about how many bytes a value holds; of a long list, a few values are looked at."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple | dict):
        return _bytes_of_all(list(value.values()) if isinstance(value, dict) else value)
    size = getattr(value, "nbytes", None)  # of arrays, tensors and views of memory
    if size is not None:
        return int(size)
    size = getattr(value, "size", None)  # of a Pillow image: width and height; pixels have up to four bytes
    return 4 * int(size[0]) * int(size[1]) if isinstance(size, tuple) and len(size) == 2 else getsizeof(value)


def _bytes_of_all(values: Sequence[Any]) -> int:
    if not values or isinstance(values[0], int | float):
        return _NUMBER_BYTES * len(values)
    if len(values) <= _LOOKED_AT:
        return sum(map(bytes_of, values))
    return sum(map(bytes_of, values[:: len(values) // _LOOKED_AT])) * len(values) // _LOOKED_AT
