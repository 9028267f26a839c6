"""Samples from Python -> their records, in blocks that are bounded by bytes.

A block is encoded column by column, which is fast if it holds many samples. It ends when its samples hold
`BLOCK_BYTES`, so a block holds a thousand short texts, or one volume of a hundred megabytes.

The bytes of a text, of a file's contents and of an array are known before they are encoded. Those of nested values
(JSON, lists) are not: one of sixteen is looked at, and the largest record of a block limits the number of samples of
the next block.

A generator may fill the same arrays, or the same dicts, again and again. So each sample of the first block is copied,
if it is a dict of constants, or encoded before the next one is asked for; all are compared with what they hold at the
end. If one has changed, then samples share memory, and each sample of the generator is encoded before the next. After a
first block of constants, the first list, array or picture begins such a block again.
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
_CONSTANTS: Final = frozenset((str, bytes, int, float, bool, type(None)))
"""Types of values that cannot change."""
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
    trial = None if isinstance(samples, list | tuple) else _FirstBlock(schema)
    alone = trial is not None
    while block := pull.next(iterator, 1 if alone else most, partial(_called, numbers, done)):
        called = _called(numbers, done, len(block))
        done += len(block)
        if trial is None:
            records = encode_records(schema, block, called)
        elif (single := trial.take(block[0], called)) is not None:
            if trial.samples:
                yield trial.records()
            trial, records = _FirstBlock(schema, plain=False), single
        elif trial.full:
            records, alone = trial.records(), trial.changed()
            if trial.plain and not alone:
                pull.watch()
            trial = None
        else:
            continue
        if pull.ended:  # by a value that may change: this sample is encoded, and the next ones are tried
            alone, trial = True, _FirstBlock(schema, plain=False)
        if pull.nested:
            most = min(MOST_SAMPLES, _GROWTH * len(records), max(1, BLOCK_BYTES // max(1, int(records.sizes.max()))))
        del block  # large samples are freed before their records are written
        yield records
        del records
    if trial is not None and trial.samples:
        yield trial.records()


class _FirstBlock:
    """The samples of a first block, each with what it held when it was the last one.

    That is a copy of the sample while all are dicts of constants (`plain`), else its record.
    """

    def __init__(self, schema: Schema, *, plain: bool = True) -> None:
        self._schema, self.plain, self._bytes = schema, plain, 0
        self.samples: list[Mapping[str, Any]] = []
        self._numbers: list[int] = []
        self._copies: list[dict[str, Any]] = []
        self._records: list[Records] = []

    def take(self, sample: Mapping[str, Any], called: Sequence[int]) -> Records | None:
        """Take a sample, or return its record if it is as large as a block, or the first that is not plain."""
        plain = self.plain and type(sample) is dict and _CONSTANTS.issuperset(map(type, sample.values()))
        if not self.samples:
            self.plain = plain
        records = None if plain else encode_records(self._schema, [sample], called)
        # The pixels of a picture may be many times its record.
        size = max(sum(map(bytes_of, sample.values())), 0 if records is None else int(records.sizes[0]))
        if size >= BLOCK_BYTES or plain != self.plain:
            return encode_records(self._schema, [sample], called) if records is None else records
        if records is None:
            self._copies.append(dict(sample))
        else:
            self._records.append(records)
        self.samples.append(sample)
        self._numbers.extend(called)
        self._bytes += size
        return None

    @property
    def full(self) -> bool:
        return len(self.samples) == MOST_SAMPLES or self._bytes >= BLOCK_BYTES

    def records(self) -> Records:
        """Return the records of the samples, as they were, one after the other."""
        if self.plain:
            return encode_records(self._schema, self._copies, self._numbers)
        sizes = np.array([int(records.sizes[0]) for records in self._records], np.int64)
        return Records.side_by_side(together([records.view(0) for records in self._records]), sizes)

    def changed(self) -> bool:
        """Return whether samples changed when later ones were made."""
        if self.plain:
            return len(set(map(id, self.samples))) < len(self.samples) or self.samples != self._copies
        try:
            again = encode_records(self._schema, self.samples, self._numbers)
        except SchemaError:
            return True
        return any(bytes(again.view(at)) != bytes(then.view(0)) for at, then in enumerate(self._records))


class _Pull:
    """Takes the samples of a block from an iterator."""

    def __init__(self, schema: Schema) -> None:
        self.plain, self.single, self.nested = (
            [name for name, codec in schema.variable if _KINDS.get(codec, 2) == kind] for kind in range(3)
        )
        self._watches = False
        self.ended = False
        """Whether the last block ended with a sample that has other values than constants."""

    def watch(self) -> None:
        """End a block with the first sample that has other values than constants."""
        self._watches = True

    def next(
        self, iterator: Iterator[Mapping[str, Any]], most: int, called: Callable[[int], Sequence[int]]
    ) -> list[Mapping[str, Any]]:
        """Return the next samples: `most`, or those that hold `BLOCK_BYTES`; an empty list at the end.

        `called` returns the numbers of so many samples. An error of the iterator gets a note with that of the sample.
        """
        block: list[Mapping[str, Any]] = []
        self.ended = False
        plain, others, held = self.plain, bool(self.single or self.nested), 0
        try:
            for sample in islice(iterator, most):
                block.append(sample)
                try:
                    for name in plain:
                        held += len(sample[name])
                    if others:
                        held += self._bytes_of_others(sample, len(block))
                        if self._watches and self._may_change(sample):
                            self._watches, self.ended = False, True
                            break
                except Exception:  # noqa: BLE001 - encoding refuses the sample, or finds its size
                    break
                if held >= BLOCK_BYTES:
                    break
        except Exception as error:
            error.add_note(f"while reading sample {called(len(block) + 1)[-1]}")
            raise
        return block

    def _may_change(self, sample: Mapping[str, Any]) -> bool:
        return not _CONSTANTS.issuperset([type(sample[name]) for name in (*self.single, *self.nested)])

    def _bytes_of_others(self, sample: Mapping[str, Any], count: int) -> int:
        """Return the bytes of fields that are not plain, or an estimate for several samples; `count` is its number."""
        held = sum(bytes_of(sample[name]) for name in self.single)
        return held if count % _SELDOM else held + _SELDOM * sum(bytes_of(sample[name]) for name in self.nested)


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
