"""The index of one segment of a collection: which public indices and places do its samples have?

public index   index in the collection; samples that were removed from the segment leave gaps ("absent")
local index    index in the segment's own files, without gaps
place          `first_place` + the place in the segment's own files

A version of a collection also names files of numbers, lists of indices and the values of overlays, each with its length
and its checksum (`Listed`).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, ForeignFileError, LayoutError, MissingFileError, UnreadableError
from brand.formats.constants import NOTHING, column_name
from brand.formats.index import open_array
from brand.formats.manifest import read_manifest
from brand.formats.version import Listed, PartOf, Version
from brand.storage.dataset.indexes import OwnIndex
from brand.storage.io.location import FolderLocation

VERIFY_HINT: Final = "`brand verify` checks all segments"


def read_list(folder: Path, listed: Listed | None, end: int) -> NDArray[np.int64]:
    """Return the indices of a list, each smaller than `end`; none if there is no list. Raises a `FormatError`."""
    if listed is None:
        return np.empty(0, np.int64)
    values: NDArray[np.int64] = read_values(folder, listed, np.dtype("<u8")).astype(np.int64)
    if len(values) and (int(values[-1]) >= end or int(values[0]) < 0 or (np.diff(values) < 1).any()):
        raise LayoutError("the indices do not rise, or are out of range", path=folder / listed.name, hint=VERIFY_HINT)
    return values


def read_values(folder: Path, listed: Listed, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the numbers in a list's file, compared with its checksum. Raises a `FormatError`."""
    path, size = folder / listed.name, 0
    try:
        size = path.stat().st_size
        # Checked before the file is read, so that a damaged file cannot exhaust memory.
        if size > listed.count * dtype.itemsize + (1 << 16):
            raise LayoutError("a list larger than it should be", path=path, found=size, hint=VERIFY_HINT)
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError("a list is missing", path=path, hint=VERIFY_HINT) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=VERIFY_HINT) from error
    found = xxhash.xxh3_128_hexdigest(data)
    if found != listed.digest:
        raise ChecksumError("checksum of the list", path=path, expected=listed.digest, found=found, hint=VERIFY_HINT)
    start = size - listed.count * dtype.itemsize
    if start < 0 or data[:6] != b"\x93NUMPY":
        raise LayoutError("a list of another length", path=path, expected=listed.count, hint=VERIFY_HINT)
    return np.frombuffer(data, dtype, listed.count, start)


class PartIndex:
    """The index of one segment; places and indices in the segment's own files are called local."""

    def __init__(self, folder: Path, part: PartOf, first_chunk: int, absent: NDArray[np.int64]) -> None:
        self.part, self.first_chunk = part, first_chunk
        self.location = FolderLocation(folder / part.name)
        self.manifest = read_manifest(self.location.local)
        self.header = self.manifest.header
        self.first_place = first_chunk * self.header.chunk_size
        self.absent = absent
        """Public indices of the segment's run whose samples were removed."""
        self._absent = absent - part.first
        self._before = self._absent - np.arange(len(absent))
        """Number of the segment's samples before each absent one."""
        told = self.manifest.data_set_id.hex(), self.header.samples
        if told != (part.id, part.samples):
            expected, found = f"{part.id}, {part.samples} samples", f"{told[0]}, {told[1]} samples"
            what, path = "a segment with the name of another segment", self.location.local
            raise ForeignFileError(what, path=path, expected=expected, found=found, hint=VERIFY_HINT)

    @cached_property
    def own(self) -> OwnIndex:
        """The index in the segment's own files. A reader for its tables numbers chunks as the collection does."""
        return OwnIndex(self.location, self.first_chunk)

    def public(self, local: NDArray[Any]) -> NDArray[np.int64]:
        """Return the public indices of samples, given their local ones."""
        local = local.astype(np.int64)
        if len(self._before):
            local = local + np.searchsorted(self._before, local, side="right")
        return local + self.part.first

    def local(self, public: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the local indices of samples, given their public ones; -1 for an absent index."""
        within = public - self.part.first
        if not len(self._absent):
            return within
        before = np.searchsorted(self._absent, within)
        there = np.append(self._absent, -1)[before] != within
        return np.where(there, within - before, -1)

    def column(self, name: str, codec: str) -> NDArray[Any]:
        values = open_array(self.location.local, column_name(name), self.header).all()
        if not len(self._absent):
            return values
        found = np.full(self.part.end - self.part.first, NOTHING[codec], values.dtype)
        found[self.public(np.arange(len(values))) - self.part.first] = values
        return found


def open_parts(folder: Path, version: Version) -> list[PartIndex]:
    """Return the segments of a version that hold samples, in their order. Raises a `FormatError`."""
    parts: list[PartIndex] = []
    chunks = 0
    for part in version.parts:
        if part.id is None:
            continue
        absent = read_list(folder, part.absent, part.end)
        if len(absent) and int(absent[0]) < part.first:
            raise LayoutError("an absent index of another segment", path=folder / part.name, hint=VERIFY_HINT)
        parts.append(PartIndex(folder, part, chunks, absent))
        chunks += parts[-1].header.chunks
    return parts


def check_alike(parts: list[PartIndex]) -> None:
    first = parts[0]
    classes: tuple[str, ...] | None = first.header.classes
    for part in parts[1:]:
        own = part.header.classes
        facts = (
            ("schema", first.header.schema.fields, part.header.schema.fields),
            ("decoding of images", first.header.decode, part.header.decode),
            ("classes of other fields", first.header.field_classes, part.header.field_classes),
            ("chunk size", first.header.chunk_size, part.header.chunk_size),
            ("size of the dictionary", first.manifest.dictionary_size, part.manifest.dictionary_size),
            ("beginning of the classes", classes, own and own[: len(classes or ())]),
        )
        for what, expected, found in facts:
            if expected != found:
                what = f"the {what} differs from that of the previous segment"
                path = part.location.local
                raise ForeignFileError(what, path=path, expected=expected, found=found, hint=VERIFY_HINT)
        classes = own
