"""A table beside a folder of files: which row belongs to which file?

A column of the table names the files, by their paths below the folder, with or without the ending. The rows are read
once, block by block. The values of a row are stored as a record of its fields in `texts.bin`, at the place that the
entry of its file names; so memory holds 16 bytes for each file. Rows without a file, files without a row, and second
rows of a file are problems: they end the conversion, or they are left out and listed.

If the user gathers fields, a file may have several rows, and gets a list of their values, in the order of the table.
Then all rows are written to a file first, and memory holds 12 bytes more for each row.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.chunker.plan.report import Problem
from brand.chunker.sources.listing import ENTRY, Finder, Listing, bases_of
from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.shards import Bad, Block, Shards, hint_for
from brand.errors import SchemaError
from brand.formats.arrays import flush, map_array
from brand.formats.contents import cut_blocks
from brand.formats.header import ELEMENTS, FIXED, Schema
from brand.formats.noticed import Noticed
from brand.formats.record import RecordDecoder, Records, encode_columns, fixed_columns, payloads
from brand.printable import escaped

_NAMES: Final = "names are paths below it, with or without the ending"
_GATHER: Final = "--gather '*' makes a list of the values of its rows, --gather NAME,... of some columns"
_WITHOUT_ROWS: Final = "{count} image[s] [has|have] no row in the table: [its|their] lists are empty"
_BLOCK_BYTES: Final = 4 << 20
TABLE_OPTIONS: Final = "--key, --columns, --field, --null, --gather, --separator, --quote and --escape"
LIST_OF: Final = {codec: name for name, codec in ELEMENTS.items()} | {"json": "json"}
"""Codec of the values of rows -> codec of their list."""
Row = tuple[str, str, bytes | str]
"""Name of the row in messages, name of the file, and the record of the other fields, or the reason why it has none."""


@dataclass(frozen=True)
class FileTable:
    """A table with a row for each file of a folder."""

    path: SourcePath
    key: str
    """The field that names the files."""
    source: Shards
    gathered: frozenset[str] = frozenset()
    """The fields of which a file has a list, with the values of all its rows."""

    @cached_property
    def row_fields(self) -> Schema:
        """The fields of a row without its key."""
        return Schema.parse([field for field in self.source.schema.fields if field[0] != self.key])

    @cached_property
    def fields(self) -> Schema:
        """The fields that the table adds to the samples."""
        of = self.row_fields.fields
        return Schema.parse([(name, LIST_OF[codec] if name in self.gathered else codec) for name, codec in of])

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
        numbers = self.source.numbers
        try:
            columns = block.columns if numbers is None else numbers.relabelled(block.columns, block.called)
            records = encode_columns(self.row_fields, columns, block.called)
        except SchemaError as error:
            if len(block) > 1:
                for position in range(len(block)):
                    yield from self._encoded(block.only(position))
            else:
                reason = (
                    f"{str(error).removeprefix(f'{block.called[0]}, ')}; {hint_for(self.source, block, str(error))}"
                )
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
    bad = np.zeros(len(listing), bool)
    skipped = {name for path in unusable for name in (path, os.path.splitext(path)[0])}
    problems, noticed = list[Problem](), [*table.source.noticed]
    rows = _Rows(array("I"), array("Q"))
    with (listing.folder / ("rows.bin" if table.gathered else "texts.bin")).open("wb") as texts:
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
                if seen[index] and not table.gathered:
                    raise ValueError(f"file {name!r} is named a second time, and each file has one row: {_GATHER}")
            except ValueError as error:
                problems.append(Problem.of(f"{table.path.name}, {called}", str(error)))
                if index is not None:
                    bad[index] = True
            else:
                if table.gathered:
                    rows.files.append(index)
                    rows.sizes.append(len(record))
                entries["text_at"][index], entries["text_size"][index] = texts.tell(), len(record)
                texts.write(record)
                told[index] = True
            if index is not None:
                seen[index] = True
    if table.gathered:
        problems += _gather(table, listing, entries, rows, bad)
        told = seen & ~bad
        if table.gathered == set(table.row_fields.names) and not seen.all():
            noticed.append(_without_rows(table, listing, entries, seen))
            told, seen = ~bad, np.ones(len(listing), bool)
    flush(entries)
    reason = f"the table {table.path.name} has no row for it"
    problems += [Problem.of(listing.key(index), reason) for index in np.flatnonzero(~seen).tolist()]
    return problems, ~told, noticed


class _Rows(NamedTuple):
    """The rows of a table whose fields are gathered, in order."""

    files: array[int]
    """Index of the file."""
    sizes: array[int]
    """Bytes of the record in `rows.bin`."""


def _gather(
    table: FileTable, listing: Listing, entries: NDArray[np.void], rows: _Rows, bad: NDArray[np.bool_]
) -> list[Problem]:
    """Write the record of each file that has rows to `texts.bin`. Files whose rows do not fit together become bad."""
    problems, path = list[Problem](), listing.folder / "rows.bin"
    files, sizes = np.frombuffer(rows.files, np.uint32), np.frombuffer(rows.sizes, np.uint64).astype(np.int64)
    starts, order = np.cumsum(sizes) - sizes, np.argsort(files, kind="stable")
    found, firsts, counts = np.unique(files[order], return_index=True, return_counts=True)
    memory = map_array(path, np.dtype("u1")) if len(files) and path.stat().st_size else np.empty(0, np.uint8)
    held = np.add.reduceat(sizes[order], firsts) if len(firsts) else sizes
    with (listing.folder / "texts.bin").open("wb") as texts:
        for low, high in cut_blocks(held, _BLOCK_BYTES):
            some = order[firsts[low] : firsts[high - 1] + counts[high - 1]]
            block = Records(memory, starts[some], sizes[some])
            begin = firsts[low:high] - firsts[low]
            names = [listing.key(index) for index in found[low:high].tolist()]
            columns = _lists(table, block, begin, counts[low:high])
            for position, name in _different(table, block, begin, counts[low:high]):
                index = int(found[low + position])
                if not bad[index]:
                    bad[index] = True
                    why = f"field {name!r} differs between its rows: --gather {name} makes a list of the values"
                    problems.append(Problem.of(f"{table.path.name}, rows of {names[position]}", why))
            made = encode_columns(table.fields, columns, names)
            indices = found[low:high]
            entries["text_at"][indices] = texts.tell() + made.starts
            entries["text_size"][indices] = made.sizes
            texts.write(made.joined())
    path.unlink()
    return problems


def _lists(
    table: FileTable, block: Records, firsts: NDArray[np.intp], counts: NDArray[np.intp]
) -> dict[str, list[Any]]:
    """Return the values of files by field: lists of the values of their rows if they are gathered, else the first."""
    decoder, ends = RecordDecoder(table.row_fields), (firsts + counts).tolist()
    columns: dict[str, list[Any]] = {}
    for name, column in zip(decoder.names, decoder.columns(block), strict=True):
        values = column if isinstance(column, list) else column.tolist()
        spans = zip(firsts.tolist(), ends, strict=True)
        columns[name] = [values[low:high] if name in table.gathered else values[low] for low, high in spans]
    return columns


def _different(
    table: FileTable, block: Records, firsts: NDArray[np.intp], counts: NDArray[np.intp]
) -> Iterator[tuple[int, str]]:
    """Yield each file whose rows differ in a field that is not gathered, and the field; the bytes are compared."""
    schema, owner = table.row_fields, np.repeat(np.arange(len(firsts)), counts)
    for name, codec in schema.fields:
        if name in table.gathered:
            continue
        if codec in FIXED:
            bits = fixed_columns(schema, block)[name].copy().view("<u8")
            differ = bits != bits[firsts][owner]
        else:
            values = list(map(bytes, payloads(schema, block, name).pieces()))
            of_first = [values[first] for first in firsts.tolist()]
            differ = np.array([value != of_first[of] for value, of in zip(values, owner.tolist(), strict=True)])
        yield from ((position, name) for position in np.unique(owner[differ]).tolist())


def _without_rows(table: FileTable, listing: Listing, entries: NDArray[np.void], seen: NDArray[np.bool_]) -> Noticed:
    """Give files without a row empty lists, and return the fact."""
    empty = encode_columns(table.fields, {name: [[]] for name in table.fields.names}, ["a file without rows"])
    with (listing.folder / "texts.bin").open("ab") as texts:
        entries["text_at"][~seen], entries["text_size"][~seen] = texts.tell(), int(empty.sizes[0])
        texts.write(empty.joined())
    files = np.flatnonzero(~seen)
    return Noticed("files_without_rows", len(files), listing.key(int(files[0])), _WITHOUT_ROWS)


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
