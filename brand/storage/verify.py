"""Is everything as it was written? Every byte of a data set is read and checked; what is wrong is told, not raised.

Companions, index and columns are compared with the manifest's checksums; each chunk's front with the index; each sample
with its checksum, its row in the index, its record's structure and its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brand.errors import ChecksumError, DecodeError, FormatError, LayoutError, MissingFileError
from brand.formats.contents import read_records
from brand.formats.manifest import read_manifest
from brand.formats.publish import file_digest
from brand.formats.record import RecordDecoder
from brand.storage.dataset import StoredDataSet


@dataclass(frozen=True, slots=True)
class Checked:
    """One step of a verification."""

    samples: int
    """Samples checked in this step."""
    bytes: int
    """Bytes read in this step."""
    errors: tuple[FormatError, ...]
    """What was found wrong."""


def verify(path: Path) -> Iterator[Checked]:
    """Check a data set, one chunk a step.

    Raises a `FormatError` only where there is no readable manifest to check against.
    """
    manifest = read_manifest(path)
    files = {**manifest.files, **manifest.companions}
    wrong = [error for name, facts in files.items() if (error := _file(path, name, facts))]
    yield Checked(0, sum(size for size, _ in files.values()), tuple(wrong))
    try:
        data_set = StoredDataSet(path)
    except FormatError as error:
        yield Checked(0, 0, () if wrong else (error,))
        return
    for number in range(manifest.header.chunks):
        yield _chunk(data_set, number)


def _file(path: Path, name: str, facts: tuple[int, str]) -> FormatError | None:
    hint = "`brand reindex` makes it again from the chunks" if name.endswith(".npy") else ""
    try:
        found = file_digest(path / name)
    except FileNotFoundError:
        return MissingFileError("the file is missing", path=path / name, hint=hint)
    if found != tuple(facts):
        expected, seen = f"{facts[0]} bytes, {facts[1]}", f"{found[0]} bytes, {found[1]}"
        return ChecksumError("checksum of the file", path=path / name, expected=expected, found=seen, hint=hint)
    return None


def _chunk(data_set: StoredDataSet, number: int) -> Checked:
    path = data_set.chunk_path(number)
    try:
        front = data_set.open_chunk(number)
    except FormatError as error:
        return Checked(0, 0, (error,))
    errors: list[FormatError] = []
    first = number * data_set.header.chunk_size
    indexed = data_set.rows(first, first + len(front.rows))
    for slot in np.flatnonzero(indexed != front.rows).tolist():
        sample = int(front.rows["index"][slot])
        errors.append(LayoutError("the index differs from the chunk's table", path=path, chunk=number, sample=sample))
    decode = RecordDecoder(data_set.header.schema)
    columns = {name: data_set.column(name) for name, _ in data_set.header.schema.fixed}
    with path.open("rb") as file:
        for row, record in read_records(file, front, path):
            index = int(row["index"])
            if isinstance(record, FormatError):
                errors.append(record)
                continue
            try:
                values = decode(record)
            except (ValueError, RecursionError) as error:
                errors.append(DecodeError(str(error), path=path, chunk=number, sample=index))
                continue
            for name, column in columns.items():
                if column[index] != values[name] and values[name] == values[name]:
                    what = f"column {name!r} differs from the sample"
                    errors.append(
                        LayoutError(
                            what, path=path, chunk=number, sample=index, expected=values[name], found=column[index]
                        )
                    )
    return Checked(len(front.rows), front.preamble.file_size, tuple(errors))
