"""Samples from Python -> their records, in blocks that are bounded by bytes.

A block is encoded column by column, which is fast if it holds many samples. It ends when its samples hold
`BLOCK_BYTES`, so a block holds a thousand short texts, or one volume of a hundred megabytes.

The bytes of a text, of a file's contents and of an array are known before they are encoded. Those of nested values
(JSON, lists) are not: one of sixteen is looked at, and the largest record of a block limits the number of samples of
the next block.

A generator may fill the same arrays, or the same dicts, again and again. So the samples of the first block are encoded
one by one, each before the next one is asked for, and once more together. If that gives other records, then samples of
a block are in one memory, and each sample is encoded before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError
from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.record import Records, encode_records, together

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
    alone = not isinstance(samples, list | tuple)
    trial = _FirstBlock(schema) if alone else None
    while block := pull.next(iterator, 1 if alone else most, partial(_called, numbers, done)):
        records = encode_records(schema, block, _called(numbers, done, len(block)))
        if pull.nested:
            most = min(MOST_SAMPLES, _GROWTH * most, max(1, BLOCK_BYTES // max(1, int(records.sizes.max()))))
        done += len(block)
        if trial is not None and trial.takes(block[0], records):
            if not trial.full:
                continue
            records, alone, trial = trial.records(), trial.changed(), None
        elif trial is not None and trial.taken:
            yield trial.records()
            trial = _FirstBlock(schema)
        del block  # large samples are freed before their records are written
        yield records
        del records
    if trial is not None and trial.taken:
        yield trial.records()


class _FirstBlock:
    """The samples of a first block, each with the record that it had when it was the last one."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._bytes = schema, 0
        self.taken: list[tuple[Mapping[str, Any], Records]] = []

    def takes(self, sample: Mapping[str, Any], records: Records) -> bool:
        """Take a sample, unless it is as large as a block: it is always encoded alone."""
        # The pixels of a picture may be many times its record.
        size = max(int(records.sizes[0]), sum(bytes_of(sample[name]) for name in self._schema.names))
        if size < BLOCK_BYTES:
            self.taken.append((sample, records))
            self._bytes += size
        return size < BLOCK_BYTES

    @property
    def full(self) -> bool:
        return len(self.taken) == MOST_SAMPLES or self._bytes >= BLOCK_BYTES

    def records(self) -> Records:
        """Return these records, one after the other."""
        sizes = np.array([int(records.sizes[0]) for _, records in self.taken], np.int64)
        return Records.side_by_side(together([records.view(0) for _, records in self.taken]), sizes)

    def changed(self) -> bool:
        """Return whether the samples have other records now."""
        try:
            again = encode_records(self._schema, [sample for sample, _ in self.taken], range(len(self.taken)))
        except SchemaError:
            return True
        return any(bytes(again.view(at)) != bytes(then.view(0)) for at, (_, then) in enumerate(self.taken))


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
