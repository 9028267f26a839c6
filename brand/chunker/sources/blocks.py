"""Samples from Python -> their records, in blocks that are bounded by bytes.

A block is encoded column by column, which is fast if it holds many samples. It ends when its samples hold
`BLOCK_BYTES`, so a block holds a thousand short texts, or one volume of a hundred megabytes.

The bytes of a text, of a file's contents and of an array are known before they are encoded. Those of nested values
(JSON, lists of numbers) are not. With such fields, the largest record of a block also limits the number of samples of
the next block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.record import Records, encode_records

BLOCK_BYTES: Final = 4 << 20
MOST_SAMPLES: Final = 1024
_PLAIN: Final = ("str", "bytes", "audio")
"""Codecs of values whose length is their size."""
_FIRST_SAMPLES: Final = 16
_GROWTH: Final = 8
_UNKNOWN: Final = (TypeError, KeyError, IndexError, AttributeError, ValueError)


def encoded(
    samples: Iterable[Mapping[str, Any]], schema: Schema, numbers: Sequence[int] | None = None
) -> Iterator[Records]:
    """Yield the records of samples, in blocks. `numbers` are their indices for messages; None: from 0 on.

    Raises `SchemaError`, which names the sample at fault.
    """
    sizes = [(name, len if codec in _PLAIN else bytes_of) for name, codec in schema.variable]
    nested = any(codec not in (*_PLAIN, "image") for _, codec in schema.variable)
    most = _FIRST_SAMPLES if nested else MOST_SAMPLES
    block: list[Mapping[str, Any]] = []
    done = held = 0
    for sample in samples:
        block.append(sample)
        try:
            for name, size in sizes:
                held += size(sample[name])
        except _UNKNOWN:  # encoding refuses the sample, or finds its size
            held = BLOCK_BYTES
        if held >= BLOCK_BYTES or len(block) >= most:
            records = encode_records(schema, block, _called(numbers, done, len(block)))
            if nested:
                most = min(MOST_SAMPLES, _GROWTH * most, max(1, BLOCK_BYTES // max(1, int(records.sizes.max()))))
            done += len(block)
            block, held = [], 0
            del sample  # a large sample is freed before its record is written
            yield records
            del records
    if block:
        yield encode_records(schema, block, _called(numbers, done, len(block)))


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
    """Return about how many bytes a value holds; for nested values, as their two outermost levels tell."""
    if isinstance(value, str | bytes):
        return len(value)
    size = getattr(value, "nbytes", None)  # of arrays, tensors and views of memory
    if size is not None:
        return int(size)
    size = getattr(value, "size", None)  # of a Pillow image: width and height; pixels have up to four bytes
    if isinstance(size, tuple) and len(size) == 2:
        return 4 * int(size[0]) * int(size[1])
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return getsizeof(value)
    return sum(map(getsizeof, value))
