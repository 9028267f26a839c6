"""The folders that mosaicml-streaming writes: `index.json`, and shards in the format MDS.

    str                      str      jpeg, png                image
    int, uint8 ... int64     int      bytes                    image or audio if the first are such files, else bytes
    str_int                  int      pil                      image: the pixels as PNG, which loses nothing
    float16 ... float64      float    ndarray, with dtype and shape or without   ndarray
    str_float                float    str_decimal              str          json   json

`pkl` is refused, because reading it could run any program; lists of images are refused, because a field holds one.
Shards may be compressed with zstd, gzip or bzip2. A shard is

    samples (u32) | begin of each, and end of the last (u32 each) | the columns as JSON | samples

and a sample is the sizes of its columns of variable size (u32 each), then the values. All numbers are little-endian.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from brand.chunker.importers.fields import FieldMapping, choose, is_read
from brand.chunker.importers.files import (
    at_offsets,
    below,
    index_errors,
    indexed_folder,
    listed_file,
    pixels,
    reading,
    scalar,
    settled,
)
from brand.chunker.sources.blocks import BLOCK_BYTES, MOST_SAMPLES
from brand.chunker.sources.objects import SourcePath, source_path
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import SourceError, UsageError, cause_of
from brand.formats.record import Numbered

_SCALARS: Final = [f"{kind}{bits}" for kind in ("uint", "int", "float") for bits in (8, 16, 32, 64)]
_DTYPES: Final = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4", 64: "<u8", 65: "<i8", 66: "<f8"
}  # fmt: skip
"""Number of a dtype in the payload of an `ndarray`."""
_SUFFIXES: Final = {"zstd": ".zst", "gz": ".gz", "bz2": ".bz2"}
"""Compression by its name in the index -> its name in `reading`."""


def _contents(data: bytes) -> bytes:
    return data


_READERS: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "str": ("str", bytes.decode),
    "bytes": ("?", _contents),
    "int": ("int", partial(scalar, np.dtype("<i8"))),
    "str_int": ("int", int),
    "str_float": ("float", float),
    "str_decimal": ("str", bytes.decode),
    "jpeg": ("image", _contents),
    "png": ("image", _contents),
    "pil": ("image", pixels),
    "json": ("json", json.loads),
}


class Mds(Shards):
    """A folder of MDS shards."""

    kind = "mds"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        root = indexed_folder(source_path(src), choice.split)
        index = root / "index.json"
        with index_errors(index, "MDS shards"):
            self._shards = [_ShardFacts(root, shard) for shard in json.loads(index.read_bytes())["shards"]]
        if not self._shards:
            raise SourceError(str(index), "it lists no shards")
        self._encodings = self._shards[0].encodings
        for shard in self._shards:
            if shard.encodings != self._encodings:
                raise SourceError(
                    shard.file.name, f"its columns are not those of {self._shards[0].file.name}: {shard.encodings}"
                )
        taken = {c: e for c, e in self._encodings.items() if is_read(c, choice)}
        self._readers = {column: _reader(column, encoding) for column, encoding in taken.items()}
        codecs = {column: codec for column, (codec, _) in self._readers.items()}
        first = (row for row, _ in self._sized(0) if not isinstance(row, Bad))
        self._fields = choose(settled(codecs, first), choice)
        files = ((shard.file, shard.samples) for shard in self._shards)
        shards = (Shard(file.name, file.bytes, file.mark, samples) for file, samples in files)
        super().__init__(shards, self._fields.schema, self._fields.choice, self._fields.renamed)

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the samples of one shard, as `Shards.read` does."""
        rows, places, held = list[dict[str, Any]](), list[int](), 0
        for position, (row, size) in enumerate(self._sized(number)):
            if isinstance(row, Bad):
                yield row
                continue
            rows.append(row)
            places.append(position)
            held += size
            if held >= BLOCK_BYTES or len(rows) >= MOST_SAMPLES:
                yield self._fields.block_of_rows(rows, Numbered(places))
                rows, places, held = [], [], 0
        if rows:
            yield self._fields.block_of_rows(rows, Numbered(places))

    def _sized(self, number: int) -> Iterator[tuple[dict[str, Any] | Bad, int]]:
        """Yield the samples of a shard, and their stored sizes. Raises `SourceError` if the shard is damaged."""
        shard = self._shards[number]
        head = struct.Struct(f"<{sum(size is None for size in shard.sizes)}I")
        with reading(shard.file.path, shard.file.name, packed=shard.packed) as file:
            try:
                for position, data in enumerate(at_offsets(file, shard.samples, shard.raw_bytes)):
                    try:
                        row: dict[str, Any] | Bad = self._row(shard.sizes, head, data)
                    except Exception as error:  # noqa: BLE001 - readers of damaged values raise many kinds
                        row = Bad(f"sample {position}", f"it cannot be read: {cause_of(error)}")
                    yield row, len(data)
            except EOFError as error:
                raise SourceError(shard.file.name, str(error)) from error

    def _row(self, sizes: Sequence[int | None], head: struct.Struct, data: bytes | memoryview) -> dict[str, Any]:
        """Return a sample; the contents of files without a copy if they are large.

        Raises ValueError if the sizes of its columns do not fit, and what the readers raise.
        """
        variable, start = iter(head.unpack_from(data)), head.size
        row = {}
        for column, size in zip(self._encodings, sizes, strict=True):
            end = start + (next(variable) if size is None else size)
            if column in self._readers:
                read, value = self._readers[column][1], data[start:end]
                row[column] = value if read is _contents else read(bytes(value))
            start = end
        if start != len(data):
            raise ValueError(f"its columns end at byte {start} of {len(data)}")
        return row


class _ShardFacts:
    """The entry of one shard in the index. Raises ValueError, KeyError, TypeError if the entry is invalid."""

    def __init__(self, root: SourcePath, told: Mapping[str, Any]) -> None:
        if told["format"] != "mds" or told["version"] != 2:
            raise ValueError(
                f"a shard has the format {told['format']!r}, version {told['version']!r}, and only MDS 2 is read"
            )
        raw, packed = told["raw_data"], told.get("zip_data")
        facts, self.packed = raw, ""
        if packed and not below(root, str(raw["basename"])).exists():
            facts = packed
            kind = str(told["compression"]).partition(":")[0]
            self.packed = _SUFFIXES.get(kind, "")
            if not self.packed:
                raise ValueError(f"shards compressed with {kind!r} are not read; those with {', '.join(_SUFFIXES)} are")
        self.raw_bytes, self.samples, expected = int(raw["bytes"]), int(told["samples"]), int(facts["bytes"])
        self.encodings: dict[str, str] = dict(zip(told["column_names"], told["column_encodings"], strict=True))
        self.sizes: Sequence[int | None] = [None if not size else int(size) for size in told["column_sizes"]]
        self.file = listed_file(root, str(facts["basename"]))
        if self.file.bytes != expected:
            what = f"it has {self.file.bytes:,} bytes, and index.json says {expected:,}"
            raise SourceError(self.file.name, what, hint="The shard is truncated, or another one")


def _reader(column: str, encoding: str) -> tuple[str, Callable[[bytes], Any]]:
    """Return the codec of a column, and the reader of a payload; the codec is `?` if it depends on the values."""
    kind, _, more = encoding.partition(":")
    if kind in _READERS:
        return _READERS[kind]
    if kind in _SCALARS:
        return ("float" if "float" in kind else "int"), partial(scalar, np.dtype(kind).newbyteorder("<"))
    if kind == "ndarray":
        dtype_name, _, shape = more.partition(":")
        known = tuple(map(int, shape.split(","))) if shape else None
        dtype = np.dtype(dtype_name).newbyteorder("<") if dtype_name else None
        return "ndarray", partial(_array, dtype, known)
    others = f"leave it out: --columns names the columns to read. Or write {column!r} again with the encoding bytes"
    why = "a pickle, and reading one can run any program" if kind == "pkl" else "not one value that a field holds"
    raise UsageError(f"column {column!r} has the encoding {encoding!r}, which is {why}; {others}")


def _array(dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, data: bytes) -> Any:
    """Return the array of a payload. Dtype and shape are in the encoding, or in the payload itself."""
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_DTYPES[data[0]]), 1
    if shape is None:
        count, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", count, at + 1).tolist())
        at += 1 + count * width
    return np.frombuffer(data, dtype, offset=at).reshape(shape)
