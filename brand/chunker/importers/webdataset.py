"""Tar files as the library webdataset writes them: which files make a sample, and what are its fields?

Files that follow each other and have one name up to the first dot are a sample; that name is its `key`. The text after
the dot, in lower case, names the field and determines its codec:

    jpg jpeg png webp gif bmp tif tiff ...   image    field `image`      txt           str       field `text`
    wav flac ogg mp3 opus m4a ...            audio    field `audio`      cls           int       field `label`
    json                                     json     field `json`       npy           ndarray   field `npy`
    id index count ...                       int                         transcript    str
    anything else                            image or audio if the first files are of such a kind, else bytes

Numbered files of a sample (`0.jpg`, `1.jpg`, ...) are a list in the order of their numbers: `images`, `audios` or
`texts`, each as long as the sample has files; a sample without such files has an empty list. The numbers begin at 0 or
1, and none is missing. If the user names such an ending as a column, each of them is a field.

A field has the name of its ending if that has several components (`left.jpg`), and if a sample has two files for one
of these names (`jpg` and `png`). Payloads are stored bit for bit; for `json`, `npy` and numbers, the value is stored.
Folders, hidden files and files without an ending are not samples. Nothing is unpickled: such files are `bytes`.

A tar archive is a row of blocks of 512 bytes. Each file has a header (ustar, GNU or the older v7), then its contents in
whole blocks. A header before it may hold a long name (GNU) or records such as `path` and `size` (pax). Blocks of zeros
end an archive; another one may follow. Links and special files have no contents, so a sample that needs one cannot be
used. Python's library spends most of its time on headers, takes a missing end for an
end, and skips a header that it cannot read. Here `_Walk` steps from header to header through a stretch that was read at
once, and compares all their checksums together before any file is returned. Any deviation from the format is an error,
and so are sparse files. Names are cut at their first dot, as webdataset does, also if that joins files that were meant
as samples of their own; a note in the report says how many.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final

import numpy as np

from brand.chunker.importers.fields import FieldMapping, choose
from brand.chunker.importers.files import LARGE_FILE, ImportFile, find_files, read_large, reading, with_compressed
from brand.chunker.importers.lists import in_order
from brand.chunker.importers.natural import FILES_LOOKED_AT, codec_of_bytes, common_codec
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import SourceError, cause_of, counted
from brand.formats.constants import MAX_SAMPLE
from brand.formats.header import ELEMENTS
from brand.formats.media import HEAD_BYTES
from brand.formats.record import windows
from brand.printable import printable
from brand.reprs import Reprs

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_STRETCH: Final = 1 << 20
"""Bytes that are read at once."""
_MOST_TOLD: Final = 1 << 20
"""The most bytes of a header before a header."""
_CHECKSUM: Final = slice(148, 156)
_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"
_SPECIAL: Final = (b"1", b"2", b"3", b"4", b"6")
"""Types of links, devices and pipes: no contents follow their header."""
_LONG_NAME, _LONG_LINK, _FOR_ALL = b"L", b"K", b"g"
_BEFORE: Final = (_LONG_NAME, _LONG_LINK, _FOR_ALL, b"x", b"X")
"""Types of headers that describe the next header."""
_DAMAGED: Final = "a header in it is damaged"

_IMAGES: Final = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "jp2", "avif", "ppm", "pgm")
_AUDIO: Final = ("wav", "flac", "ogg", "oga", "opus", "mp3", "m4a", "aac", "aif", "aiff", "au", "caf")
_USUAL: Final = {"txt": "text", "cls": "label", **dict.fromkeys(_IMAGES, "image"), **dict.fromkeys(_AUDIO, "audio")}
_CODECS: Final = {
    **dict.fromkeys(_IMAGES, "image"),
    **dict.fromkeys(_AUDIO, "audio"),
    **dict.fromkeys(("txt", "text", "transcript"), "str"),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "int"),
    **dict.fromkeys(("json", "jsn"), "json"),
    "npy": "ndarray",
}
_PLURALS: Final = {"image": "images", "audio": "audios", "text": "texts"}
"""Field of one file of a sample -> field of several, which are numbered."""
_NUMBERED: Final = re.compile(r"(\d{1,9})\.(.+)", re.DOTALL)
_KEY: Final = "__key__"
_BLOCK_BYTES: Final = 4 << 20
_BLOCK_SAMPLES: Final = 1024
_WITHOUT_LINKS: Final = "tar --dereference --hard-dereference makes an archive without links"
_NO_CONTENTS: Final = "a link or a special file, which has no contents in the archive"
Contents = bytes | memoryview | None
"""Contents of a file; None for a link or a special file."""
Sample = tuple[str, dict[str, Contents]]
"""Key, and contents by ending."""


def members(stream: BinaryIO, name: str) -> Iterator[tuple[str, Contents]]:
    """Yield names and contents of the files, in order; also of archives that follow one another.

    Raises `SourceError` if the archive is damaged.
    """
    try:
        yield from _files(stream)
    except ValueError as error:
        raise SourceError(name, str(error)) from None


def _files(stream: BinaryIO) -> Iterator[tuple[str, Contents]]:
    walk, data = _Walk(), b""
    while True:
        for name, begin, end in walk.over(data):
            yield name, data[begin:end] if begin else None
        if walk.large is not None:
            name, begin, size = walk.large
            yield name, _large(stream, name, data[begin:], size)
            data = _read(stream, _STRETCH)
            walk.pass_large()
            continue
        if not (more := _read(stream, max(_STRETCH, walk.missing))):
            walk.end(data)
            return
        data = data[walk.at :] + more


def _large(stream: BinaryIO, name: str, begun: bytes, size: int) -> memoryview:
    """Return the contents of a large file, which begin with `begun`, and pass over the zeros behind them."""
    behind = size + -size % _BLOCK - max(size, len(begun))
    try:
        contents = read_large(stream, size, begun[:size])
    except EOFError:
        raise ValueError(_truncated(name)) from None
    if len(_read(stream, behind)) < behind:
        raise ValueError(_truncated(name))
    return contents


def _truncated(name: str) -> str:
    return f"it is truncated within {name!r}"


def _read(stream: BinaryIO, size: int) -> bytes:
    """Return `size` bytes, or those that are left. A size in a header costs no memory before the bytes are there."""
    pieces = []
    while size > 0 and (piece := stream.read(min(size, _STRETCH))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


class _Walk(Reprs, shows="at missing _told"):
    """Steps from header to header through the stretches of one file."""

    def __init__(self) -> None:
        self.at = 0
        """Offset in the last stretch of the first block that has not been used."""
        self.missing = 0
        """Bytes that are missing of the file that begins there."""
        self._within = ""  # the name of that file
        self.large: tuple[str, int, int] | None = None
        """Name, begin and size of that file if it is large: the caller reads its contents, and calls `pass_large`."""
        self._ended = False
        """Whether the last block marked the end of an archive."""
        self._told: dict[str, str] | None = None
        """Facts from headers before the next one: `path`, `size`. None if there are none."""

    def over(self, data: bytes) -> list[tuple[str, int, int]]:
        """Return the files that are wholly in a stretch: names, begins and ends of the contents. Raises ValueError.

        A link or a special file begins and ends at 0.
        """
        spans, heads = list[tuple[str, int, int]](), list[int]()
        self.at = self.missing = 0
        self.large = None
        while self.at + _BLOCK <= len(data):
            head = self.at
            if not data[head] and data[head : head + _BLOCK] == _ZEROS:
                if self._told is not None:
                    raise ValueError(f"{_DAMAGED}: the header that follows it is missing")
                self.at, self._ended = self.at + _BLOCK, True
                continue
            heads.append(head)
            kind, told, begin = data[head + 156 : head + 157], self._told or {}, head + _BLOCK
            name = told.get("path") or _name(data, head)
            end = begin + (_size(data, head, kind, told) if kind in _FILES or kind in _BEFORE else 0)
            after = end + (begin - end) % _BLOCK
            if after > len(data):
                self.missing, self._within = after - len(data), name
                if kind in _FILES and end - begin >= LARGE_FILE and not name.endswith("/"):
                    self.large = name, begin, end - begin
                break
            self.at, self._ended = after, False
            if kind in _BEFORE:
                self._hear(kind, data[begin:end])
                continue
            self._told = None
            if kind in _FILES and not (kind == b"\0" and name.endswith("/")):  # v7 has no type for folders
                spans.append((name, begin, end))
            elif kind in _SPECIAL:
                spans.append((name, 0, 0))
            elif kind not in (*_FILES, _FOLDER):
                _check(data, heads)
                what = "a sparse file" if kind == b"S" else f"of the unknown type {kind!r}"
                raise ValueError(f"{name!r} is {what}, and only whole files can be samples")
        _check(data, heads)
        return spans

    def pass_large(self) -> None:
        """Go on after a large file."""
        self.at, self.missing, self._ended, self._told = 0, 0, False, None

    def end(self, data: bytes) -> None:
        """Check that nothing is missing after the last stretch. Raises ValueError if the archive is not at its end."""
        if self.missing:
            raise ValueError(_truncated(self._within))
        if self.at < len(data):
            raise ValueError(f"{_DAMAGED}: it is truncated")
        if self._told is not None or not self._ended:
            raise ValueError("it ends without the mark of its end: it is truncated")

    def _hear(self, kind: bytes, data: bytes) -> None:
        """Read a header before a header. If several state the same thing, the first one is right."""
        told = dict[str, str]()
        if kind == _LONG_NAME:
            told = {"path": _text(data)}
        elif kind != _LONG_LINK:
            told = {key: value for key, value in _pax(data) if key in ("path", "size") or key.startswith("GNU.sparse")}
            if any(key.startswith("GNU.sparse") for key in told):
                raise ValueError("it holds a sparse file, and only whole files can be samples")
            if told and kind == _FOR_ALL:
                raise ValueError(f"{_DAMAGED}: it sets the {next(iter(told))} of all files")
        self._told = told | (self._told or {})


def _check(data: bytes, heads: list[int]) -> None:
    """Compare the checksums of headers: sums of their bytes, which old programs took for signed ones."""
    if not heads:
        return
    blocks = windows(np.frombuffer(data, np.uint8), _BLOCK)[np.array(heads)].view(np.uint8).reshape(len(heads), _BLOCK)
    told = np.array([_octal(block[_CHECKSUM].tobytes()) for block in blocks])
    blocks[:, _CHECKSUM] = ord(" ")
    sums, signed = (blocks.view(kind).sum(axis=1, dtype=np.int64) for kind in (np.uint8, np.int8))
    if not np.all((sums == told) | (signed == told)):
        raise ValueError(f"{_DAMAGED}: its checksum differs")


def _name(data: bytes, head: int) -> str:
    """Return the name in a header. The space for the front of a long `ustar` name has another use in GNU's headers."""
    name = _text(data[head : head + 100])
    has_front = data[head + 345] and data[head + 257 : head + 263] == b"ustar\0"
    return f"{_text(data[head + 345 : head + 500])}/{name}" if has_front else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _size(data: bytes, head: int, kind: bytes, told: dict[str, str]) -> int:
    """Return the number of bytes that follow a header."""
    field = data[head + 124 : head + 136]
    if kind not in _BEFORE and "size" in told:
        size = _whole(told["size"].encode("utf-8", "surrogateescape"), 10)
    else:  # GNU gives a large number itself, in place of its digits
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    most = _MOST_TOLD if kind in _BEFORE else MAX_SAMPLE
    if size > most:
        raise ValueError(f"{_DAMAGED}: {size:,} bytes follow it, and the limit is {most:,}")
    return size


def _octal(field: bytes) -> int:
    return _whole(field.partition(b"\0")[0].strip(b" ") or b"0", 8)


def _whole(digits: bytes, base: int) -> int:
    try:
        return int(digits if digits.isdigit() else b"", base)
    except ValueError:
        raise ValueError(f"{_DAMAGED}: it has {digits[:20]!r} for a number") from None


def _pax(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the records of a pax header: `LENGTH KEY=VALUE` and a line feed; the length counts all of it."""
    at = 0
    while at < len(data):
        digits = data[at : at + 10].partition(b" ")[0]
        end = at + _whole(digits, 10)
        key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or not key or end > len(data) or data[end - 1 : end] != b"\n":
            raise ValueError(f"{_DAMAGED}: a record of it is malformed")
        yield _text(key), value.decode("utf-8", "surrogateescape")
        at = end


class WebDataset(Shards):
    """Tar files, also compressed ones."""

    kind = "webdataset"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        self._files = find_files(src, [*with_compressed(".tar"), ".tgz"], "tar file", choice.split)
        seen: list[Sample] = []
        for file in self._files:
            for key, files in islice(_samples(file), FILES_LOOKED_AT):
                seen.append((key, {ending: data and bytes(data[:HEAD_BYTES]) for ending, data in files.items()}))
            if seen:
                break
        if not seen:
            raise SourceError(os.fspath(src), "the tar files hold no samples: no file `NAME.ENDING` is in them")
        self._lists = _list_fields(seen, choice)
        alone = [[ending for ending in files if self._listed(ending) is None] for _, files in seen]
        self._clashing = {name for files in alone for name, count in Counter(map(_usual, files)).items() if count > 1}
        columns: dict[str, list[str]] = {}
        for _, files in seen:
            for ending, data in files.items():
                name, number = self._listed(ending) or (self._column(ending), None)
                codec = _codec(ending, bytes(data or b""))
                columns.setdefault(name, []).append(codec if number is None else f"list[{codec}]")
        natural = [(name, common_codec(codecs) or "bytes") for name, codecs in columns.items()]
        self._all = {name for name, _ in natural}
        self._some = bool(choice.columns)
        self._fields = choose([*natural, ("key", "str")], choice)
        shards = (Shard(file.name, file.bytes, file.mark) for file in self._files)
        notes = [_about_list(name, seen) for name in self._fields.schema.names if name in self._lists]
        dots = _about_dots([(key, endings) for (key, _), endings in zip(seen, alone, strict=True)])
        super().__init__(shards, self._fields.schema, self._fields.choice, [*self._fields.renamed, *dots, *notes])

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the samples of one shard, as `Shards.read` does."""
        rows: list[dict[str, Any]] = []
        held = 0
        for key, files in _samples(self._files[number]):
            row = self._row(key, files)
            if isinstance(row, Bad):
                yield row
                continue
            rows.append(row)
            held += sum(map(len, filter(None, files.values())))
            if held >= _BLOCK_BYTES or len(rows) >= _BLOCK_SAMPLES:
                yield self._block(rows)
                rows, held = [], 0
        if rows:
            yield self._block(rows)

    def _block(self, rows: list[dict[str, Any]]) -> Block:
        return self._fields.block_of_rows(rows, [f"sample {row[_KEY]!r}" for row in rows])

    def _listed(self, ending: str) -> tuple[str, int] | None:
        """Return the list field of a file, and its number there; None if the file is a field of its own."""
        found = _numbered(ending)
        return found if found is not None and found[0] in self._lists else None

    def _column(self, ending: str) -> str:
        return ending if _usual(ending) in self._clashing else _usual(ending)

    def _row(self, key: str, files: Mapping[str, Contents]) -> dict[str, Any] | Bad:
        called = f"sample {key!r}"
        row: dict[str, Any] = {_KEY: key, "key": key}
        lists: dict[str, dict[int, bytes | memoryview]] = {name: {} for name in self._lists}
        for ending, data in files.items():
            if (place := self._listed(ending)) is not None:
                name, number = place
                if data is None:
                    if self._some and name not in self._fields.columns:
                        continue
                    return Bad(called, f"its file .{ending} is {_NO_CONTENTS}", _WITHOUT_LINKS)
                if number in lists[name]:
                    return Bad(called, f"it has two files of number {number} for the field {name!r}")
                lists[name][number] = data
                continue
            column = self._column(ending)
            if column in row and column != "key":
                return Bad(called, f"it has two files for the field {column!r}")
            if column in self._all:
                if data is None and (not self._some or column in self._fields.columns):
                    return Bad(called, f"its file .{ending} is {_NO_CONTENTS}", _WITHOUT_LINKS)
                row[column] = data
            elif not self._some:
                hint = f"--columns {','.join(self._fields.columns)} reads no others"
                dots = f" (its name is cut at the first dot of {key}.{ending})" if "." in ending else ""
                return Bad(called, f"it has a file .{ending}, and the first samples have none{dots}", hint)
        for column, name, codec in self._fields.pairs:
            if column in lists:
                try:
                    row[column] = [_value(ELEMENTS.get(codec, codec), data) for data in in_order(lists[column])]
                except Exception as error:  # noqa: BLE001 - as for one file
                    hint = "--columns with the endings, such as 0.jpg,1.jpg, stores each file as a field of its own"
                    return Bad(called, f"field {name!r} ({codec}): {cause_of(error)}", hint)
            elif column in row and column != "key":
                try:
                    row[column] = _value(codec, row[column])
                except Exception as error:  # noqa: BLE001 - damaged .npy files raise many kinds, also SyntaxError
                    hint = f"--field {name}=bytes stores what is there"
                    return Bad(called, f"field {name!r} ({codec}): {cause_of(error)}", hint)
            elif column not in row and name not in self._fields.nulls:
                hint = f"--null {name}=VALUE replaces each missing value"
                return Bad(called, f"it has no file for the field {name!r}, which other samples have", hint)
        return row


def _about_dots(seen: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return a note on samples with several files of one ending, whose names have dots before it; empty if none has.

    `seen` has the key of each sample, and the endings of its files that are no elements of lists.
    """
    for key, files in seen:
        alike = Counter(ending.rpartition(".")[2] for ending in files if "." in ending)
        last = next((last for last, count in alike.items() if count > 1), None)
        if last is not None:
            names = [f"{key}.{ending}" for ending in files if "." in ending and ending.endswith(f".{last}")]
            return [
                f"names are cut at their first dot, as webdataset does: {counted(len(names), 'file')} such as"
                f" {printable(names[0])} and {printable(names[1])} are one sample {printable(repr(key))}. If each is a"
                " sample of its own, write the tar files with names that have no dot before the ending"
            ]
    return []


def _list_fields(seen: Sequence[Sample], choice: FieldMapping) -> set[str]:
    """Return the names of the list fields of numbered files, such as `images` for `0.jpg` and `1.jpg`.

    There are none if the user has named such an ending, or if a file has the name of a list field as its ending.
    """
    endings = {ending for _, files in seen for ending in files}
    if any(map(_numbered, (*choice.columns, *choice.codecs, *choice.nulls, *choice.renames.values()))):
        return set()
    return {found[0] for found in map(_numbered, endings) if found is not None} - endings


def _numbered(ending: str) -> tuple[str, int] | None:
    """Return list field and number of a file that is one of several of its sample; None for any other file."""
    match = _NUMBERED.fullmatch(ending)
    name = "" if match is None else _PLURALS.get(_usual(match[2]), "")
    return (name, int(match[1])) if match is not None and name else None


def _about_list(name: str, seen: Sequence[Sample]) -> str:
    """Return a note on a list of files: they may be samples of their own, with a dot in their names."""
    numbers = [(found, key, ending) for key, files in seen for ending in files if (found := _numbered(ending))]
    key, ending = next((key, ending) for found, key, ending in numbers if found[0] == name)
    return f"numbered files, such as {key}.{ending}, are elements of the list {name!r} of their sample"


def _usual(ending: str) -> str:
    return _USUAL.get(ending, ending)


def _codec(ending: str, data: bytes) -> str:
    return _CODECS.get(ending.rpartition(".")[2]) or codec_of_bytes([data])


def _value(codec: str, data: bytes | memoryview) -> Any:
    """Return a file's contents as the value of a field. Raises ValueError if they are invalid."""
    if codec in ("bytes", "image", "audio"):
        return data
    data = bytes(data)
    if codec == "str":
        return data.decode()
    if codec in ("int", "float"):
        return data.decode().strip()
    if codec == "json":
        return json.loads(data)
    return np.load(io.BytesIO(data), allow_pickle=False) if codec == "ndarray" else data


def _samples(file: ImportFile) -> Iterator[Sample]:
    """Yield the samples of one tar file. Raises `SourceError` if the archive is damaged."""
    key, files = None, dict[str, Contents]()
    with reading(file.path, file.name) as stream:
        for name, data in members(stream, file.name):
            base = name.rpartition("/")[2]
            stem, dot, ending = base.partition(".")
            if not stem or not dot or not ending:
                continue
            if name[: len(name) - len(ending) - 1] != key:
                if key is not None:
                    yield key, files
                key, files = name[: len(name) - len(ending) - 1], {}
            ending = ending.lower()
            if ending in files:
                raise SourceError(file.name, f"sample {key!r} has two files .{ending}: it was written twice")
            files[ending] = data
        if key is not None:
            yield key, files
