"""Are all stored bytes as they were written? Every byte of a data set is read and checked; faults are returned, not
raised.

Companions, index and columns are compared with the manifest's checksums, and each chunk's front with the index. Each
sample is compared with its checksum, its row in the index, its record's structure and its columns. For a partition,
only its own chunks are checked; for a collection, the segments and lists of one version.

For a data set in a store, everything is read from the store, including the index, of which this machine has a copy. The
copy was checked against the manifest, so the chunks are compared with the copy, even if the store's index has changed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from brand.errors import ChecksumError, DecodeError, FormatError, LayoutError, MissingFileError, UnreadableError
from brand.formats.arrays import ArrayFile
from brand.formats.chunk import ChunkFront
from brand.formats.constants import CHUNKS_NAME, MANIFEST_NAME, PLACE_NAME, SAMPLES_NAME, column_name
from brand.formats.contents import read_records
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, Share, index_names, read_manifest, read_share
from brand.formats.publish import file_digest, remedy_for
from brand.formats.record import RecordDecoder
from brand.formats.version import Version
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.io.frontback import blocks_of, file_of, front_to_back
from brand.storage.io.fronts import open_chunk, opened
from brand.storage.io.location import FolderLocation, Location, Where, located

IndexArrays = Mapping[str, ArrayFile]

_REINDEX: Final = "`brand reindex` rebuilds it from the chunks"
_GIVE_UP: Final = 1000
"""Stop after this many chunks that cannot be opened."""
_SILENT: Final = 3
"""Stop after this many consecutive chunks for which a store has not answered, because each takes the full timeout."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One step of a verification."""

    samples: int
    """Samples that were checked in this step."""
    bytes: int
    """Bytes that were read in this step."""
    errors: tuple[FormatError, ...]
    """Faults that were found in this step."""


def verify(where: Where) -> Iterator[Checked]:
    """Check a data set, one chunk a step.

    Raises a `FormatError` only if there is no readable manifest to check against, or if `share.json` is damaged; in a
    store, also if the index was never copied to this machine and is damaged.
    """
    location = located(where)
    if location.version is not None:
        yield from _collection(location, location.version)
        return
    manifest = read_manifest(location.local)
    share = read_share(location.local, manifest)
    files = {**manifest.files, **manifest.companions}
    wrong = [error for name, facts in files.items() if (error := check_file(location, name, facts))]
    yield Checked(0, sum(size for size, _ in files.values()), tuple(wrong))
    arrays: dict[str, ArrayFile] = {}
    for name in index_names(manifest.header):
        try:
            arrays[name] = open_array(location.local, name, manifest.header)
        except FormatError as error:
            if error.path not in [other.path for other in wrong]:  # the file has changed since
                yield Checked(0, 0, (error,))
    totals = dict.fromkeys(("stored_bytes", "raw_bytes", "largest_sample"), 0)
    missing = silent = 0
    chunks = range(manifest.header.chunks) if share is None else share.chunks
    with front_to_back(location, chunks) as passing:
        for number in chunks:
            checked = _chunk(passing, number, manifest, arrays, totals)
            yield checked
            missing += not checked.samples
            silent = silent + 1 if location.in_store and _unanswered(checked) else 0
            if missing > _GIVE_UP or silent >= _SILENT:
                return
    if not missing and share is None:  # the manifest's totals cover all chunks
        yield Checked(0, 0, tuple(_compare_totals(file_of(location, MANIFEST_NAME), manifest, totals)))


def extent(location: Location) -> tuple[int, int, Share | None]:
    """Return how many samples and chunks `verify` checks, and whether these are a partition. Raises a `FormatError`."""
    if location.version is not None:
        held = [part for part in location.version.parts if part.id is not None]
        manifests = [read_manifest(location.local / part.name) for part in held]
        return sum(m.header.samples for m in manifests), sum(m.header.chunks for m in manifests), None
    manifest = read_manifest(location.local)
    share = read_share(location.local, manifest)
    if share is None:
        return manifest.header.samples, manifest.header.chunks, None
    return share.samples(manifest.header), len(share.chunks), share


def _collection(location: Location, version: Version) -> Iterator[Checked]:
    """Check the lists of a version, then each segment, then whether they fit together."""
    wrong: list[FormatError] = []
    for listed in version.lists:
        path, digest = location.local / listed.name, None
        with suppress(OSError):
            digest = file_digest(path)
        if digest is None or digest[1] != listed.digest:
            found = "nothing" if digest is None else digest[1]
            wrong.append(ChecksumError("checksum of the list", path=path, expected=listed.digest, found=found))
    yield Checked(0, 0, tuple(wrong))
    for part in version.parts:
        try:
            steps = iter(()) if part.id is None else verify(FolderLocation(location.local / part.name))
            for step in steps:
                wrong += step.errors
                yield step
        except FormatError as error:
            wrong.append(error)
            yield Checked(0, 0, (error,))
    try:
        JoinedIndex(location, version)
    except FormatError as error:
        if not wrong:
            yield Checked(0, 0, (error,))


def check_file(location: Location, name: str, facts: tuple[int, str]) -> FormatError | None:
    """Return the fault of a file of the data set that is not a chunk, or None. `facts`: its size and checksum."""
    path, hint = file_of(location, name), _REINDEX if name.endswith(".npy") else ""
    digest, size = xxhash.xxh3_128(), 0
    try:
        for block in blocks_of(location, name, facts[0]):
            digest.update(block)
            size += len(block)
    except FileNotFoundError:
        return MissingFileError("the file is missing", path=path, hint=hint)
    except OSError as error:
        return UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=remedy_for(error, hint))
    if (size, digest.hexdigest()) != tuple(facts):
        expected, seen = f"{facts[0]} bytes, {facts[1]}", f"{size} bytes, {digest.hexdigest()}"
        return ChecksumError("checksum of the file", path=path, expected=expected, found=seen, hint=hint)
    return None


def _unanswered(checked: Checked) -> bool:
    """Return whether a chunk was not read because the store did not answer."""
    causes = (error.__cause__ for error in checked.errors if isinstance(error, UnreadableError))
    return not checked.samples and any(isinstance(cause, OSError) and cause.errno == errno.EIO for cause in causes)


def _compare_totals(path: str | Path, manifest: Manifest, totals: Mapping[str, int]) -> Iterator[FormatError]:
    for name, counted in totals.items():
        told = getattr(manifest, name)
        if told != counted:
            yield LayoutError(f"{name} in the manifest", path=path, expected=counted, found=told, hint=_REINDEX)


def _chunk(location: Location, number: int, manifest: Manifest, arrays: IndexArrays, totals: dict[str, int]) -> Checked:
    path = location.chunk_file(number)
    try:
        known = arrays[CHUNKS_NAME].run(number, number + 1)[0] if CHUNKS_NAME in arrays else None
        front = open_chunk(location, number, manifest, known)
    except FormatError as error:
        return Checked(0, 0, (error,))
    rows = front.rows
    totals["stored_bytes"] += int(rows["size"].sum(dtype=np.uint64))
    totals["raw_bytes"] += int(rows["raw_size"].sum(dtype=np.uint64))
    totals["largest_sample"] = max(totals["largest_sample"], int(rows["raw_size"].max()))
    errors: list[FormatError] = []
    try:
        errors.extend(_compare_index(front, path, manifest, arrays))
        errors.extend(_samples(location, front, path, arrays))
    except FormatError as error:
        errors.append(error)
    except OSError as error:
        errors.append(UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number))
    return Checked(len(front.rows), front.preamble.file_size, tuple(errors))


def _compare_index(front: ChunkFront, path: str, manifest: Manifest, arrays: IndexArrays) -> Iterator[FormatError]:
    """Compare the index's entries for a chunk's samples, in both directions, with the chunk's table."""
    number, rows = front.preamble.number, front.rows
    first = number * manifest.header.chunk_size
    if SAMPLES_NAME in arrays:
        for slot in np.flatnonzero(arrays[SAMPLES_NAME].run(first, first + len(rows)) != rows).tolist():
            sample = int(rows["index"][slot])
            yield LayoutError("the index differs from the chunk's table", path=path, chunk=number, sample=sample)
    if PLACE_NAME in arrays:
        places = arrays[PLACE_NAME].take(rows["index"])
        for slot in np.flatnonzero(places != np.arange(first, first + len(rows))).tolist():
            facts = {"expected": f"place {first + slot}", "found": f"place {int(places[slot])}"}
            yield LayoutError(
                "the index places a sample elsewhere", path=path, chunk=number, sample=int(rows["index"][slot]), **facts
            )


def _samples(location: Location, front: ChunkFront, path: str, arrays: IndexArrays) -> Iterator[FormatError]:
    """Yield the faults of the samples of a chunk: checksum, frame, record, columns."""
    decode, number = RecordDecoder(front.header.schema), front.preamble.number
    names = [name for name, _ in front.header.schema.columns if column_name(name) in arrays]
    columns = {name: arrays[column_name(name)].take(front.rows["index"]).tolist() for name in names}
    with opened(location, number) as file:
        for slot, (row, record) in enumerate(read_records(file, front, path)):
            index = int(row["index"])
            if isinstance(record, FormatError):
                yield record
                continue
            try:
                values = decode(record)
            except (ValueError, RecursionError) as error:
                yield DecodeError(str(error), path=path, chunk=number, sample=index)
                continue
            for name in names:
                kept, value = columns[name][slot], values[name]
                value = len(value) if isinstance(value, list) else value
                if kept != value and not (kept != kept and value != value):  # NaN equals nothing, itself included
                    what = f"column {name!r} differs from the sample"
                    yield LayoutError(what, path=path, chunk=number, sample=index, expected=value, found=kept)
