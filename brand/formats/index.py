"""The index: arrays in files that follow from the chunks' tables (docs/reference/format.md, section 4).

`IndexBuilder` takes chunks in any order and fills memory-mapped files of a work folder, so its memory does not grow
with the data set. `seal` checks these files, moves them into place and writes the manifest last. The chunker and
`brand reindex` both use these two, so their results are equal byte for byte. `open_array` opens one file, and trusts
nothing that it has not checked.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import (
    FormatError,
    LayoutError,
    MissingFileError,
    OversizedError,
    TruncatedError,
    UnreadableError,
    counted,
)
from brand.formats.arrays import ArrayFile, flush, gather, release, reserve, scatter
from brand.formats.constants import (
    CHUNK_ROW,
    CHUNKS_NAME,
    EXTRAS_NAME,
    MANIFEST_NAME,
    PLACE_NAME,
    ROW,
    SAMPLES_NAME,
    SHARE_NAME,
    SKIPPED_NAME,
    chunk_name,
    column_name,
)
from brand.formats.header import Header
from brand.formats.manifest import Files, Manifest, index_names, pack_manifest
from brand.formats.noticed import Counts, Noticed, added, facts_of, merged
from brand.formats.publish import Target, file_digest, remedy_for

_NPY_START: Final = 10
"""Magic, version and size of the text that follows."""

_HINT: Final = "`brand reindex` rebuilds it from the chunks"
_HINT_OF_SHARE: Final = "Copy it from another partition, or from the undivided data set: it is equal in all"


def place_dtype(samples: int) -> np.dtype[Any]:
    """Return the dtype of `place.npy`: the largest value means "not yet known" while the index is made."""
    return np.dtype("<u4") if samples <= 0xFFFFFFFF else np.dtype("<u8")


def array_dtypes(header: Header) -> dict[str, tuple[np.dtype[Any], int]]:
    """Return (dtype, length) of each file of the index."""
    columns = {
        column_name(n): (np.dtype("<i8" if c == "int" else "<f8"), header.samples) for n, c in header.schema.columns
    }
    return {
        SAMPLES_NAME: (ROW, header.samples),
        PLACE_NAME: (place_dtype(header.samples), header.samples),
        CHUNKS_NAME: (CHUNK_ROW, header.chunks),
        **columns,
    }


def array_bytes(header: Header, name: str) -> int:
    dtype, length = array_dtypes(header)[name]
    return len(_npy_head(dtype, length)) + dtype.itemsize * length


class IndexBuilder:
    """Collects the tables of all chunks.

    One process uses it. Its files are in `folder`, a work folder. `target`, the path or the URL of the data set, is for
    messages.
    """

    def __init__(self, folder: Path, header: Header, target: str | Path) -> None:
        self.folder, self.header, self.target = folder, header, target
        self.samples = self.stored_bytes = self.raw_bytes = self.largest_sample = 0
        self._counts: Counts = {}
        self._arrays = {name: _new_npy(folder / name, *facts) for name, facts in array_dtypes(header).items()}
        self._unknown = np.iinfo(self._arrays[PLACE_NAME].dtype).max
        self._arrays[PLACE_NAME][:] = self._unknown

    def add(
        self, number: int, rows: NDArray[np.void], checksum: int, columns: NDArray[np.void], counts: Counts
    ) -> None:
        """Add one chunk's table, its columns (one structured row a sample, in storage order), and its counts.

        Raises `LayoutError` if a sample has two places.
        """
        first = number * self.header.chunk_size
        places = np.arange(first, first + len(rows))
        indices = rows["index"]
        place = self._arrays[PLACE_NAME]
        taken = gather(place, indices) != self._unknown
        scatter(place, indices, places)
        taken |= gather(place, indices) != places  # an index that occurs twice in this chunk keeps one place only
        if taken.any():
            twice = int(indices[np.flatnonzero(taken)[0]])
            path = f"{self.target}/{chunk_name(number)}"
            raise LayoutError("a sample has two places", path=path, chunk=number, sample=twice)
        self._arrays[SAMPLES_NAME][first : first + len(rows)] = rows
        file_size = int(rows["offset"][-1]) + int(rows["size"][-1])
        self._arrays[CHUNKS_NAME][number] = (file_size, checksum)
        for name, _ in self.header.schema.columns:
            scatter(self._arrays[column_name(name)], indices, columns[name])
        self.samples += len(rows)
        self.stored_bytes += int(rows["size"].sum(dtype=np.uint64))
        self.raw_bytes += int(rows["raw_size"].sum(dtype=np.uint64))
        self.largest_sample = max(self.largest_sample, int(rows["raw_size"].max()))
        self._counts = added(self._counts, counts)
        release(*self._arrays.values())

    @property
    def noticed(self) -> tuple[Noticed, ...]:
        """Facts that were noticed in the samples of the added chunks."""
        return facts_of(self._counts, self.header.decode)

    def finish(self) -> None:
        """Check that every sample has its place, and flush. Raises `LayoutError`."""
        if self.samples != self.header.samples:
            missing = self.header.samples - self.samples
            raise LayoutError(f"no chunk has {missing:,} of {counted(self.header.samples, 'sample')}", path=self.target)
        for array in self._arrays.values():
            flush(array)
        self._arrays.clear()


def _new_npy(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = _npy_head(dtype, length)
    path.write_bytes(head)
    reserve(path, len(head) + dtype.itemsize * length)
    return np.memmap(path, dtype, "r+", offset=len(head), shape=(length,)).view(np.ndarray)


def _npy_head(dtype: np.dtype[Any], length: int) -> bytes:
    """Return the head of a .npy file: magic, size, a dict as text, padding."""
    head = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(head, facts)
    return head.getvalue()


def seal(
    target: Target,
    builder: IndexBuilder,
    *,
    data_set_id: bytes,
    dictionary_size: int,
    companions: Files,
    noticed: Sequence[Noticed] = (),
) -> Manifest:
    """Move a finished index into the data set at `target` and write its manifest, last of all.

    `noticed` are facts that the samples do not show, such as rows that the source skipped.
    """
    builder.finish()
    files: dict[str, tuple[int, str]] = {}
    for name in index_names(builder.header):
        files[name] = file_digest(builder.folder / name)
        target.publish(builder.folder / name, name)
    manifest = Manifest(
        data_set_id=data_set_id,
        header=builder.header,
        dictionary_size=dictionary_size,
        stored_bytes=builder.stored_bytes,
        raw_bytes=builder.raw_bytes,
        largest_sample=builder.largest_sample,
        files=files,
        companions=companions,
        noticed=merged((*noticed, *builder.noticed)),
    )
    target.finish(MANIFEST_NAME, pack_manifest(manifest))
    return manifest


def companions_in(folder: Path) -> Files:
    return {name: file_digest(folder / name) for name in (EXTRAS_NAME, SKIPPED_NAME) if (folder / name).exists()}


def open_array(folder: Path, name: str, header: Header) -> ArrayFile:
    """Open one file of the index, without reading an element.

    Raises `MissingFileError`, `UnreadableError`, `TruncatedError`, `OversizedError` or `LayoutError`. The right head is
    known beforehand, so the head is compared and not parsed.
    """
    path = folder / name
    dtype, length = array_dtypes(header)[name]
    try:
        with path.open("rb") as file:
            start = file.read(_NPY_START)
            head = start + file.read(int.from_bytes(start[8:], "little"))
            _check_npy(path, head, file.seek(0, 2), dtype, length, repair_of(folder))
            return ArrayFile(file.fileno(), path, dtype, len(head), length, repair_of(folder))
    except FileNotFoundError:
        raise MissingFileError("an index file is missing", path=path, hint=repair_of(folder)) from None
    except FormatError:
        raise
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise UnreadableError(
            f"cannot be read: {what}", path=path, hint=remedy_for(error, repair_of(folder))
        ) from error


def repair_of(folder: Path) -> str:
    """Return how a damaged index file of a data set, or of a partition of one, is restored."""
    return gone(folder) or (_HINT_OF_SHARE if (folder / SHARE_NAME).exists() else _HINT)


def gone(folder: Path) -> str:
    """Return what to do if the whole folder of a data set is missing; empty if it is there."""
    try:
        folder.stat()
    except FileNotFoundError:
        return "Its folder is gone: if the data set was moved, open it at its new place"
    except OSError:
        return ""
    return ""


def _check_npy(path: Path, head: bytes, size: int, dtype: np.dtype[Any], length: int, hint: str) -> None:
    """Check that this is the head of a .npy file of `length` elements, and that the file is large enough for them."""
    expected = _npy_head(dtype, length)
    if len(head) < _NPY_START or head[:8] != expected[:8] or head[_NPY_START:].strip() != expected[_NPY_START:].strip():
        told = expected[_NPY_START:].strip().decode()
        found = head[_NPY_START:].strip().decode("latin1")[:200]
        raise LayoutError("the head of the index file is damaged", path=path, expected=told, found=found, hint=hint)
    whole = len(head) + dtype.itemsize * length
    if size != whole:
        error_type = TruncatedError if size < whole else OversizedError
        raise error_type("size of the index file", path=path, expected=f"{whole} bytes", found=size, hint=hint)
