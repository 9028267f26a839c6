"""Which columns of a table of images name files, and how does a row with several of them become a sample?

The convention of `datasets` of Hugging Face for `metadata.*` in a folder of images: `file_name` names the file of the
field `image`, and `input_file_name` that of the field `input`; `file_names` is a list, the field `images`, and
`page_file_names` the field `page`. Each row is a sample, and a file may be in several rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import xxhash

from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.lists import with_files
from brand.chunker.importers.walk import files_below
from brand.chunker.sources.objects import ObjectPath, SourcePath, entries_below
from brand.chunker.sources.shards import Bad, Block, Shards
from brand.errors import UsageError
from brand.formats.header import Schema
from brand.formats.noticed import Noticed

_ONE: Final = "file_name"
_SEVERAL: Final = "file_names"
_IMAGES: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jxl")
_NOT_NAMED: Final = "{count} image[s] in the folder [is|are] in no row of the table, and not converted"


def field_of(column: str) -> str:
    """Return the name of the field of images that a column of names makes."""
    for name, field in ((_ONE, "image"), (_SEVERAL, "images")):
        if column == name or column.endswith(f"_{name}"):
            return column.removesuffix(name).removesuffix("_") or field
    return column


def naming(fields: Sequence[tuple[str, str]], choice: FieldMapping) -> dict[str, str]:
    """Return the fields that name files, and the codecs of these files: only of texts and lists, as `datasets` does.

    Empty if `file_name` is the only one, as then each file has a row. Fields with a codec of the user are left out.
    """
    found = {
        name: "image" if codec == "str" else "list[image]"
        for name, codec in fields
        if name not in choice.codecs
        and (
            (codec == "str" and (name == _ONE or name.endswith(f"_{_ONE}")))
            or (codec in ("json", "list[str]") and (name == _SEVERAL or name.endswith(f"_{_SEVERAL}")))
        )
    }
    return {} if set(found) == {_ONE} else found


class NamedFiles(Shards):
    """A table in which columns name files below its folder. `source` is the table, with these columns as texts."""

    def __init__(self, source: Shards, root: SourcePath, names: Mapping[str, str]) -> None:
        self.kind = source.kind  # type: ignore[misc]
        self._source, self._root, self._names = source, root, names
        fields = [
            (field_of(name), names[name]) if name in names else (name, codec) for name, codec in source.schema.fields
        ]
        twice = next((name for name, _ in fields if [each for each, _ in fields].count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two of its columns would be the field {twice!r}: rename one with --field NEW=COLUMN")
        told = f"{source.choice} {sorted(names.items())}"
        notes = [f"column {name!r} is field {field_of(name)!r}: the files that it names" for name in names]
        super().__init__(source.shards, Schema.parse(fields), told, (*source.notes, *notes), source.classes)
        self.noticed = (*source.noticed, *_not_named(source, root, names))
        self.field_classes = source.field_classes

    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the samples of one shard, as `Shards.read` does."""
        yield from with_files(self.schema, self._renamed(self._source.read(number)), self._root, once="")

    def _renamed(self, blocks: Iterable[Block | Bad | Noticed]) -> Iterator[Block | Bad | Noticed]:
        """Yield blocks with the names of the fields; a row without the name of a file is bad."""
        for block in blocks:
            if not isinstance(block, Block):
                yield block
                continue
            fields = {field_of(name) if name in self._names else name: v for name, v in block.columns.items()}
            lacking = {
                at: name for name in self._names for at, v in enumerate(block.columns[name]) if v is None or v == ""
            }
            first = 0
            for at, name in sorted(lacking.items()):
                yield from _some(fields, block.called, first, at)
                hint = f"--null {name}=NAME names one for all such rows"
                yield Bad(block.called[at], f"column {name!r} names no file", hint)
                first = at + 1
            yield from _some(fields, block.called, first, len(block))


def _some(fields: Mapping[str, Sequence[Any]], called: Sequence[str], first: int, end: int) -> Iterator[Block]:
    """Yield the rows `first` to `end` - 1 as a block, if there are any."""
    if first < end:
        yield Block({name: values[first:end] for name, values in fields.items()}, called[first:end])


def _not_named(source: Shards, root: SourcePath, names: Mapping[str, str]) -> Iterator[Noticed]:
    """Yield a fact if there are images in the folder that no row names."""
    named = [np.zeros(0, np.uint64)]
    for number in range(len(source.shards)):
        for block in source.read(number):
            if isinstance(block, Block):
                texts = [text for name in names for value in block.columns[name] for text in _texts(value)]
                named.append(np.fromiter(map(_hash, texts), np.uint64, len(texts)))
    there = files_below(root, _IMAGES) if isinstance(root, Path) else _objects_below(root)
    hashes = np.fromiter(map(_hash, there), np.uint64, len(there))
    left = np.flatnonzero(~np.isin(hashes, np.concatenate(named)))
    if len(left):
        yield Noticed("images_not_named", len(left), there[left[0]], _NOT_NAMED)


def _objects_below(root: ObjectPath) -> list[str]:
    """Return the paths of the images below a folder in a store or in a zip, sorted."""
    paths = (PurePosixPath(entry.name).relative_to(root.path).as_posix() for entry in entries_below(root))
    return sorted(path for path in paths if path.lower().endswith(_IMAGES))


def _texts(value: object) -> Sequence[str]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.removeprefix("./").encode("utf-8", "surrogateescape"))
