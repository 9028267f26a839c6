"""Tar files as the library webdataset writes them: which files make a sample, and what are its fields?

Files that follow each other and have one name up to the first dot are a sample; that name is its `key`. What follows
the dot names the field and tells its codec:

    jpg jpeg png webp gif bmp tif tiff ...   image    field `image`      txt           str       field `text`
    wav flac ogg mp3 opus m4a ...            audio    field `audio`      cls           int       field `label`
    json                                     json     field `json`       npy           ndarray   field `npy`
    id index count ...                       int                         transcript    str
    anything else                            image or audio where the first files are of such a kind, else bytes

A field has the name of its ending where that has several parts (`left.jpg`), and where a sample has two files for one
of these names (`jpg` and `png`).
Payloads are stored bit for bit, but for `json`, `npy` and numbers, of which the value is stored. Folders, hidden files
and files without an ending are no samples. Nothing is unpickled: such files are `bytes`.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import numpy as np

from brand.chunker.fields import Choice, choose, codec_of_bytes, common_codec
from brand.chunker.importers.files import COMPRESSED, File, find_files, reading
from brand.chunker.shards import Bad, Block, Shard
from brand.errors import SourceError

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
_KEY: Final = "__key__"
_LOOKED_AT: Final = 64
"""Samples that tell which fields there are."""
_BLOCK_BYTES: Final = 4 << 20
_BLOCK_SAMPLES: Final = 1024
_MEMBERS_KEPT: Final = 1024

Sample = tuple[str, dict[str, bytes]]
"""Key, and contents by ending."""


class WebDataset:
    """Tar files, also compressed ones."""

    kind = "webdataset"
    classes = None

    def __init__(self, src: str | os.PathLike[str], choice: Choice) -> None:
        self._files = find_files(src, [".tar", *(f".tar{ending}" for ending in COMPRESSED), ".tgz"], "tar file")
        self.shards = tuple(Shard(file.name, file.bytes, file.mark) for file in self._files)
        seen: list[Sample] = []
        for file in self._files:
            seen += islice(_samples(file), _LOOKED_AT - len(seen))
            if seen:
                break
        if not seen:
            raise SourceError(os.fspath(src), "the tar files hold no samples: no file `NAME.ENDING` is in them")
        self._clashing = {name for _, files in seen for name, count in Counter(map(_usual, files)).items() if count > 1}
        columns: dict[str, list[str]] = {}
        for _, files in seen:
            for ending, data in files.items():
                columns.setdefault(self._column(ending), []).append(_codec(ending, data))
        natural = [(name, common_codec(codecs) or "bytes") for name, codecs in columns.items()]
        self._all = {name for name, _ in natural}
        self._some = bool(choice.columns)
        self._fields = choose([*natural, ("key", "str")], choice)
        self.schema, self.choice = self._fields.schema, self._fields.choice

    @property
    def notes(self) -> list[str]:
        """What the report tells."""
        return self._fields.renamed

    def read(self, number: int) -> Iterator[Block | Bad]:
        """See `Shards`."""
        rows: list[dict[str, Any]] = []
        held = 0
        for key, files in _samples(self._files[number]):
            row = self._row(key, files)
            if isinstance(row, Bad):
                yield row
                continue
            rows.append(row)
            held += sum(map(len, files.values()))
            if held >= _BLOCK_BYTES or len(rows) >= _BLOCK_SAMPLES:
                yield self._block(rows)
                rows, held = [], 0
        if rows:
            yield self._block(rows)

    def _block(self, rows: list[dict[str, Any]]) -> Block:
        return self._fields.block_of_rows(rows, [f"sample {row[_KEY]!r}" for row in rows])

    def _column(self, ending: str) -> str:
        return ending if _usual(ending) in self._clashing else _usual(ending)

    def _row(self, key: str, files: Mapping[str, bytes]) -> dict[str, Any] | Bad:
        called = f"sample {key!r}"
        row: dict[str, Any] = {_KEY: key, "key": key}
        for ending, data in files.items():
            column = self._column(ending)
            if column in row and column != "key":
                return Bad(called, f"it has two files for the field {column!r}")
            if column in self._all:
                row[column] = data
            elif not self._some:
                names = ",".join(self._fields.columns)
                return Bad(
                    called,
                    f"it has a file .{ending}, and the first samples have none",
                    f"--columns {names} takes no others",
                )
        for column, (name, codec) in zip(self._fields.columns, self.schema.fields, strict=True):
            if column in row and column != "key":
                try:
                    row[column] = _value(codec, row[column])
                except ValueError as error:
                    return Bad(
                        called, f"field {name!r} ({codec}): {error}", f"--field {name}=bytes stores what is there"
                    )
            elif column not in row and name not in self._fields.nulls:
                hint = f"--null {name}=VALUE puts a value in the place of each one that is missing"
                return Bad(called, f"it has no file for the field {name!r}, which other samples have", hint)
        return row


def _usual(ending: str) -> str:
    return _USUAL.get(ending.lower(), ending)


def _last(ending: str) -> str:
    return ending.rpartition(".")[2].lower()


def _codec(ending: str, data: bytes) -> str:
    return _CODECS.get(_last(ending)) or codec_of_bytes([data])


def _value(codec: str, data: bytes) -> Any:
    """A file's contents as the value of a field. Raises ValueError."""
    if codec == "str":
        return data.decode()
    if codec in ("int", "float"):
        return data.decode().strip()
    if codec == "json":
        return json.loads(data)
    return np.load(io.BytesIO(data), allow_pickle=False) if codec == "ndarray" else data


def _samples(file: File) -> Iterator[Sample]:
    """The samples of one tar file. Raises `SourceError`."""
    key, files = None, dict[str, bytes]()
    with reading(file.path, file.name) as stream:
        for name, data in _members(stream, file.name):
            base = name.rpartition("/")[2]
            stem, dot, ending = base.partition(".")
            if not stem or not dot or not ending:
                continue
            if name[: len(name) - len(ending) - 1] != key:
                if key is not None:
                    yield key, files
                key, files = name[: len(name) - len(ending) - 1], {}
            if ending in files:
                raise SourceError(file.name, f"sample {key!r} has two files .{ending}: it was written twice")
            files[ending] = data
        if key is not None:
            yield key, files


class _Member(tarfile.TarInfo):
    """A header. What is wrong with one ends the reading, where the library would skip it."""

    @classmethod
    def fromtarfile(cls, tar: Any) -> Any:
        """Read the next header. Raises `_Damaged`, besides what tells the library that there is none."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            kind = type(error).__name__
            if kind == "EOFHeaderError":  # a block of zeros; another archive may follow it
                tar.ended = True
            elif kind != "EmptyHeaderError":
                raise _Damaged(f"a header in it is damaged: {error}") from None
            elif not getattr(tar, "ended", False):
                raise _Damaged("it ends without the mark of its end: it is cut short") from None
            raise


class _Damaged(Exception):
    """A tar file is not what it should be."""


def _members(stream: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files, in order; also of archives that were written one behind the other."""
    try:
        with cast(Any, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, ignore_zeros=True)) as tar:
            for member in tar:
                tar.ended = False
                if len(tar.members) > _MEMBERS_KEPT:
                    tar.members = []  # the library remembers all of them
                if member.isdir():
                    continue
                if not member.isreg():
                    raise SourceError(
                        name, f"{member.name!r} is a link or a special file, and only files can be samples"
                    )
                contents = tar.extractfile(member)
                data = contents.read() if contents is not None else b""
                if len(data) != member.size:
                    raise _Damaged(f"it is cut short within {member.name!r}")
                yield member.name, data
    except _Damaged as error:
        raise SourceError(name, str(error)) from error
    except tarfile.TarError as error:
        raise SourceError(name, f"it is cut short or damaged: {error}") from error
