"""CSV and TSV. The first line names the columns; `texttable` reads the rows.

    a whole number of up to 64 bits, written as Python writes it     int
    another number                                                   float
    anything else, also `007` and whole numbers of more than 64 bits str

The codecs are inferred from the first rows of each file. A later cell that would have given another codec is refused,
unless `--field NAME=CODEC` chooses the codec. An empty cell is an empty text, or a missing value in a field of numbers
or JSON. `--field NAME=json` and `NAME=ndarray` parse the cells of a column, and so do lists. A text in a field of
images or audio (`NAME=image`, `NAME=list[image]`) is the path of a file below the folder of the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from brand.chunker.importers.fields import PARSED, FieldMapping, choose
from brand.chunker.importers.files import ImportFile, find_files, reading, with_compressed
from brand.chunker.importers.lists import about_names, first_text, with_files
from brand.chunker.importers.natural import (
    ROWS_LOOKED_AT,
    Misfit,
    common_codec,
    first_rows,
    fits_of_cells,
    kind_of_cell,
    why_text,
)
from brand.chunker.sources.card import about_declared
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.chunker.sources.texttable import OF_DIALECT, Dialect, TextTable, dialect_told
from brand.errors import SourceError
from brand.formats.noticed import Noticed
from brand.formats.record import Numbered
from brand.printable import printable

LINES_OF_OTHERS: Final = 20
"""Rows of each file but the first from which columns are inferred, of up to `OTHERS` files."""
OTHERS: Final = 100
_SHOWN: Final = 64
_EMPTY: Final = "{count} cell[s] [is|are] empty, and [is an empty text|are empty texts]"
_Columns = tuple[Sequence[str], dict[str, str], dict[str, list[str]], dict[str, str]]


class Csv(Shards):
    """CSV and TSV files with equal columns."""

    kind = "csv"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        self._files = find_files(src, with_compressed(".csv", ".tsv"), "CSV file", choice.split, takes=OF_DIALECT)
        self._dialect = dialect_told(self._files[0].told, choice.dialect)
        self._header, natural, cells, firsts = _header_and_columns(self._files, self._dialect)
        self._fields = choose(natural.items(), choice, fits_of_cells(natural))
        shards = (Shard(file.name, file.bytes, file.mark) for file in self._files)
        told = f"{self._fields.choice} {self._dialect}"
        texts = [c for c, name, codec in self._fields.pairs if codec == "str" and not {c, name} & choice.codecs.keys()]
        notes = [
            *_without_header(self._files[0].name, self._header),
            *self._fields.renamed,
            *about_names(self._fields.pairs, firsts, self._files[0].path, choice.codecs),
            *about_declared(self._files[0].types, self._fields.pairs),
            *filter(None, (why_text(printable(column), cells[column]) for column in texts)),
        ]
        super().__init__(shards, self._fields.schema, told, notes)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the samples of one shard, as `Shards.read` does."""
        yield from with_files(self.schema, self._read(number), self._files[number].path.parent)

    def _read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        file = self._files[number]
        empty: dict[str, tuple[int, str]] = {}
        with _table(file, self._dialect) as table:
            header = table.header
            if header and sorted(header) != sorted(self._header):
                raise SourceError(file.name, _other_header(header, self._header, self._files[0].name))
            for lines, rows, fault in table.batches():
                if fault is not None:
                    yield Bad(f"line {lines[0]}", fault.reason, fault.hint)
                else:
                    yield from self._blocks(header, rows, lines, empty)
            yield from table.noticed
        for name, (count, line) in empty.items():
            yield Noticed("empty_cells", count, f"{file.name}, line {line}", _EMPTY, name)

    def _blocks(
        self, header: Sequence[str], rows: list[list[str]], lines: Sequence[int], empty: dict[str, tuple[int, str]]
    ) -> Iterator[Block | Bad]:
        """Yield rows; count empty cells in fields of text, and note the first line of one, in `empty`."""
        columns: dict[str, Sequence[Any]] = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        for column, name, codec in self._fields.pairs:
            if codec == "str" and (count := columns[column].count("")):
                before, line = empty.get(name) or (0, str(lines[columns[column].index("")]))
                empty[name] = before + count, line
            if codec in PARSED:
                columns[column] = [_json(cell) for cell in columns[column]]
            elif codec != "str":
                columns[column] = [cell or None for cell in columns[column]]
        for _, members, _ in self._fields.packs:
            for column in members:
                columns[column] = [cell or None for cell in columns[column]]
        yield from self._fields.checked(columns, Numbered(lines, "line"))


def _without_header(name: str, header: Sequence[str]) -> list[str]:
    """Return a note if names of columns look like values: the table may have no header."""
    numbers = [cell for cell in header if kind_of_cell(cell) in ("int", "wide", "float")]
    if not numbers:
        return []
    told = f"The first line of {name} is read as the names of the columns, and {printable(numbers[0])!r} looks like"
    return [f"{told} a value: a table without a header needs one"]


def _json(cell: str) -> Any:
    try:
        return json.loads(cell) if cell else None
    except (ValueError, RecursionError):
        return Misfit(cell)


def _header_and_columns(files: Sequence[ImportFile], dialect: Dialect) -> _Columns:
    """Return the header, the columns with their codecs, inferred from the first rows of the files; and these cells.

    Equal cells are one, empty ones are left out, and long ones are cut. The last table has the first text of each
    column that may be a path.
    """
    header: Sequence[str] = []
    kinds: dict[str, set[str]] = {}
    cells: dict[str, dict[str, None]] = {}
    firsts: dict[str, str] = {}
    step = max(1, len(files) // OTHERS)
    for file in [files[0], *files[1::step]]:
        with _table(file, dialect) as table:
            if not header and table.header:
                header = table.header
                twice = next((name for name in header if header.count(name) > 1), None)
                if twice is not None:
                    raise SourceError(file.name, f"two columns have the name {twice!r}", hint="Change the first line")
            most = ROWS_LOOKED_AT if file is files[0] else LINES_OF_OTHERS
            for _, row, _ in first_rows(table, most, lambda found: sum(map(len, found[1]))):
                for name, cell in zip(table.header, row, strict=False):
                    kinds.setdefault(name, set()).add(kind_of_cell(cell))
                    cells.setdefault(name, {})[cell[:_SHOWN]] = None
                    if not firsts.get(name):
                        firsts[name] = first_text(cell)
    if not header:
        raise SourceError(files[0].name, "the file is empty; its first line names the columns")
    natural = {name: _together(kinds.get(name, set())) for name in header}
    return header, natural, {name: [cell for cell in cells.get(name, {}) if cell] for name in header}, firsts


def _together(kinds: set[str]) -> str:
    common = common_codec(kinds)
    return "str" if common in (None, "null") else str(common)


@contextmanager
def _table(file: ImportFile, dialect: Dialect) -> Iterator[TextTable]:
    """Open a table. Raises `SourceError`, `UsageError`."""
    with reading(file.path, file.name) as stream:
        yield TextTable(file.path.name, file.name, stream, dialect)


def _other_header(header: Sequence[str], expected: Sequence[str], name: str) -> str:
    more = [f"it has {column!r}" for column in header if column not in expected]
    less = [f"it lacks {column!r}" for column in expected if column not in header]
    return f"its columns are not those of {name}: {', '.join([*more, *less])}"
