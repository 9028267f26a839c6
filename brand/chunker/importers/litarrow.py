"""LitData's chunks of plain rows: texts, numbers, bytes, lists and dicts, without arrays. They are stored as Arrow.

    samples (u32) | offsets, which mean nothing here | rows as an Arrow file or stream | its size (u32) | magic

`arrow` maps their types to fields, and pyarrow is needed. Chunks with arrays have another form (`litdata`).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from brand.chunker.importers.arrow import ArrowFields
from brand.chunker.importers.arrowtypes import arrow
from brand.chunker.importers.fields import LOOKED_AT, FieldMapping
from brand.chunker.importers.litdata import LitData, refuse, shard_of
from brand.chunker.importers.raw import below, folder_error
from brand.chunker.sources.shards import Block
from brand.errors import SourceError, UsageError

_MAGIC: Final = b"LDARW01\0"
_END: Final = struct.Struct("<I8s")
_FILE: Final = b"ARROW1"
"""The first bytes of an Arrow file; anything else is an Arrow stream."""
_BAD_INDEX: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


class LitDataRows:
    """A folder of LitData chunks whose rows are Arrow."""

    kind = "litdata"

    def __init__(self, root: Path, choice: FieldMapping) -> None:
        index = root / "index.json"
        try:
            told = json.loads(index.read_bytes())
            refuse(told["config"])
            self.shards = tuple(shard_of(root, chunk) for chunk in told["chunks"])
            self._paths = [below(root, shard.name) for shard in self.shards]
        except _BAD_INDEX as error:
            if isinstance(error, UsageError | SourceError):
                raise
            raise folder_error(index, error, "LitData chunks") from error
        first = next(self._batches(0), None)
        if first is None:
            raise SourceError(self.shards[0].name, "it holds no rows")
        rows = arrow().Table.from_batches([first.slice(0, LOOKED_AT)])
        self._columns = ArrowFields(first.schema, rows.select, choice)
        self.schema, self.choice = self._columns.fields.schema, self._columns.fields.choice
        self.classes = self._columns.classes

    @property
    def notes(self) -> list[str]:
        """Sentences for the report."""
        return self._columns.fields.renamed

    def read(self, number: int) -> Iterator[Block]:
        """Yield the samples of one shard, as `Shards.read` does."""
        row = 0
        for batch in self._batches(number):
            differs = self._columns.differs(batch.schema)
            if differs:
                raise SourceError(self.shards[number].name, f"{differs}; it is not as in {self.shards[0].name}")
            yield self._columns.block(batch, row)
            row += batch.num_rows

    def _batches(self, number: int) -> Iterator[Any]:
        """Yield batches of some hundred rows. Raises `SourceError` if the chunk is damaged."""
        library, name = arrow(), self.shards[number].name
        try:
            with library.memory_map(str(self._paths[number])) as file:
                whole = file.read_buffer()
                size, magic = _END.unpack(whole.slice(whole.size - _END.size))
                start = whole.size - _END.size - size
                if magic != _MAGIC or start < 0:
                    raise SourceError(name, "it does not end with rows of Arrow, as the first chunk does")
                rows = library.BufferReader(whole.slice(start, size))
                if whole.slice(start, len(_FILE)).to_pybytes() != _FILE:
                    yield from library.ipc.open_stream(rows)
                    return
                reader = library.ipc.open_file(rows)
                yield from map(reader.get_batch, range(reader.num_record_batches))
        except (library.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
            raise SourceError(name, f"it is damaged or truncated: {error}") from error


def open_litdata(src: str | os.PathLike[str], choice: FieldMapping) -> LitData | LitDataRows:
    """Return the source in a folder of LitData. Raises `SourceError`, `UsageError`, `MissingExtraError`."""
    root = Path(src)
    return LitDataRows(root, choice) if _has_rows(root) else LitData(root, choice)


def _has_rows(root: Path) -> bool:
    """Return whether the first chunk ends with rows of Arrow. If it cannot be read, `LitData` reports the error."""
    try:
        told = json.loads((root / "index.json").read_bytes())
        with below(root, str(told["chunks"][0]["filename"])).open("rb") as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except _BAD_INDEX:
        return False
