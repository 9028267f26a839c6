"""The folders that LitData's `optimize` writes: `index.json`, and chunks of samples.

    str, text       str        jpeg, image            image
    int, bool       int        pil                    image: the pixels as PNG, which loses nothing
    float           float      audio                  audio
    bytes, file     image or audio if the first are such files, else bytes
    numpy, tensor   ndarray; so are those of one dimension, whose format has the dtype (`no_header_tensor:17`)

A field has the name of its key; within nested dicts and lists, the names on the path to it, joined by `_`. A sample
that is one value has the field `value`. `pickle` is refused, because reading it could run any program; so are formats
that are not in this table, unless `--columns` leaves them out. Chunks are read plain, or compressed as a whole with
zstd.

Plain rows (texts, numbers, bytes, lists and dicts, without arrays) are stored as Arrow, which needs pyarrow:

    samples (u32) | offsets, which mean nothing here | rows as an Arrow file or stream | its size (u32) | magic
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from brand.chunker.importers.arrow import arrow, arrow_errors, arrow_file, validated
from brand.chunker.importers.arrowfields import ArrowFields, ArrowShards, first_arrays
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
from brand.chunker.sources.blocks import BLOCK_BYTES
from brand.chunker.sources.objects import SourcePath, source_path
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import SourceError, UsageError, cause_of
from brand.formats.record import Numbered

_TORCH: Final = "f4,f4,f8,f8,c8,c8,c16,c16,f2,f2,bf16,u1,i1,i2,i2,i4,i4,i8,i8,?,u2"
_NUMPY: Final = "i1,i2,i4,i8,u1,u2,u4,u8,f2,f4,f8,c8,c16,?"
"""Dtypes by their number in LitData, from 0 on."""

_FLAT: Final = {"no_header_numpy": _NUMPY, "no_header_tensor": _TORCH}
_LOOKED_AT_CHUNKS: Final = 3
_MAGIC: Final = b"LDARW01\0"
_END: Final = struct.Struct("<I8s")
_FILE: Final = b"ARROW1"
"""The first bytes of an Arrow file; anything else is an Arrow stream."""


class LitData(Shards):
    """A folder of LitData chunks."""

    kind = "litdata"

    def __init__(self, root: SourcePath, choice: FieldMapping) -> None:
        index = root / "index.json"
        with index_errors(index, "LitData chunks"):
            told = json.loads(index.read_bytes())
            config = told["config"]
            _refuse(config)
            formats = [str(name) for name in config["data_format"]]
            names = list(_names(json.loads(config["data_spec"])[1]))
            self._packed = bool(config.get("compression"))
            self._chunks = [_chunk(root, chunk) for chunk in told["chunks"]]
            self._offered = dict(zip(names, formats, strict=True))
        if not self._chunks:
            raise SourceError(str(index), "it lists no chunks")
        taken = {name: kind for name, kind in self._offered.items() if is_read(name, choice)}
        self._readers = {name: _reader(name, kind) for name, kind in taken.items()}
        codecs = {name: codec for name, (codec, _) in self._readers.items()}
        first = (row for row, _ in self._sized(0) if not isinstance(row, Bad))
        self._fields = choose(settled(codecs, first), choice)
        shards = (shard for _, shard in self._chunks)
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
            if held >= BLOCK_BYTES:
                yield self._fields.block_of_rows(rows, Numbered(places))
                rows, places, held = [], [], 0
        if rows:
            yield self._fields.block_of_rows(rows, Numbered(places))

    def _sized(self, number: int) -> Iterator[tuple[dict[str, Any] | Bad, int]]:
        """Yield the samples of a chunk, and their stored sizes. Raises `SourceError` if the chunk is damaged."""
        (path, shard), head = self._chunks[number], struct.Struct(f"<{len(self._offered)}I")
        with reading(path, shard.name, packed=".zst" if self._packed else "") as file:
            try:
                for position, data in enumerate(at_offsets(file, shard.samples or 0, None)):
                    if not data and position == 0:
                        raise EOFError("its samples are empty, and those of other chunks are not")
                    try:
                        row: dict[str, Any] | Bad = self._row(head, data)
                    except Exception as error:  # noqa: BLE001 - readers of damaged values raise many kinds
                        row = Bad(f"sample {position}", f"it cannot be read: {cause_of(error)}")
                    yield row, len(data)
            except EOFError as error:
                raise SourceError(shard.name, str(error)) from error

    def _row(self, head: struct.Struct, data: bytes | memoryview) -> dict[str, Any]:
        """Return a sample. Raises ValueError if the sizes of its fields do not fit, and what the readers raise."""
        start, row = head.size, {}
        for name, size in zip(self._offered, head.unpack_from(data), strict=True):
            if name in self._readers:
                row[name] = self._readers[name][1](bytes(data[start : start + size]))
            start += size
        if start != len(data):
            raise ValueError(f"its fields end at byte {start} of {len(data)}")
        return row


def _refuse(config: Mapping[str, Any]) -> None:
    loader, packed = config.get("item_loader"), config.get("compression")
    if config.get("encryption"):
        raise UsageError("the chunks are encrypted: write them with LitData again, without encryption")
    if loader == "ParquetLoader":
        raise UsageError("the chunks are Parquet files: `brand convert parquet` reads them")
    if loader not in (None, "PyTreeLoader"):
        raise UsageError(f"the chunks are for LitData's {loader}, and only those for its PyTreeLoader are read")
    level = config.get("compression_level") or "chunk"
    if packed and (not str(packed).startswith("zstd") or level != "chunk"):
        raise UsageError(f"the chunks are compressed ({packed}, {level}): write them with compression_level='chunk'")


def _chunk(root: SourcePath, chunk: Mapping[str, Any]) -> tuple[SourcePath, Shard]:
    """Return a chunk that the index names. Raises as `listed_file` does."""
    name, samples = str(chunk["filename"]), int(chunk["chunk_size"])
    file = listed_file(root, name)
    return file.path, Shard(name, file.bytes, file.mark, samples)


def _names(spec: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of the values of a sample, in their order."""
    children, context = spec["children_spec"], spec.get("context")
    if spec["type"] is None:
        yield "_".join(path) or "value"
        return
    keys = json.loads(context) if isinstance(context, str) and context.startswith("[") else None
    names = keys if isinstance(keys, list) and len(keys) == len(children) else range(len(children))
    for name, child in zip(names, children, strict=True):
        yield from _names(child, (*path, str(name)))


def _reader(name: str, kind: str) -> tuple[str, Callable[[bytes], Any]]:
    """Return the codec of a field, and the reader of a payload; the codec is `?` if it depends on the values."""
    base, _, number = kind.partition(":")
    if base in _READERS:
        return _READERS[base]
    if base in _FLAT:
        return "ndarray", partial(np.frombuffer, dtype=_dtype(_FLAT[base], int(number)))
    why = "a pickle, and reading one can run any program" if base == "pickle" else "not a value that a field holds"
    raise UsageError(
        f"{name!r} has the format {kind!r}, which is {why}: leave it out (--columns names those to read), or write it"
        " again as text, number, array or bytes"
    )


def _dtype(names: str, number: int) -> np.dtype[Any]:
    name = names.split(",")[number]
    if name == "bf16":
        raise UsageError("a tensor of bfloat16: NumPy has no such numbers; write it again as float32")
    return np.dtype(name).newbyteorder("<")


def _array(names: str, order: str, data: bytes) -> Any:
    """Return the array that follows the number of its dtype, the number of its dimensions, and its shape, each u32."""
    number, dimensions = struct.unpack_from(f"{order}II", data)
    shape = struct.unpack_from(f"{order}{dimensions}I", data, 8)
    return np.frombuffer(data, _dtype(names, number), offset=8 + 4 * dimensions).reshape(shape)


_READERS: Final[dict[str, tuple[str, Callable[[bytes], Any]]]] = {
    "str": ("str", bytes.decode),
    "text": ("str", bytes.decode),
    "int": ("int", partial(scalar, np.dtype("<i8"))),
    "bool": ("int", partial(scalar, np.dtype("?"))),
    "float": ("float", partial(scalar, np.dtype("<f8"))),
    "bytes": ("?", bytes),
    "file": ("?", bytes),
    "jpeg": ("image", bytes),
    "image": ("image", bytes),
    "audio": ("audio", bytes),
    "pil": ("image", pixels),
    "numpy": ("ndarray", partial(_array, _NUMPY, "<")),
    "tensor": ("ndarray", partial(_array, _TORCH, ">")),
}


class LitDataRows(ArrowShards):
    """A folder of LitData chunks whose rows are Arrow."""

    kind = "litdata"

    def __init__(self, root: SourcePath, choice: FieldMapping) -> None:
        index = root / "index.json"
        with index_errors(index, "LitData chunks"):
            told = json.loads(index.read_bytes())
            _refuse(told["config"])
            self._chunks = [_chunk(root, chunk) for chunk in told["chunks"]]
        first = next(self._batches(0), None)
        if first is None:
            raise SourceError(self._chunks[0][1].name, "it holds no rows")
        columns = ArrowFields(first.schema, lambda name: first_arrays(first.column(name)), choice)
        super().__init__((shard for _, shard in self._chunks), columns)

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the samples of one shard, as `Shards.read` does."""
        yield from self._columns.blocks(self._checked(number))

    def _checked(self, number: int) -> Iterator[Any]:
        for batch in self._batches(number):
            self._columns.check(self.shards[number].name, batch.schema, self.shards[0].name)
            yield batch

    def _batches(self, number: int) -> Iterator[Any]:
        """Yield batches of some hundred rows. Raises `SourceError` if the chunk is damaged."""
        library, (path, shard) = arrow(), self._chunks[number]
        with arrow_errors(shard.name, "it is damaged or truncated"), arrow_file(path) as file:
            whole = file.read_buffer()
            size, magic = _END.unpack(whole.slice(whole.size - _END.size))
            start = whole.size - _END.size - size
            if magic != _MAGIC or start < 0:
                raise SourceError(shard.name, "it does not end with rows of Arrow, as the first chunk does")
            rows = library.BufferReader(whole.slice(start, size))
            if whole.slice(start, len(_FILE)).to_pybytes() != _FILE:
                yield from validated(library.ipc.open_stream(rows))
                return
            reader = library.ipc.open_file(rows)
            yield from validated(map(reader.get_batch, range(reader.num_record_batches)))


def open_litdata(src: str | os.PathLike[str], choice: FieldMapping) -> LitData | LitDataRows:
    """Return the source in a folder of LitData. Raises `SourceError`, `UsageError`, `MissingExtraError`."""
    root = indexed_folder(source_path(src), choice.split)
    return LitDataRows(root, choice) if _has_rows(root) else LitData(root, choice)


def _has_rows(root: SourcePath) -> bool:
    """Return whether any of the first chunks ends with rows of Arrow: one may be damaged.

    If none can be read, `LitData` reports the error.
    """
    try:
        names = [str(chunk["filename"]) for chunk in json.loads((root / "index.json").read_bytes())["chunks"]]
    except Exception:  # noqa: BLE001 - the index may hold anything in place of what is read from it
        return False
    return any(_ends_with_rows(root, name) for name in names[:_LOOKED_AT_CHUNKS])


def _ends_with_rows(root: SourcePath, name: str) -> bool:
    try:
        with below(root, name).open("rb") as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except (OSError, ValueError):
        return False
