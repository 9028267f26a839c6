"""JSON lines, and JSON files that hold an array of objects, or objects one after the other. `jsonvalues` parses.

    a whole number of up to 64 bits, true, false    int      a text               str
    a longer whole number                           str      a list, an object    json
    another number                                  float

The columns and their codecs are inferred from the first samples of each file; whole and other numbers together are
`float`. A later value that would have given another codec is refused, unless `--field NAME=CODEC` chooses the codec.
NaN, which JSON does not have, is a missing value, except in a field of floats or arrays. A file of lines is cut into
stretches of `STRETCH_BYTES`, which several processes read at once; a compressed file is one stretch, and so is one that
is no file of lines. A text in a field of images or audio (`NAME=image`, `NAME=list[image]`) is the path of a file below
the folder of the JSON file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, BinaryIO, Final

from brand.chunker.importers.fields import FieldMapping, choose, is_read
from brand.chunker.importers.files import BUFFER_BYTES, COMPRESSED, ImportFile, find_files, reading, with_compressed
from brand.chunker.importers.jsonvalues import Item, has_lines, line_items, stream_items, without_nan
from brand.chunker.importers.lists import about_names, first_text, with_files
from brand.chunker.importers.natural import ROWS_LOOKED_AT, common_codec, first_rows, fits_of_values, kind_of_value
from brand.chunker.sources.card import about_declared
from brand.chunker.sources.encoding import check_encoding
from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import SourceError, UsageError, counted
from brand.formats.noticed import Noticed
from brand.formats.record import Numbered

STRETCH_BYTES: Final = 64 << 20
LINES_OF_OTHERS: Final = 20
"""Samples of each file but the first from which columns are inferred, of up to `OTHERS` files."""
OTHERS: Final = 100
_BLOCK_BYTES: Final = 2 << 20
_NAN: Final = "{count} value[s] [is|are] NaN, which JSON does not have: [it is|they are] null"
_KEEP_NAN: Final = ("float", "ndarray", "list[float]", "list[ndarray]")


@dataclass
class _FirstRows:
    """The kinds of values in the first samples of each file, by field."""

    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    """Column -> the kinds of its values, and where each was found first."""
    texts: dict[str, str] = field(default_factory=dict)
    """Column -> its first text, also in a list."""
    alone: Mapping[str, Any] | None = None
    """The object of a file that holds no other one, if it is the only file."""

    def add(self, row: Mapping[str, Any], where: str, *, alone: bool) -> None:
        """Add the next sample. `alone` is whether none was added before, and no other file is there."""
        self.alone = row if alone else None
        for name, value in row.items():
            self.kinds.setdefault(name, {}).setdefault(kind_of_value(value), where)
            if not self.texts.get(name):
                self.texts[name] = first_text(value)


class JsonLines(Shards):
    """Files of JSON objects."""

    kind = "jsonl"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        files = find_files(src, with_compressed(".jsonl", ".ndjson", ".json"), "JSONL file", choice.split)
        self._lined = {file.path: _is_lined(file) for file in files}
        first = self._look(files, choice)
        kinds = first.kinds
        natural = [(name, common_codec(some) or "json") for name, some in kinds.items()]
        self._all, self._some = set(kinds), bool(choice.columns)
        self._fields = choose(natural, choice, fits_of_values(kinds))
        self._stretches = [(file, low, high) for file in files for low, high in self._cuts(file)]
        shards = (Shard(file.name, high - low, f"{file.mark} {low} {high}") for file, low, high in self._stretches)
        notes = [
            *self._fields.renamed,
            *about_names(self._fields.pairs, first.texts, files[0].path, choice.codecs),
            *_about_one_object(files[0], first.alone),
            *about_declared(files[0].types, self._fields.pairs),
        ]
        super().__init__(shards, self._fields.schema, self._fields.choice, notes)

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the samples of one shard, as `Shards.read` does."""
        yield from with_files(self.schema, self._read(number), self._stretches[number][0].path.parent)

    def _read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        file, low, high = self._stretches[number]
        word = "line" if self._lined[file.path] else "item"
        before = partial(_lines_before, file.path, low)
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        held = nulls = 0
        first_null = ""
        for place, row, size, has_nan in self._items(file, low, high):
            reason = row if isinstance(row, str) else self._why_not(row)
            if reason or isinstance(row, str):
                hint = (
                    f"--columns {','.join(self._fields.columns)} takes no others" if reason.startswith("it has") else ""
                )
                yield Bad(Numbered([place], word, before)[0], reason, hint)
                continue
            if has_nan:
                count = self._replace_nan(row)
                nulls += count
                if count and not first_null:
                    first_null = f"{file.name}, {Numbered([place], word, before)[0]}"
            rows.append(row)
            places.append(place)
            held += size
            if held >= _BLOCK_BYTES:
                yield from self._fields.checked(self._fields.columns_of(rows), Numbered(places, word, before))
                rows, places, held = [], [], 0
        if rows:
            yield from self._fields.checked(self._fields.columns_of(rows), Numbered(places, word, before))
        if nulls:
            yield Noticed("json_nan", nulls, first_null, _NAN)

    def _items(self, file: ImportFile, low: int, high: int) -> Iterator[Item]:
        with reading(file.path, file.name) as stream:
            if not self._lined[file.path]:
                yield from stream_items(file.name, stream)
                return
            if low:
                stream.seek(low)
            limit = None if file.path.suffix in COMPRESSED else high - low
            yield from line_items(file.path.name, stream, limit, first=not low)

    def _why_not(self, row: dict[str, Any]) -> str:
        if not self._some and not row.keys() <= self._all:
            more = next(name for name in row if name not in self._all)
            return f"it has {more!r}, which the first lines have not"
        return ""

    def _replace_nan(self, row: dict[str, Any]) -> int:
        """Replace NaN by null where the field is no float and no array. Return how many were replaced."""
        count = 0
        for column, _, codec in self._fields.pairs:
            if codec not in _KEEP_NAN and column in row:
                row[column], replaced = without_nan(row[column])
                count += replaced
        return count

    def _look(self, files: Sequence[ImportFile], choice: FieldMapping) -> _FirstRows:
        """Return the kinds of values and the first texts of each column, from the first samples.

        Raises `UsageError` if the values of a column have no common codec, `SourceError` if there are no samples.
        """
        first = _FirstRows()
        step, refused, empty = max(1, len(files) // OTHERS), "", 0
        for file in [files[0], *files[1::step]]:
            word = "line" if self._lined[file.path] else "item"
            items = self._items(file, 0, file.bytes)
            most = ROWS_LOOKED_AT if file is files[0] else LINES_OF_OTHERS
            for place, row, _, _ in first_rows(items, most, itemgetter(2)):
                if isinstance(row, str):
                    refused = refused or f"{file.name}: {word} {place}: {row}"
                    continue
                empty += not row
                first.add(row, f"{file.name}, {word} {place}", alone=place == 1 and len(files) == 1)
        if not first.kinds:
            if refused:
                what = f"none of its first lines is a sample. {refused}"
            elif empty:
                what = f"its samples have no fields: {counted(empty, 'object')} {{}} at its beginning"
            else:
                what = "there are no samples: every file is empty"
            raise SourceError(files[0].name, what)
        for name, kinds in first.kinds.items():
            if common_codec(kinds) is None and is_read(name, choice):
                _check_chosen(name, kinds, choice)
        return first

    def _cuts(self, file: ImportFile) -> list[tuple[int, int]]:
        """Return begin and end of each stretch of a file."""
        if file.path.suffix in COMPRESSED or file.bytes <= STRETCH_BYTES or not self._lined[file.path]:
            return [(0, file.bytes)]
        with reading(file.path, file.name) as stream:
            begins, at = [0], STRETCH_BYTES
            while at < file.bytes:  # a line may be longer than a stretch
                begins.append(_next_line(stream, at))
                at = (begins[-1] // STRETCH_BYTES + 1) * STRETCH_BYTES
        ends = [*begins[1:], file.bytes]
        return [(low, high) for low, high in zip(begins, ends, strict=True) if low < high]


def _check_chosen(name: str, kinds: dict[str, str], choice: FieldMapping) -> None:
    """Raise `UsageError` unless the user has chosen a codec for a column whose values have no common one."""
    if {name, choice.names.get(name)} & choice.codecs.keys():
        return
    (one, here), (other, there), *_ = [item for item in kinds.items() if item[0] not in ("null", "nan")]
    shown = {"wide": "int", "huge": "int"}
    cure = f"give --field {name}=json, which holds both"
    if "json" not in kinds:
        cure += f", or --field {name}=str"
    raise UsageError(f"{name!r} is {shown.get(one, one)} in {here}, and {shown.get(other, other)} in {there}: {cure}")


def _about_one_object(file: ImportFile, alone: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield a note if a file is one object that holds a list of objects: COCO's annotations, or `{"data": [...]}`."""
    lists = {
        name: len(value)
        for name, value in (alone or {}).items()
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], dict)
    }
    if lists and file.path.suffix == ".json":
        name = max(lists, key=lambda name: lists[name])
        items = shlex.quote(f".[{json.dumps(name)}][]")
        lines = shlex.quote(f"{file.path.name.removesuffix('.json')}-{name}.jsonl".replace("/", "_"))
        yield (
            f"{file.name} is one object, and so one sample: its list {name!r} has {lists[name]:,} items. `jq -c {items}"
            f" {shlex.quote(str(file.path))} > {lines}` writes each on a line, for a sample each"
        )


def _is_lined(file: ImportFile) -> bool:
    """Return whether each line of a file is a sample. Raises `SourceError` if it is no text in UTF-8."""
    with reading(file.path, file.name) as stream:
        head = stream.read(8)
        check_encoding(file.path.name, file.name, head)
    with reading(file.path, file.name) as stream:
        return has_lines(stream)


@lru_cache(maxsize=8)
def _lines_before(path: SourcePath, start: int) -> int:
    count = 0
    with path.open("rb") as file:
        while start > 0 and (data := file.read(min(start, BUFFER_BYTES))):
            count += data.count(b"\n")
            start -= len(data)
    return count


def _next_line(stream: BinaryIO, at: int) -> int:
    """Return the offset of the first line that does not begin before `at`."""
    stream.seek(at - 1)
    stream.readline()
    return stream.tell()
