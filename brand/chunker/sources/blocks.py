"""Samples from Python -> their records, in blocks that are bounded by bytes.

A block is encoded column by column, which is fast if it holds many samples. It ends when its samples hold
`BLOCK_BYTES`, so a block holds a thousand short texts, or one volume of a hundred megabytes.

The bytes of a text, of a file's contents and of an array are known before they are encoded. Those of nested values
(JSON, lists of numbers) are not. With such fields, the largest record of a block also limits the number of samples of
the next block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.record import Records, encode_records

BLOCK_BYTES: Final = 4 << 20
MOST_SAMPLES: Final = 1024
_FIRST_SAMPLES: Final = 16
_GROWTH: Final = 8
_UNKNOWN: Final = (TypeError, KeyError, IndexError, AttributeError, ValueError)


def encoded(
    samples: Iterable[Mapping[str, Any]], schema: Schema, numbers: Sequence[int] | None = None
) -> Iterator[Records]:
    """Yield the records of samples, in blocks. `numbers` are their indices for messages; None: from 0 on.

    Raises `SchemaError`, which names the sample at fault.
    """
    sizes = [(name, _SIZES.get(codec, bytes_of_tree)) for name, codec in schema.variable]
    nested = any(codec not in _KNOWN for _, codec in schema.variable)
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


def bytes_of_array(value: Any) -> int:
    """Return the bytes of an array or a tensor; for lists of numbers, about those of the lists."""
    size = getattr(value, "nbytes", None)
    return bytes_of_tree(value) if size is None else int(size)


def bytes_of_tree(value: Any) -> int:
    """Return about how many bytes a nested value holds, as its two outermost levels tell."""
    if isinstance(value, dict):
        return sum(map(getsizeof, value.values()))
    return sum(map(getsizeof, value)) if isinstance(value, list | tuple) else getsizeof(value)


def bytes_of_file(value: Any) -> int:
    """Return the bytes of a file's contents, or of the pixels of a Pillow image."""
    if isinstance(value, bytes):
        return len(value)
    size = getattr(value, "size", None)  # of Pillow: width and height; pixels have up to four bytes
    return 4 * size[0] * size[1] if isinstance(size, tuple) and len(size) == 2 else len(value)


_KNOWN: Final = ("str", "bytes", "image", "audio")
"""Codecs of values whose size is known before they are encoded."""
_SIZES: Final[dict[str, Callable[[Any], int]]] = {
    "str": len,
    "bytes": len,
    "ndarray": bytes_of_array,
    "image": bytes_of_file,
    "audio": len,
}
