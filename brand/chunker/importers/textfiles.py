"""JSON Lines, CSV and TSV. The names in an object, or the first line of a table, are the columns.

    JSON: a whole number, true, false    int      CSV: a whole number, written as Python writes it    int
          a number                       float         another number                                 float
          a text                         str           anything else, also `007`                      str
          a list, an object              json

The columns and their codecs are inferred from the first lines of each file; whole and other numbers together are
`float`. An empty cell is an empty text, or a missing value in a field of numbers or JSON. `--field NAME=json` and
`NAME=ndarray` parse the cells of a column, and so do lists. A text in a field of images or audio (`NAME=image`,
`NAME=list[image]`) is the path of a file below the folder of the text file. A JSON file is cut into stretches of
`STRETCH_BYTES`, which several processes read at once; a compressed file is one stretch.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from typing import Any, BinaryIO, Final

from brand.chunker.importers.fields import ROWS_LOOKED_AT, FieldMapping, choose, codec_of_value, common_codec, is_taken
from brand.chunker.importers.files import BUFFER_BYTES, COMPRESSED, ImportFile, find_files, reading, with_compressed
from brand.chunker.importers.lists import with_files
from brand.chunker.importers.objects import SourcePath
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import SourceError, UsageError, counted
from brand.formats.constants import MAX_SAMPLE
from brand.formats.header import ELEMENTS
from brand.formats.noticed import Noticed
from brand.formats.record import Numbered

STRETCH_BYTES: Final = 64 << 20
LINES_OF_OTHERS: Final = 20
"""Lines of each file but the first from which columns are inferred, of up to `OTHERS` files."""
OTHERS: Final = 100
_BLOCK_BYTES: Final = 2 << 20
_BOM: Final = b"\xef\xbb\xbf"

_INT: Final = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_FLOAT: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|nan|inf|-inf|NaN", re.ASCII)
_PARSED: Final = ("json", "ndarray", *ELEMENTS)


class JsonLines(Shards):
    """Files of JSON lines."""

    kind = "jsonl"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        files = find_files(src, with_compressed(".jsonl", ".ndjson", ".json"), "JSONL file")
        natural = _columns(files, choice)
        if not natural:
            raise SourceError(os.fspath(src), "there are no samples: every file is empty")
        self._all, self._some = {name for name, _ in natural}, bool(choice.columns)
        self._fields = choose(natural, choice)
        self._stretches = [(file, low, high) for file in files for low, high in _cuts(file)]
        shards = (Shard(file.name, high - low, f"{file.mark} {low} {high}") for file, low, high in self._stretches)
        super().__init__(shards, self._fields.schema, self._fields.choice, self._fields.renamed)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the samples of one shard, as `Shards.read` does."""
        yield from with_files(self.schema, self._read(number), self._stretches[number][0].path.parent)

    def _read(self, number: int) -> Iterator[Block | Bad]:
        file, low, high = self._stretches[number]
        before = partial(_lines_before, file.path, low)
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        held = 0
        for line_number, line in _lines(file, low, high):
            row = self._parsed(line)
            if isinstance(row, str):
                hint = f"--columns {','.join(self._fields.columns)} takes no others" if row.startswith("it has") else ""
                yield Bad(Numbered([line_number], "line", before)[0], row, hint)
                continue
            rows.append(row)
            places.append(line_number)
            held += len(line)
            if held >= _BLOCK_BYTES:
                yield self._fields.block_of_rows(rows, Numbered(places, "line", before))
                rows, places, held = [], [], 0
        if rows:
            yield self._fields.block_of_rows(rows, Numbered(places, "line", before))

    def _parsed(self, line: bytes) -> dict[str, Any] | str:
        """Return the object of a line, or in words why it is invalid."""
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            return f"it is not UTF-8: {error.reason} at byte {error.start + 1}"
        except (ValueError, RecursionError) as error:
            return f"it is no JSON: {error}"
        if not isinstance(row, dict):
            return f"it holds a {type(row).__name__}, and a sample is an object: {{...}}"
        if not self._some and not row.keys() <= self._all:
            more = next(name for name in row if name not in self._all)
            return f"it has {more!r}, which the first lines have not"
        return row


@lru_cache(maxsize=8)
def _lines_before(path: SourcePath, start: int) -> int:
    count = 0
    with path.open("rb") as file:
        while start > 0 and (data := file.read(min(start, BUFFER_BYTES))):
            count += data.count(b"\n")
            start -= len(data)
    return count


def _columns(files: Sequence[ImportFile], choice: FieldMapping) -> list[tuple[str, str]]:
    """Return names and codecs of columns, inferred from first lines. Raises `UsageError` if a chosen one is missing."""
    found: dict[str, dict[str, str]] = {}
    step = max(1, len(files) // OTHERS)
    for file in [files[0], *files[1::step]]:
        lines = _lines(file, 0, file.bytes)
        for number, line in islice(lines, ROWS_LOOKED_AT if file is files[0] else LINES_OF_OTHERS):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            for name, value in row.items() if isinstance(row, dict) else ():
                found.setdefault(name, {}).setdefault(codec_of_value(value), f"{file.name}, line {number}")
    natural = []
    for name, codecs in found.items():
        common = common_codec(codecs)
        if common is None and name not in choice.codecs and is_taken(name, choice):
            (one, here), (other, there), *_ = [item for item in codecs.items() if item[0] != "null"]
            raise UsageError(
                f"{name!r} is {one} in {here}, and {other} in {there}: give --field {name}=json, which holds both, or"
                f" --field {name}=str"
            )
        natural.append((name, common or "json"))
    return natural


def _lines(file: ImportFile, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    """Yield number (from 1, within the stretch) and contents of each line that is not empty. Raises `SourceError`."""
    with reading(file.path, file.name) as stream:
        left = high - low
        if low:
            stream.seek(low)
        whole = file.path.suffix in COMPRESSED
        for number, line in enumerate(stream, 1):
            if not whole:
                if left <= 0:
                    return
                left -= len(line)
            text = line.strip()
            if number == 1 and not low and text.startswith(_BOM):
                text = text[len(_BOM) :]
            if text:
                yield number, text


def _cuts(file: ImportFile) -> list[tuple[int, int]]:
    """Return begin and end of each stretch of a file."""
    if file.path.suffix in COMPRESSED or file.bytes <= STRETCH_BYTES:
        return [(0, file.bytes)]
    with reading(file.path, file.name) as stream:
        begins = sorted({0, *(_next_line(stream, at) for at in range(STRETCH_BYTES, file.bytes, STRETCH_BYTES))})
    ends = [*begins[1:], file.bytes]
    return [(low, high) for low, high in zip(begins, ends, strict=True) if low < high]


def _next_line(stream: BinaryIO, at: int) -> int:
    """Return the offset of the first line that does not begin before `at`."""
    stream.seek(at - 1)
    stream.readline()
    return stream.tell()


class Csv(Shards):
    """CSV and TSV files with equal columns."""

    kind = "csv"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        self._files = find_files(src, with_compressed(".csv", ".tsv"), "CSV file")
        self._header, natural = _header_and_columns(self._files)
        self._fields = choose(natural, choice)
        shards = (Shard(file.name, file.bytes, file.mark) for file in self._files)
        super().__init__(shards, self._fields.schema, self._fields.choice, self._fields.renamed)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the rows of one shard, as `Shards.read` does."""
        yield from with_files(self.schema, self._read(number), self._files[number].path.parent)

    def _read(self, number: int) -> Iterator[Block | Bad]:
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
                cells = f"it has {counted(len(row), 'cell')}, and the header has {counted(len(header), 'column')}"
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


def _header_and_columns(files: Sequence[ImportFile]) -> tuple[list[str], list[tuple[str, str]]]:
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
        reader = csv.reader(chain([first], lines), delimiter=_separator(file, first), strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise SourceError(file.name, f"line {reader.line_num}: {error}") from error


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
