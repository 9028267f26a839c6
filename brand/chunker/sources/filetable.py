"""A table beside a folder of files: which row belongs to which file?

A column of the table names the files, by their paths below the folder, with or without the ending. The rows are read
once, block by block. The values of a row are stored as a record of its fields in `texts.bin`, at the place that the
entry of its file names; so memory holds 16 bytes for each file. Rows without a file, files without a row, and second
rows of a file are problems: they end the conversion, or they are left out and listed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.plan.report import Problem
from brand.chunker.sources.listing import ENTRY, Finder, Listing, bases_of
from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.shards import Bad, Block, Shards, hint_for
from brand.errors import SchemaError
from brand.formats.arrays import flush, map_array
from brand.formats.header import Schema
from brand.formats.noticed import Noticed
from brand.formats.record import encode_columns
from brand.printable import escaped

_NAMES: Final = "names are paths below it, with or without the ending"
_GATHER: Final = 'give several values as a list in one row of JSON lines, {"file": "a.jpg", "texts": ["one", "two"]}'
Row = tuple[str, str, bytes | str]
"""Name of the row in messages, name of the file, and the record of the other fields, or the reason why it has none."""


@dataclass(frozen=True)
class FileTable:
    """A table with a row for each file of a folder."""

    path: SourcePath
    key: str
    """The field that names the files."""
    source: Shards

    @property
    def fields(self) -> Schema:
        """The fields that the table adds to the samples."""
        return Schema.parse([field for field in self.source.schema.fields if field[0] != self.key])

    def rows(self, noticed: list[Noticed]) -> Iterator[Row]:
        """Yield the rows, in order, and add the facts about them. Raises `SourceError` if the table cannot be read."""
        for number in range(len(self.source.shards)):
            for block in self.source.read(number):
                if isinstance(block, Noticed):
                    noticed.append(block)
                elif isinstance(block, Bad):
                    yield block.called, "", block.reason
                else:
                    yield from self._encoded(block)

    def _encoded(self, block: Block) -> Iterator[Row]:
        try:
            records = encode_columns(self.fields, block.columns, block.called)
        except SchemaError as error:
            if len(block) > 1:
                for position in range(len(block)):
                    yield from self._encoded(block.only(position))
            else:
                reason = f"{str(error).removeprefix(f'{block.called[0]}, ')}; {hint_for(self.source, block)}"
                yield block.called[0], str(block.columns[self.key][0]), reason
            return
        yield from zip(block.called, map(str, block.columns[self.key]), records, strict=True)


def join_rows(
    table: FileTable, root: SourcePath, listing: Listing, unusable: Collection[str]
) -> tuple[list[Problem], NDArray[np.bool_], list[Noticed]]:
    """Store the row of each file. Rows of `unusable` files (names as `escaped` writes them) are skipped.

    Returns the problems, which files have no usable row, and facts about the rows. Raises `SourceError` if
    the table cannot be read.
    """
    find = _Finder(root, listing)
    entries = map_array(listing.folder / listing.entries_name, ENTRY, "r+")
    told, seen = np.zeros(len(listing), bool), np.zeros(len(listing), bool)
    skipped = {name for path in unusable for name in (path, os.path.splitext(path)[0])}
    problems, noticed = list[Problem](), [*table.source.noticed]
    with (listing.folder / "texts.bin").open("wb") as texts:
        for called, name, record in table.rows(noticed):
            index = None
            try:
                index = find(name) if name or isinstance(record, bytes) else None
                if isinstance(record, str):
                    raise ValueError(record)
                if index is None and escaped(find.plain(name)) in skipped:
                    continue
                if index is None:
                    raise ValueError(f"there is no file {name!r} in the folder; {_NAMES}")
                if seen[index]:
                    raise ValueError(f"file {name!r} is named a second time, and each file has one row: {_GATHER}")
            except ValueError as error:
                problems.append(Problem.of(f"{table.path.name}, {called}", str(error)))
            else:
                entries["text_at"][index], entries["text_size"][index] = texts.tell(), len(record)
                texts.write(record)
                told[index] = True
            if index is not None:
                seen[index] = True
    flush(entries)
    reason = f"the table {table.path.name} has no row for it"
    problems += [Problem.of(listing.key(index), reason) for index in np.flatnonzero(~seen).tolist()]
    return problems, ~told, noticed


class _Finder:
    """Finds the file that a table names: by its path below the folder, or by that without the ending."""

    def __init__(self, root: SourcePath, listing: Listing) -> None:
        self._bases = bases_of(root)
        self._listing, self._by_path = listing, Finder(listing)
        self._by_stem: Finder | None = None

    def __call__(self, name: str) -> int | None:
        """Return the index of a file; None if there is none. Raises ValueError if there are several."""
        plain = self.plain(name)
        index = self._by_path(plain)
        if index is not None:
            return index
        if self._by_stem is None:
            self._by_stem = Finder(self._listing, stems=True)
        return self._by_stem(plain)

    def plain(self, name: str) -> str:
        """Return the path below the folder that a table means."""
        key = name.strip()
        for base in self._bases:
            key = key.removeprefix(base)
        return key
