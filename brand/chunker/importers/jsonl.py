"""JSON Lines: one object per line. Its names are the columns.

    a whole number, true, false   int        a text            str
    a number                      float      a list, an object json

The columns and their codecs are inferred from the first lines of each file; whole and other numbers together are
`float`. A file is cut into stretches of `STRETCH_BYTES`, which several processes read at once; a compressed file is one
stretch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, overload

from brand.chunker.importers.fields import ROWS_LOOKED_AT, FieldMapping, choose, codec_of_value, common_codec, is_taken
from brand.chunker.importers.files import BUFFER_BYTES, COMPRESSED, ImportFile, find_files, reading
from brand.chunker.sources.shards import Bad, Block, Shard
from brand.errors import SourceError, UsageError

STRETCH_BYTES: Final = 64 << 20
LINES_OF_OTHERS: Final = 20
"""Lines of each file but the first from which columns are inferred, of up to `OTHERS` files."""
OTHERS: Final = 100
_BLOCK_BYTES: Final = 2 << 20
_BOM: Final = b"\xef\xbb\xbf"


class JsonLines:
    """Files of JSON lines."""

    kind = "jsonl"
    classes = None

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        names = (".jsonl", ".ndjson", ".json")
        endings = [*names, *(f"{name}{ending}" for name in names for ending in COMPRESSED)]
        self._files = find_files(src, endings, "JSONL file")
        natural = _columns(self._files, choice)
        if not natural:
            raise SourceError(os.fspath(src), "there are no samples: every file is empty")
        self._all, self._some = {name for name, _ in natural}, bool(choice.columns)
        self._fields = choose(natural, choice)
        self.schema, self.choice = self._fields.schema, self._fields.choice
        self._stretches = [(file, low, high) for file in self._files for low, high in _cuts(file)]
        self.shards = tuple(
            Shard(file.name, high - low, f"{file.mark} {low} {high}") for file, low, high in self._stretches
        )

    @property
    def notes(self) -> list[str]:
        """Sentences for the report."""
        return self._fields.renamed

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the samples of one shard, as `Shards.read` does."""
        file, low, high = self._stretches[number]
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        held = 0
        for line_number, line in _lines(file, low, high):
            row = self._parsed(line)
            if isinstance(row, str):
                yield Bad(LineNumbers(file.path, low, [line_number])[0], row, self._hint(row))
                continue
            rows.append(row)
            places.append(line_number)
            held += len(line)
            if held >= _BLOCK_BYTES:
                yield self._fields.block_of_rows(rows, LineNumbers(file.path, low, places))
                rows, places, held = [], [], 0
        if rows:
            yield self._fields.block_of_rows(rows, LineNumbers(file.path, low, places))

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

    def _hint(self, reason: str) -> str:
        return f"--columns {','.join(self._fields.columns)} takes no others" if reason.startswith("it has") else ""


class LineNumbers(Sequence[str]):
    """The names of lines of a file in messages: `line 12`. Lines before a stretch are counted when one is asked for."""

    def __init__(self, path: Path, start: int, numbers: Sequence[int]) -> None:
        self._path, self._start, self._numbers = path, start, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> LineNumbers: ...

    def __getitem__(self, position: int | slice) -> str | LineNumbers:
        if isinstance(position, slice):
            return LineNumbers(self._path, self._start, self._numbers[position])
        return f"line {_lines_before(self._path, self._start) + self._numbers[position]}"


@lru_cache(maxsize=8)
def _lines_before(path: Path, start: int) -> int:
    count = 0
    with path.open("rb") as file:
        while start > 0 and (data := file.read(min(start, BUFFER_BYTES))):
            count += data.count(b"\n")
            start -= len(data)
    return count


def _columns(files: Sequence[ImportFile], choice: FieldMapping) -> list[tuple[str, str]]:
    """Return names and codecs of the columns, inferred from the first lines of the files.

    Raises `UsageError` if a chosen column is missing.
    """
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
    """Yield the number (from 1, within the stretch) and contents of each line that is not empty.

    Raises `SourceError`.
    """
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
