"""CSV and TSV: the first line names the columns, and each further row is a sample.

    whole numbers, written as Python writes them   int        anything else   str
    other numbers                                  float

The codecs are inferred from the first rows of each file; `007` is a text. An empty cell is an empty text, or a missing
value in a field of numbers or JSON. `--field NAME=json` and `NAME=ndarray` parse the cells of a column.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from brand.chunker.importers.fields import ROWS_LOOKED_AT, FieldMapping, choose, common_codec
from brand.chunker.importers.files import COMPRESSED, ImportFile, find_files, reading
from brand.chunker.importers.jsonl import LINES_OF_OTHERS, OTHERS
from brand.chunker.sources.shards import Bad, Block, Shard
from brand.errors import SourceError, counted
from brand.formats.constants import MAX_SAMPLE
from brand.formats.record import Numbered

_BLOCK_BYTES: Final = 2 << 20
_INT: Final = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_FLOAT: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|nan|inf|-inf|NaN", re.ASCII)
_PARSED: Final = ("json", "ndarray")


class Csv:
    """CSV and TSV files with equal columns."""

    kind = "csv"
    classes = None

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        names = (".csv", ".tsv")
        endings = [*names, *(f"{name}{ending}" for name in names for ending in COMPRESSED)]
        self._files = find_files(src, endings, "CSV file")
        self._header, natural = _columns(self._files)
        self._fields = choose(natural, choice)
        self.schema, self.choice = self._fields.schema, self._fields.choice
        self.shards = tuple(Shard(file.name, file.bytes, file.mark) for file in self._files)

    @property
    def notes(self) -> list[str]:
        """Sentences for the report."""
        return self._fields.renamed

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file = self._files[number]
        rows: list[list[str]] = []
        places: list[int] = []
        held = 0
        reader = _rows(file)
        _, header = next(reader, (0, []))
        if header and sorted(header) != sorted(self._header):
            raise SourceError(file.name, _other_header(header, self._header, self._files[0].name))
        for line, row in reader:
            if len(row) != len(header):
                cells = f"it has {counted(len(row), 'cell')}, and there are {counted(len(header), 'column')}"
                yield Bad(f"line {line}", cells, "A cell with the separator in it stands in quotes")
                continue
            rows.append(row)
            places.append(line)
            held += sum(map(len, row))
            if held >= _BLOCK_BYTES:
                yield self._block(header, rows, places)
                rows, places, held = [], [], 0
        if rows:
            yield self._block(header, rows, places)

    def _block(self, header: list[str], rows: list[list[str]], places: list[int]) -> Block:
        columns: dict[str, Sequence[Any]] = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        for column, (_, codec) in zip(self._fields.columns, self.schema.fields, strict=True):
            if codec in _PARSED:
                columns[column] = [_json(cell) for cell in columns[column]]
            elif codec != "str":
                columns[column] = [cell or None for cell in columns[column]]
        return self._fields.block(columns, Numbered(places, "line"))


def _json(cell: str) -> Any:
    try:
        return json.loads(cell) if cell else None
    except ValueError:
        return cell


def _columns(files: Sequence[ImportFile]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the header, and the columns with their codecs, inferred from the first rows of the files."""
    header: list[str] = []
    kinds: dict[str, set[str]] = {}
    step = max(1, len(files) // OTHERS)
    for file in [files[0], *files[1::step]]:
        rows = _rows(file)
        _, first = next(rows, (0, []))
        if not header and first:
            header = first
            twice = next((name for name in header if header.count(name) > 1), None)
            if twice is not None:
                raise SourceError(file.name, f"two columns have the name {twice!r}", hint="Change the first line")
        for _, row in islice(rows, ROWS_LOOKED_AT if file is files[0] else LINES_OF_OTHERS):
            for name, cell in zip(first, row, strict=False):
                kinds.setdefault(name, set()).add(_kind(cell))
    if not header:
        raise SourceError(files[0].name, "the file is empty; its first line names the columns")
    return header, [(name, _together(kinds.get(name, set()))) for name in header]


def _together(kinds: set[str]) -> str:
    common = common_codec(kinds)
    return "str" if common in (None, "null") else str(common)


def _kind(cell: str) -> str:
    if not cell:
        return "null"
    return "int" if _INT.fullmatch(cell) else "float" if _FLOAT.fullmatch(cell) else "str"


def _rows(file: ImportFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the line at which each row ends, and its cells. The first row is the header. Raises `SourceError`."""
    csv.field_size_limit(MAX_SAMPLE)
    with reading(file.path, file.name) as stream:
        lines = _texts(file, stream)
        first = next(lines, "")
        reader = csv.reader(_chained(first, lines), delimiter=_separator(file, first), strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise SourceError(file.name, f"line {reader.line_num}: {error}") from error


def _chained(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _texts(file: ImportFile, stream: Any) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            hint = f"Convert it first: iconv -f latin1 -t utf-8 {file.path.name}"
            raise SourceError(file.name, f"line {number} is not UTF-8: {error.reason}", hint=hint) from error


def _separator(file: ImportFile, first: str) -> str:
    """Return a tab for TSV files; else the most frequent of comma, semicolon and tab in the first line."""
    if ".tsv" in file.path.suffixes:
        return "\t"
    return max(",;\t", key=first.count)


def _other_header(header: list[str], expected: list[str], name: str) -> str:
    more = [f"it has {column!r}" for column in header if column not in expected]
    less = [f"it lacks {column!r}" for column in expected if column not in header]
    return f"its columns are not those of {name}: {', '.join([*more, *less])}"
