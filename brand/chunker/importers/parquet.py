"""Parquet files, cut into shards and read in bounded memory. `arrow` maps types to fields.

A shard is some neighbouring row groups of a file. Batches of some megabytes are read from it, whatever the size of a
row group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from brand.chunker.importers.arrow import ArrowFields
from brand.chunker.importers.arrowtypes import arrow
from brand.chunker.importers.fields import LOOKED_AT, FieldMapping
from brand.chunker.importers.files import ImportFile, find_files
from brand.chunker.sources.shards import Block, Shard
from brand.errors import SourceError

STRETCH_BYTES: Final = 64 << 20
"""Bytes of the row groups of a shard together, before compression; a larger row group is a shard of its own."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1 << 15
_READ_BYTES: Final = 1 << 20


class Parquet:
    """Parquet files with equal columns."""

    kind = "parquet"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        arrow()
        self._take(find_files(src, [".parquet", ".pq"], "Parquet file"), choice)

    def _take(self, files: Sequence[ImportFile], choice: FieldMapping) -> None:
        self._stretches: list[tuple[ImportFile, list[int]]] = []
        shards, columns = [], None
        for file in files:
            with _opened(file) as parquet:
                schema = parquet.schema_arrow
                if columns is None:
                    columns = ArrowFields(schema, partial(_first, parquet), choice)
                differs = columns.differs(schema)
                if differs:
                    hint = "--columns takes only those that all files have"
                    raise SourceError(file.name, f"{differs}; it is not as in {files[0].name}", hint=hint)
                for groups, samples, size in _cuts(parquet.metadata):
                    self._stretches.append((file, groups))
                    shards.append(Shard(file.name, size, f"{file.mark} {groups[0]} {groups[-1]}", samples))
        if columns is None or not shards:
            raise SourceError(files[0].name, "there are no rows in it, nor in any other file")
        self._columns, self.shards, self.classes = columns, tuple(shards), columns.classes
        self.schema, self.choice = columns.fields.schema, columns.fields.choice

    @property
    def notes(self) -> list[str]:
        """Sentences for the report."""
        return self._columns.fields.renamed

    def read(self, number: int) -> Iterator[Block]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, groups = self._stretches[number]
        with _opened(file) as parquet:
            facts = [parquet.metadata.row_group(group) for group in range(groups[-1] + 1)]
            row = sum(group.num_rows for group in facts[: groups[0]])
            mean = sum(facts[g].total_byte_size for g in groups) // max(1, sum(facts[g].num_rows for g in groups))
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, mean)))
            names = list(self._columns.fields.columns)
            batches = parquet.iter_batches(rows, row_groups=groups, columns=names, use_threads=False)
            while (batch := _next(file, batches)) is not None:
                yield self._columns.block(batch, row)
                row += batch.num_rows


def _opened(file: ImportFile) -> Any:
    """Open a Parquet file as a context. Raises `SourceError` if it cannot be read."""
    library = arrow()
    try:
        return library.parquet.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False)
    except (library.ArrowException, OSError) as error:
        raise SourceError(file.name, f"it is not a whole Parquet file: {error}") from error


def _next(file: ImportFile, batches: Iterator[Any]) -> Any:
    try:
        return next(batches, None)
    except (arrow().ArrowException, OSError) as error:
        raise SourceError(file.name, f"it is damaged: {error}") from error


def _first(parquet: Any, names: list[str]) -> Any:
    batches = parquet.iter_batches(LOOKED_AT, columns=names, use_threads=False)
    return next(batches, None) or parquet.schema_arrow.empty_table()


def _cuts(metadata: Any) -> list[tuple[list[int], int, int]]:
    """Return row groups, rows and bytes of each stretch of a file."""
    cuts: list[tuple[list[int], int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        if cuts and cuts[-1][2] + group.total_byte_size <= STRETCH_BYTES:
            groups, rows, size = cuts.pop()
            cuts.append(([*groups, number], rows + group.num_rows, size + group.total_byte_size))
        else:
            cuts.append(([number], group.num_rows, group.total_byte_size))
    return cuts
