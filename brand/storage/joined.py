"""How do the parts of a collection look like one data set, without an index of their own?

    public indices   0 ........ 999 | 1000 ..... 1199 | 1200 ...          parts follow each other
    chunks           0  1  2  3     | 4               | 5 ...             and so do their chunks
    places           0 .... 999 hole| 256 * 4 ...     | 256 * 5 ...       `chunk_size` places for each chunk

A node server, orders and caches know places only, and chunk `k` has the places from `k * chunk_size` on. So a part
whose last chunk is short leaves a **hole**: places without a sample. A hole has a row of no bytes at the end of its
chunk. Holes and deleted samples are left out of draws alike (`drawn`). The views below look through the parts' own
files, so opening a collection reads no index, and a change of it writes none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import (
    ChecksumError,
    ForeignFileError,
    LayoutError,
    MissingFileError,
    NotADataSetError,
    SchemaError,
    UnreadableError,
)
from brand.formats.constants import ROW, column_name
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, read_manifest
from brand.formats.version import Listed, PartOf, Version
from brand.storage.files import Range, Reader
from brand.storage.indexes import Elements, OwnIndex
from brand.storage.location import Folder, Location

NOTHING: Final = {"int": np.iinfo(np.int64).min, "float": np.nan}
"""What a column has for a deleted sample, and an overlay for a sample that it does not know: by codec."""

_VERIFY: Final = "`brand verify` looks at all parts"
_NO_INDEX: Final = np.iinfo(np.uint64).max
_NO_CHECKSUM: Final = xxhash.xxh3_64_intdigest(b"")


class PartIndex:
    """The index of one part; places and indices as in the part's own files are called local."""

    def __init__(self, folder: Path, part: PartOf, first_chunk: int, absent: NDArray[np.int64]) -> None:
        self.part, self.first_chunk = part, first_chunk
        self.location = Folder(folder / part.name)
        self.manifest = read_manifest(self.location.local)
        self.header = self.manifest.header
        self.first_place = first_chunk * self.header.chunk_size
        self.absent = absent
        """Public indices of its run that were taken out of it."""
        self._absent = absent - part.first
        self._before = self._absent - np.arange(len(absent))
        """How many samples of the part lie before each absent one."""
        told = self.manifest.data_set_id.hex(), self.header.samples
        if told != (part.id, part.samples):
            expected, found = f"{part.id}, {part.samples} samples", f"{told[0]}, {told[1]} samples"
            what, path = "a part under another's name", self.location.local
            raise ForeignFileError(what, path=path, expected=expected, found=found, hint=_VERIFY)

    @cached_property
    def own(self) -> OwnIndex:
        """Its files."""
        return OwnIndex(self.location)

    def public(self, local: NDArray[Any]) -> NDArray[np.int64]:
        """Public indices of samples by their local ones."""
        local = local.astype(np.int64)
        if len(self._before):
            local = local + np.searchsorted(self._before, local, side="right")
        return local + self.part.first

    def local(self, public: NDArray[np.int64]) -> NDArray[np.int64]:
        """Inverse of `public`; -1 for an absent index."""
        within = public - self.part.first
        if not len(self._absent):
            return within
        before = np.searchsorted(self._absent, within)
        there = np.append(self._absent, -1)[before] != within
        return np.where(there, within - before, -1)

    def column(self, name: str, codec: str) -> NDArray[Any]:
        """A column for the indices of the run."""
        values = open_array(self.location.local, column_name(name), self.header).all()
        if not len(self._absent):
            return values
        found = np.full(self.part.end - self.part.first, NOTHING[codec], values.dtype)
        found[self.public(np.arange(len(values))) - self.part.first] = values
        return found


class JoinedIndex:
    """The index of a version of a collection: an `Index`. Raises `FormatError`."""

    share = None

    def __init__(self, location: Location, version: Version) -> None:
        self.folder, self.version = location.local, version
        self.parts = _open_parts(self.folder, version)
        if not self.parts:
            raise NotADataSetError("all samples of the collection are deleted", path=self.folder)
        self._check_alike()
        self.samples = version.samples
        self.deleted = read_list(self.folder, version.deleted, version.samples)
        for part in self.parts:
            if not np.isin(part.absent, self.deleted).all():
                what, path = "an absent index that is not deleted", part.location.local
                raise LayoutError(what, path=path, hint=_VERIFY)
        self._first_chunks = np.array([part.first_chunk for part in self.parts])
        self._firsts = np.array([part.part.first for part in self.parts])
        self.manifest = self._manifest()
        self.rows: Elements = _Rows(self.parts, self.manifest.header.samples)
        self.place: Elements = _Places(self.parts, version.samples)
        self.tables = _Tables(self.parts)

    def drawn(self) -> NDArray[np.bool_] | None:
        """See `Index`."""
        header = self.manifest.header
        mask = np.zeros(header.samples, np.bool_)
        for part in self.parts:
            mask[part.first_place : part.first_place + part.header.samples] = True
        here = self.place.take(self.deleted)
        mask[here[here >= 0]] = False
        return None if mask.all() else mask

    def chunk_rows(self) -> NDArray[np.void]:
        """See `Index`."""
        return np.concatenate([part.own.chunk_rows() for part in self.parts])

    def column(self, name: str) -> NDArray[Any]:
        """See `Index`."""
        overlay = self.version.overlays.get(name)
        codec = self.manifest.header.schema.codec(name) if overlay is None else overlay.codec
        found = np.full(self.samples, NOTHING[codec], "<i8" if codec == "int" else "<f8")
        if overlay is not None:
            values = read_values(self.folder, overlay.values, overlay.dtype)
            found[: len(values)] = values[: self.samples]
        else:
            for part in self.parts:
                found[part.part.first : part.part.end] = part.column(name, codec)
        found[self.deleted] = NOTHING[codec]
        return found

    def home(self, chunk: int) -> tuple[Location, int, Manifest]:
        """See `Index`."""
        part = self.parts[int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1]
        return part.location, chunk - part.first_chunk, part.manifest

    def holder(self, index: int) -> Location:
        """See `Index`."""
        return self.parts[max(0, int(np.searchsorted(self._firsts, index, side="right")) - 1)].location

    def _check_alike(self) -> None:
        """Raise `ForeignFileError` where a part does not fit the first one."""
        first = self.parts[0]
        classes: tuple[str, ...] | None = first.header.classes
        for part in self.parts[1:]:
            own = part.header.classes
            facts = (
                ("schema", first.header.schema.fields, part.header.schema.fields),
                ("chunk size", first.header.chunk_size, part.header.chunk_size),
                ("size of the dictionary", first.manifest.dictionary_size, part.manifest.dictionary_size),
                ("beginning of the classes", classes, own and own[: len(classes or ())]),
            )
            for what, expected, found in facts:
                if expected != found:
                    what = f"the {what} differs from that of the part before"
                    path = part.location.local
                    raise ForeignFileError(what, path=path, expected=expected, found=found, hint=_VERIFY)
            classes = own

    def _manifest(self) -> Manifest:
        """The facts of all parts together."""
        last, first = self.parts[-1], self.parts[0]
        places = last.first_place + last.header.samples
        header = type(first.header)(
            samples=places,
            chunk_size=first.header.chunk_size,
            schema=first.header.schema,
            classes=last.header.classes,
            compression="zstd" if any(part.header.compression == "zstd" for part in self.parts) else "none",
            seed=first.header.seed,
            source=first.header.source,
        )
        manifests = [part.manifest for part in self.parts]
        files = {}
        for name in manifests[0].files:
            digests = "".join(manifest.files[name][1] for manifest in manifests)
            size = sum(manifest.files[name][0] for manifest in manifests)
            files[name] = size, xxhash.xxh3_128_hexdigest(digests.encode())
        return Manifest(
            data_set_id=bytes.fromhex(self.version.id),
            header=header,
            dictionary_size=first.manifest.dictionary_size,
            stored_bytes=sum(manifest.stored_bytes for manifest in manifests),
            raw_bytes=sum(manifest.raw_bytes for manifest in manifests),
            largest_sample=max(manifest.largest_sample for manifest in manifests),
            files=files,
            companions={},
        )


Look = Callable[[PartIndex, NDArray[np.int64]], NDArray[Any]]
"""What a part knows of some numbers."""


class _Joined(ABC):
    """Elements of several parts: number `n` is in the last part whose first number, in `firsts`, is not above it."""

    def __init__(self, parts: Sequence[PartIndex], firsts: Sequence[int], length: int) -> None:
        self._parts, self._firsts, self._length = parts, np.array(firsts), length

    def __len__(self) -> int:
        return self._length

    def run(self, first: int, end: int) -> NDArray[Any]:
        """See `Elements`."""
        return self.take(np.arange(*slice(first, end).indices(self._length)[:2], dtype=np.int64))

    def all(self) -> NDArray[Any]:
        """See `Elements`."""
        return self.run(0, self._length)

    @abstractmethod
    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """See `Elements`."""

    def _split(self, numbers: NDArray[np.integer[Any]], look: Look, dtype: Any) -> NDArray[Any]:
        """What `look` finds in the part of each number. Raises IndexError for a number that is out of range."""
        wanted = numbers.astype(np.int64)
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= self._length):
            raise IndexError(f"a number is out of range: there are {self._length:,}")
        holders = np.searchsorted(self._firsts, wanted, side="right") - 1
        if len(wanted) and holders[0] == holders.min() == holders.max():
            return look(self._parts[holders[0]], wanted)
        found = np.empty(len(wanted), dtype)
        for number in np.unique(holders).tolist():
            mine = holders == number
            found[mine] = look(self._parts[number], wanted[mine])
        return found


class _Rows(_Joined):
    """A row for each place, with public indices."""

    def __init__(self, parts: Sequence[PartIndex], places: int) -> None:
        super().__init__(parts, [part.first_place for part in parts], places)

    def run(self, first: int, end: int) -> NDArray[np.void]:
        """See `Elements`. A run within one part, as a read has it, is read at once."""
        part = self._parts[int(np.searchsorted(self._firsts, first, side="right")) - 1]
        begin = first - part.first_place
        if not 0 <= begin <= (stop := end - part.first_place) <= part.header.samples:
            return super().run(first, end)
        rows = part.own.rows.run(begin, stop)
        rows["index"] = part.public(rows["index"])
        return rows

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.void]:
        """See `Elements`."""
        return self._split(numbers, _rows_of, ROW)


class _Places(_Joined):
    """The place of each index; -1 for one whose bytes are gone."""

    def __init__(self, parts: Sequence[PartIndex], samples: int) -> None:
        super().__init__(parts, [0, *(part.part.first for part in parts[1:])], samples)

    def take(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """See `Elements`."""
        return self._split(numbers, _places_of, np.int64)


def _rows_of(part: PartIndex, places: NDArray[np.int64]) -> NDArray[np.void]:
    local = places - part.first_place
    there = local < part.header.samples
    found = np.zeros(len(places), ROW)
    rows = part.own.rows.take(local[there])
    rows["index"] = part.public(rows["index"])
    found[there] = rows
    if not there.all():
        found["offset"][~there] = _end_of(part)
        found["checksum"][~there], found["index"][~there] = _NO_CHECKSUM, _NO_INDEX
    return found


def _end_of(part: PartIndex) -> int:
    """Where the samples of the last chunk of a part end."""
    last = part.own.rows.run(part.header.samples - 1, part.header.samples)[0]
    return int(last["offset"]) + int(last["size"])


def _places_of(part: PartIndex, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    local = part.local(indices)
    local[(local < 0) | (indices >= part.part.end)] = -1
    found = np.full(len(indices), -1, np.int64)
    there = local >= 0
    places = part.own.place.take(local[there]).astype(np.int64)
    found[there] = np.where(places.view(np.uint64) < part.header.samples, places + part.first_place, -1)
    return found


class _Tables:
    """Compares each part with the tables of its own chunks."""

    def __init__(self, parts: Sequence[PartIndex]) -> None:
        self._parts, self._firsts = parts, np.array([part.first_place for part in parts])

    def differing(self, places: NDArray[np.int64], reader: Reader) -> NDArray[np.intp]:
        """See `Compared`."""
        holders = np.searchsorted(self._firsts, places, side="right") - 1
        found = [np.empty(0, np.intp)]
        for number in np.unique(holders).tolist():
            part, mine = self._parts[number], np.flatnonzero(holders == number)
            shifted = _Shifted(reader, part.first_chunk)
            found.append(mine[part.own.tables.differing(places[mine] - part.first_place, shifted)])
        return np.sort(np.concatenate(found))


class _Shifted:
    """A reader of one part, by means of the collection's."""

    def __init__(self, reader: Reader, first_chunk: int) -> None:
        self._reader, self._first = reader, first_chunk

    def read_into(self, ranges: Sequence[Range]) -> None:
        """See `Reader`."""
        self._reader.read_into([(number + self._first, offset, buffer) for number, offset, buffer in ranges])

    def close(self) -> None:
        """See `Reader`."""
        self._reader.close()


def _open_parts(folder: Path, version: Version) -> list[PartIndex]:
    parts, chunks = [], 0
    for part in version.parts:
        if part.id is None:
            continue
        absent = read_list(folder, part.absent, part.end)
        if len(absent) and int(absent[0]) < part.first:
            raise LayoutError("an absent index of another part", path=folder / part.name, hint=_VERIFY)
        parts.append(PartIndex(folder, part, chunks, absent))
        chunks += parts[-1].header.chunks
    return parts


def read_list(folder: Path, listed: Listed | None, end: int) -> NDArray[np.int64]:
    """The indices of a list, each smaller than `end`; none where there is no list. Raises a `FormatError`."""
    if listed is None:
        return np.empty(0, np.int64)
    values: NDArray[np.int64] = read_values(folder, listed, np.dtype("<u8")).astype(np.int64)
    if len(values) and (int(values[-1]) >= end or int(values[0]) < 0 or (np.diff(values) < 1).any()):
        raise LayoutError("the indices do not rise, or are out of range", path=folder / listed.name, hint=_VERIFY)
    return values


def read_values(folder: Path, listed: Listed, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers in a list's file, checked by its name. Raises a `FormatError`."""
    path, size = folder / listed.name, 0
    try:
        size = path.stat().st_size
        if size > listed.count * dtype.itemsize + (1 << 16):  # before it is read
            raise LayoutError("a list larger than it should be", path=path, found=size, hint=_VERIFY)
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError("a list is missing", path=path, hint=_VERIFY) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=_VERIFY) from error
    found = xxhash.xxh3_128_hexdigest(data)
    if found != listed.digest:
        raise ChecksumError("checksum of the list", path=path, expected=listed.digest, found=found, hint=_VERIFY)
    start = size - listed.count * dtype.itemsize
    if start < 0 or data[:6] != b"\x93NUMPY":
        raise LayoutError("a list of another length", path=path, expected=listed.count, hint=_VERIFY)
    return np.frombuffer(data, dtype, listed.count, start)


def column_codec(version: Version | None, schema: dict[str, str], name: str) -> str:
    """The codec of a column. Raises `SchemaError` where there is none of this name."""
    overlays = {} if version is None else {key: each.codec for key, each in version.overlays.items()}
    codec = overlays.get(name) or schema.get(name)
    if codec in ("int", "float"):
        return codec
    fixed = ", ".join([*(n for n, c in schema.items() if c in ("int", "float")), *overlays]) or "none"
    if codec is None:
        raise SchemaError(f"no field {name!r}; columns: {fixed}")
    raise SchemaError(f"field {name!r} ({codec}) is not kept as a column; columns: {fixed}")
