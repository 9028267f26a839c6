"""Tar files as the library webdataset writes them: which files make a sample, and what are its fields?

Files that follow each other and have one name up to the first dot are a sample; that name is its `key`. The text after
the dot names the field and determines its codec:

    jpg jpeg png webp gif bmp tif tiff ...   image    field `image`      txt           str       field `text`
    wav flac ogg mp3 opus m4a ...            audio    field `audio`      cls           int       field `label`
    json                                     json     field `json`       npy           ndarray   field `npy`
    id index count ...                       int                         transcript    str
    anything else                            image or audio if the first files are of such a kind, else bytes

A field has the name of its ending if that has several components (`left.jpg`), and if a sample has two files for one
of these names (`jpg` and `png`).
Payloads are stored bit for bit; for `json`, `npy` and numbers, the value is stored. Folders, hidden files
and files without an ending are not samples. Nothing is unpickled: such files are `bytes`.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from brand.chunker.importers.fields import FILES_LOOKED_AT, FieldMapping, choose, codec_of_bytes, common_codec
from brand.chunker.importers.files import COMPRESSED, ImportFile, find_files, reading
from brand.chunker.importers.tars import members
from brand.chunker.sources.shards import Bad, Block, Shard
from brand.errors import SourceError
from brand.formats.media import HEAD_BYTES

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
_BLOCK_BYTES: Final = 4 << 20
_BLOCK_SAMPLES: Final = 1024

Sample = tuple[str, dict[str, bytes]]
"""Key, and contents by ending."""


class WebDataset:
    """Tar files, also compressed ones."""

    kind = "webdataset"
    classes = None

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        self._files = find_files(src, [".tar", *(f".tar{ending}" for ending in COMPRESSED), ".tgz"], "tar file")
        self.shards = tuple(Shard(file.name, file.bytes, file.mark) for file in self._files)
        seen: list[Sample] = []
        for file in self._files:
            for key, files in islice(_samples(file), FILES_LOOKED_AT):
                seen.append((key, {ending: data[:HEAD_BYTES] for ending, data in files.items()}))
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
        """Sentences for the report."""
        return self._fields.renamed

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
                    f"--columns {names} reads no others",
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
                hint = f"--null {name}=VALUE replaces each missing value"
                return Bad(called, f"it has no file for the field {name!r}, which other samples have", hint)
        return row


def _usual(ending: str) -> str:
    return _USUAL.get(ending.lower(), ending)


def _last(ending: str) -> str:
    return ending.rpartition(".")[2].lower()


def _codec(ending: str, data: bytes) -> str:
    return _CODECS.get(_last(ending)) or codec_of_bytes([data])


def _value(codec: str, data: bytes) -> Any:
    """Return a file's contents as the value of a field. Raises ValueError if they are invalid."""
    if codec == "str":
        return data.decode()
    if codec in ("int", "float"):
        return data.decode().strip()
    if codec == "json":
        return json.loads(data)
    return np.load(io.BytesIO(data), allow_pickle=False) if codec == "ndarray" else data


def _samples(file: ImportFile) -> Iterator[Sample]:
    """Yield the samples of one tar file. Raises `SourceError` if the archive is damaged."""
    key, files = None, dict[str, bytes]()
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
            if ending in files:
                raise SourceError(file.name, f"sample {key!r} has two files .{ending}: it was written twice")
            files[ending] = data
        if key is not None:
            yield key, files
