"""Which lists does a source hold, and how do files of a sample become one list?

A list of files has the codec of its files: images or audio. Files that are named `0.jpg`, `1.jpg` in a sample are one
list, in the order of their numbers. A text in a list of files, or in a field of one file, is the name of a file next to
the source (`with_files`); a text in place of a list is a list of one file.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import xxhash

from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.shards import Bad, Block
from brand.errors import BrandError, UsageError
from brand.formats.endings import kind_by_names
from brand.formats.header import ELEMENTS, Schema
from brand.formats.media import HEAD_BYTES, kind_of
from brand.formats.noticed import Noticed
from brand.printable import printable

_MEDIA: Final = ("image", "audio")
_BLOCK_BYTES: Final = 4 << 20
_NAMES_HELD: Final = 1 << 18
"""Names of files, for each shard, among which repeated ones are found."""
_LONGEST_EXAMPLE: Final = 1000
_LONGEST_PATH: Final = 4096
_AGAIN: Final = "at least {count} time[s], a file is named again, and its contents are stored again"
_ONCE: Final = "; `brand convert images FOLDER DST --table TABLE --key NAME --gather COLUMN` stores each image once"


def codec_of_files(column: str, rows: Sequence[Any], *, chosen: bool) -> str:
    """Return `list[image]` or `list[audio]` for lists of files: bytes, or bytes and path.

    `chosen` is whether the user chose the codec. Raises `UsageError` if the lists hold no files, or other bytes.
    """
    contents = [file["bytes"] if isinstance(file, Mapping) else file for row in rows if row for file in row if file]
    kinds = {(kind_of(data[:HEAD_BYTES]) or "").partition("/")[0] for data in contents if data}
    if len(known := kinds & set(_MEDIA)) == 1:  # a file of another kind is a bad sample, not another codec
        return f"list[{known.pop()}]"
    if chosen:
        return "json"
    if not kinds and any(isinstance(file, Mapping) and file["path"] for row in rows if row for file in row):
        raise UsageError(
            f"column {column!r} holds the paths of files, and not the files: load it with `datasets`, and save_to_disk"
            " embeds the files for `brand convert hf`; or leave it out with --columns"
        )
    what = (
        "both images and audio"
        if known
        else "other bytes than images or audio"
        if kinds
        else "no file in the rows that were read"
    )
    how = f"give --field {column}=list[image] or leave it out with --columns"
    raise UsageError(f"column {column!r} holds lists with {what}, so its codec is unknown: {how}")


def parsed_list(text: str) -> list[Any]:
    """Return the list that a text in JSON means. Raises ValueError if it is another value."""
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError(f"{text} is not a list")
    return value


def with_files(
    schema: Schema, blocks: Iterable[Block | Bad | Noticed], folder: SourcePath, *, once: str = _ONCE
) -> Iterator[Block | Bad | Noticed]:
    """Yield blocks in which the names of files are replaced by their contents, for image and audio fields.

    A text in such a field, or in a list of them, is a path below `folder`; in place of a list, it is a list of one. A
    sample whose file cannot be read becomes `Bad`. Blocks are cut so that each holds a few megabytes. At the end come
    facts about files that are named again; `once` ends their sentence if a field holds one image.
    """
    codecs = {name: codec for name, codec in schema.variable if ELEMENTS.get(codec, codec) in _MEDIA}
    lists = {name: codec in ELEMENTS for name, codec in codecs.items()}
    repeats = {name: _Repeats(name, once if codec == "image" else "") for name, codec in codecs.items()}
    for block in blocks:
        if not isinstance(block, Block) or not any(_has_names(block.columns[name]) for name in codecs):
            yield block
        else:
            for name, found in repeats.items():
                found.count(block.columns[name])
            yield from _with_files(lists, block, folder)
    for found in repeats.values():
        yield from found.noticed()


class _Repeats:
    """Counts names of files in a field that were named before; it knows the first `_NAMES_HELD` names."""

    def __init__(self, field: str, once: str) -> None:
        self._seen, self._field, self._once, self._count, self._example = set[int](), field, once, 0, ""

    def count(self, values: Sequence[Any]) -> None:
        """Count the names among the values of a field."""
        for value in values:
            for name in value if isinstance(value, list) else (value,):
                if not isinstance(name, str):
                    continue
                key = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))
                if key in self._seen:
                    self._count, self._example = self._count + 1, self._example or name
                elif len(self._seen) < _NAMES_HELD:
                    self._seen.add(key)

    def noticed(self) -> Iterator[Noticed]:
        """Yield the fact, if a name came again."""
        if self._count:
            yield Noticed(
                "files_named_again", self._count, self._example[:_LONGEST_EXAMPLE], _AGAIN + self._once, self._field
            )


def _has_names(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) or (isinstance(value, list) and str in map(type, value)) for value in values)


def _with_files(names: Mapping[str, bool], block: Block, folder: SourcePath) -> Iterator[Block | Bad]:
    """Yield a block in parts. `names` has the fields of files, and whether each holds lists."""
    read: dict[str, list[Any]] = {name: [] for name in names}
    first = held = 0

    def made(end: int) -> Block:
        rest = {name: values[first:end] for name, values in block.columns.items()}
        return Block(rest | read, block.called[first:end])

    for position, called in enumerate(block.called):
        try:
            values = {name: block.columns[name][position] for name in names}
            files = {
                name: _contents([value] if names[name] and isinstance(value, str) else value, folder)
                for name, value in values.items()
            }
        except ValueError as error:
            if first < position:
                yield made(position)
            yield Bad(called, str(error), f"Names of files are paths below {folder}")
            read, first, held = {name: [] for name in names}, position + 1, 0
            continue
        for name, value in files.items():
            read[name].append(value)
            held += _bytes_in(value)
        if held >= _BLOCK_BYTES:
            yield made(position + 1)
            read, first, held = {name: [] for name in names}, position + 1, 0
    if first < len(block):
        yield made(len(block))


def _bytes_in(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_in, value))
    return len(value) if isinstance(value, bytes) else 0


def _contents(value: Any, folder: SourcePath) -> Any:
    """Return the contents of the file that a text names; of a list, those of all. Raises ValueError."""
    if isinstance(value, list):
        return [_contents(each, folder) for each in value]
    if not isinstance(value, str):
        return value
    if "://" in value:
        raise ValueError(f"{value!r} is a URL, and URLs are not downloaded")
    path = value
    if value.startswith("/") and isinstance(folder, Path):
        path = os.path.relpath(value, folder.absolute())
    if path.startswith("/") or ".." in (*value.split("/"), *path.split("/")):
        raise ValueError(f"it names the file {value!r}, which is not below the folder")
    try:
        return (folder / path).read_bytes()
    except OSError as error:
        raise ValueError(f"{folder / value}: {error.strerror or error}") from error


def first_text(value: Any) -> str:
    """Return a text, or the first element of a list if that is one; an empty text if it is none that may be a path."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, str) and len(first) <= _LONGEST_PATH else ""


def about_names(
    fields: Sequence[tuple[str, str, str]], texts: Mapping[str, str], table: SourcePath, chosen: Container[str]
) -> Iterator[str]:
    """Yield a note for each column whose first text is the path of an image or audio file next to `table`.

    `fields` has the column, name and codec of each field; the user has chosen the codecs of the columns or fields
    `chosen`. Rows with an offset mean parts of recordings.
    """
    segments = isinstance(table, Path) and any(column == "offset" for column, _, _ in fields)
    for column, name, codec in fields:
        may_name = codec == "audio" or (codec in ("str", "json") and not (column in chosen or name in chosen))
        kind = _kind_of_named(texts.get(column, ""), table.parent) if may_name else ""
        told = printable(texts.get(column, ""))
        if kind == "audio" and segments:
            what = "each sample holds a whole recording" if codec == "audio" else "the names alone are stored"
            folder, manifest = shlex.quote(str(table.parent)), shlex.quote(str(table))
            yield (
                f"column {printable(column)!r} names recordings such as {told}, of which a row with an offset means a"
                f" part, and {what}: `brand convert audio {folder} DST --transcripts {manifest}` cuts them"
            )
        elif kind and codec != "audio":
            option = shlex.quote(f"{name}={f'list[{kind}]' if codec == 'json' else kind}")
            yield f"column {printable(column)!r} names files, such as {told}: --field {option} stores their contents"


def _kind_of_named(text: str, folder: SourcePath) -> str:
    """Return `image` or `audio` if a text is the path of such a file below a folder, else an empty text."""
    path = PurePosixPath(text)
    if kind_by_names([text]) not in ("images", "audio") or path.is_absolute() or ".." in path.parts:
        return ""
    try:
        with (folder / text).open("rb") as file:
            kind = (kind_of(file.read(HEAD_BYTES)) or "").partition("/")[0]
    except (OSError, ValueError, BrandError):  # no such file, or no name of a file
        return ""
    return kind if kind in _MEDIA else ""


def in_order(files: Mapping[int, Any]) -> list[Any]:
    """Return the files of a list by number, from 0 or 1. Raises ValueError if one is missing: others would move up."""
    if not files:
        return []
    numbers = sorted(files)
    expected = range(min(numbers[0], 1), min(numbers[0], 1) + len(numbers))
    missing = next((number for number in expected if number not in files), None)
    if missing is not None:
        raise ValueError(f"its files have the numbers {numbers[0]} to {numbers[-1]}, and number {missing} is missing")
    return [files[number] for number in numbers]
