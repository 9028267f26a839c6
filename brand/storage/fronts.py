"""The front of a chunk on storage: read, checked, and known to be the one that is meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from brand.errors import ForeignFileError, MissingFileError, UnreadableError
from brand.formats.chunk import Front, read_front
from brand.formats.manifest import Manifest


def open_front(path: Path, number: int) -> Front:
    """Read and check a chunk's front, and its number. Raises a `FormatError` that names what is wrong."""
    try:
        with path.open("rb") as file:
            front = read_front(file, path, number)
    except FileNotFoundError:
        raise missing_chunk(path, number) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number) from error
    if front.preamble.number != number:
        found = front.preamble.number
        raise ForeignFileError("a chunk under another's name", path=path, chunk=number, expected=number, found=found)
    return front


def open_chunk(path: Path, number: int, manifest: Manifest, known: np.void | None) -> Front:
    """Read and check a chunk's front, and that it is chunk `number` of this data set; `known` is its row in the index.

    Raises a `FormatError` that names what is wrong.
    """
    front = open_front(path, number)
    preamble = front.preamble
    if preamble.data_set_id != manifest.data_set_id:
        expected, found = manifest.data_set_id.hex(), preamble.data_set_id.hex()
        raise ForeignFileError("a chunk of another data set", path=path, chunk=number, expected=expected, found=found)
    if preamble.dictionary_size != manifest.dictionary_size:
        expected, found = str(manifest.dictionary_size), str(preamble.dictionary_size)
        raise ForeignFileError("size of the dictionary", path=path, chunk=number, expected=expected, found=found)
    if front.header != manifest.header:
        raise ForeignFileError(
            "the header differs from the manifest's", path=path, chunk=number, hint="Run `brand reindex`"
        )
    if known is not None and (preamble.file_size, preamble.checksum) != (
        int(known["file_size"]),
        int(known["checksum"]),
    ):
        raise ForeignFileError(
            "a chunk of another conversion, or the index is stale",
            path=path,
            chunk=number,
            expected=f"{int(known['file_size'])} bytes, checksum {int(known['checksum']):016x}",
            found=f"{preamble.file_size} bytes, checksum {preamble.checksum:016x}",
            hint="Run `brand reindex`",
        )
    return front


def file_size(path: Path, number: int) -> int:
    """Size of a chunk's file. Raises `FormatError` where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise missing_chunk(path, number) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=number) from error


def missing_chunk(path: Path | str, number: int, sample: int | None = None) -> MissingFileError:
    """The error for a chunk that is not there."""
    hint = "Copy it again or convert again"
    return MissingFileError("the chunk is missing", path=path, chunk=number, sample=sample, hint=hint)
