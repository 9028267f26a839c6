"""Is everything as it was written? Every byte of a data set is read and checked; faults are returned, not raised.

Companions, index and columns are compared with the manifest's checksums, and each chunk's front with the index. Each
sample is compared with its checksum, its row in the index, its record's structure and its columns. Of a share, only its
own chunks are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from brand.errors import ChecksumError, DecodeError, FormatError, LayoutError, MissingFileError, UnreadableError
from brand.formats.arrays import ArrayFile
from brand.formats.chunk import Front
from brand.formats.constants import CHUNKS_NAME, MANIFEST_NAME, PLACE_NAME, SAMPLES_NAME, chunk_name, column_name
from brand.formats.contents import read_records
from brand.formats.index import open_array
from brand.formats.manifest import Manifest, index_names, read_manifest
from brand.formats.publish import file_digest
from brand.formats.record import RecordDecoder
from brand.formats.share import read_share
from brand.storage.fronts import open_chunk
from brand.storage.location import Folder

_REINDEX: Final = "`brand reindex` makes it again from the chunks"
_GIVE_UP: Final = 1000
"""After so many chunks that cannot be opened, there is no point in going on."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One step of a verification."""

    samples: int
    """Samples checked in this step."""
    bytes: int
    """Bytes read in this step."""
    errors: tuple[FormatError, ...]
    """Faults that were found in this step."""


def verify(path: Path) -> Iterator[Checked]:
    """Check a data set, one chunk a step.

    Raises a `FormatError` only where there is no readable manifest to check against, or `share.json` is damaged.
    """
    manifest = read_manifest(path)
    share = read_share(path, manifest)
    files = {**manifest.files, **manifest.companions}
    wrong = [error for name, facts in files.items() if (error := check_file(path, name, facts))]
    yield Checked(0, sum(size for size, _ in files.values()), tuple(wrong))
    arrays: dict[str, ArrayFile] = {}
    for name in index_names(manifest.header):
        try:
            arrays[name] = open_array(path, name, manifest.header)
        except FormatError as error:
            if error.path not in [other.path for other in wrong]:  # the file has changed since
                yield Checked(0, 0, (error,))
    totals = dict.fromkeys(("stored_bytes", "raw_bytes", "largest_sample"), 0)
    missing = 0
    for number in range(manifest.header.chunks) if share is None else share.chunks:
        checked = _chunk(path, number, manifest, arrays, totals)
        yield checked
        missing += not checked.samples
        if missing > _GIVE_UP:
            return
    if not missing and share is None:  # the manifest's totals are of all chunks
        yield Checked(0, 0, tuple(_compare_totals(path / MANIFEST_NAME, manifest, totals)))


def check_file(path: Path, name: str, facts: tuple[int, str]) -> FormatError | None:
    """What is wrong with a file of the data set at `path`, or None. `facts`: size and checksum from the manifest."""
    hint = _REINDEX if name.endswith(".npy") else ""
    try:
        found = file_digest(path / name)
    except FileNotFoundError:
        return MissingFileError("the file is missing", path=path / name, hint=hint)
    except OSError as error:
        return UnreadableError(f"cannot be read: {error.strerror}", path=path / name, hint=hint)
    if found != tuple(facts):
        expected, seen = f"{facts[0]} bytes, {facts[1]}", f"{found[0]} bytes, {found[1]}"
        return ChecksumError("checksum of the file", path=path / name, expected=expected, found=seen, hint=hint)
    return None


def _compare_totals(path: Path, manifest: Manifest, totals: Mapping[str, int]) -> Iterator[FormatError]:
    for name, counted in totals.items():
        told = getattr(manifest, name)
        if told != counted:
            yield LayoutError(f"{name} in the manifest", path=path, expected=counted, found=told, hint=_REINDEX)


def _chunk(
    folder: Path, number: int, manifest: Manifest, arrays: Mapping[str, ArrayFile], totals: dict[str, int]
) -> Checked:
    path = folder / chunk_name(number)
    try:
        known = arrays[CHUNKS_NAME].run(number, number + 1)[0] if CHUNKS_NAME in arrays else None
        front = open_chunk(Folder(folder), number, manifest, known)
    except FormatError as error:
        return Checked(0, 0, (error,))
    rows = front.rows
    totals["stored_bytes"] += int(rows["size"].sum(dtype=np.uint64))
    totals["raw_bytes"] += int(rows["raw_size"].sum(dtype=np.uint64))
    totals["largest_sample"] = max(totals["largest_sample"], int(rows["raw_size"].max()))
    errors: list[FormatError] = []
    try:
        errors.extend(_compare_index(front, path, manifest, arrays))
        errors.extend(_samples(front, path, arrays))
    except FormatError as error:
        errors.append(error)
    except OSError as error:
        errors.append(UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number))
    return Checked(len(front.rows), front.preamble.file_size, tuple(errors))


def _compare_index(
    front: Front, path: Path, manifest: Manifest, arrays: Mapping[str, ArrayFile]
) -> Iterator[FormatError]:
    """Compare what the index says of a chunk's samples, in both directions, with the chunk's table."""
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


def _samples(front: Front, path: Path, arrays: Mapping[str, ArrayFile]) -> Iterator[FormatError]:
    """What is wrong with the samples of a chunk: checksum, frame, record, columns."""
    decode, number = RecordDecoder(front.header.schema), front.preamble.number
    names = [name for name, _ in front.header.schema.fixed if column_name(name) in arrays]
    columns = {name: arrays[column_name(name)].take(front.rows["index"]).tolist() for name in names}
    with path.open("rb") as file:
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
                if kept != value and not (kept != kept and value != value):  # NaN equals nothing, itself included
                    what = f"column {name!r} differs from the sample"
                    yield LayoutError(what, path=path, chunk=number, sample=index, expected=value, found=kept)
