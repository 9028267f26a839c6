"""The index: arrays in files that follow from the chunks' tables (docs/reference/format.md, section 4).

`IndexBuilder` takes chunks in any order and writes files of a work folder, so its memory does not grow with the data
set. `seal` checks these files, moves them into place and writes the manifest last. The chunker and
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
from brand.formats.arrays import ArrayFile, reserve
from brand.formats.buckets import BucketFile
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
from brand.formats.record import column_dtype

_NPY_START: Final = 10
"""Magic, version and size of the text that follows."""

BUCKET_BYTES: Final = 16 << 20
"""Bytes of places and columns that are put into the order of the source at a time."""

_HINT: Final = "`brand reindex` rebuilds it from the chunks"
_HINT_OF_SHARE: Final = "Copy it from another partition, or from the undivided data set: it is equal in all"


def place_dtype(samples: int) -> np.dtype[Any]:
    """Return the dtype of `place.npy`."""
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
    messages. Rows are written at once, at their places. Places and columns are in the order of the source: they wait in
    a `BucketFile`, and `finish` writes them from front to back. Methods raise OSError.
    """

    def __init__(self, folder: Path, header: Header, target: str | Path) -> None:
        self.folder, self.header, self.target = folder, header, target
        self.samples = self.stored_bytes = self.raw_bytes = self.largest_sample = 0
        self._counts: Counts = {}
        for name, facts in array_dtypes(header).items():
            _new_npy(folder / name, *facts)
        entry = np.dtype([("index", "<u8"), ("place", "<u8"), ("columns", column_dtype(header.schema))])
        self._bucket = max(1, BUCKET_BYTES // entry.itemsize)
        """Samples of a bucket: those whose indices follow each other."""
        self._entries = BucketFile(folder / "entries", entry, -(-header.samples // self._bucket))

    def add(
        self, number: int, rows: NDArray[np.void], checksum: int, columns: NDArray[np.void], counts: Counts
    ) -> None:
        """Add one chunk's table, its columns (one structured row a sample, in storage order), and its counts."""
        first = number * self.header.chunk_size
        self._write(SAMPLES_NAME, first, np.ascontiguousarray(rows, ROW))
        file_size = int(rows["offset"][-1]) + int(rows["size"][-1])
        self._write(CHUNKS_NAME, number, np.array([(file_size, checksum)], CHUNK_ROW))
        entries = np.empty(len(rows), self._entries.dtype)
        entries["index"], entries["place"] = rows["index"], np.arange(first, first + len(rows))
        for name, _ in self.header.schema.columns:
            entries["columns"][name] = columns[name]
        self._entries.add(entries["index"] // self._bucket, entries)
        self.samples += len(rows)
        self.stored_bytes += int(rows["size"].sum(dtype=np.uint64))
        self.raw_bytes += int(rows["raw_size"].sum(dtype=np.uint64))
        self.largest_sample = max(self.largest_sample, int(rows["raw_size"].max()))
        self._counts = added(self._counts, counts)

    @property
    def noticed(self) -> tuple[Noticed, ...]:
        """Facts that were noticed in the samples of the added chunks."""
        return facts_of(self._counts, self.header.decode)

    def finish(self) -> None:
        """Write places and columns. Raises `LayoutError` if a sample has two places, or none."""
        dtypes = array_dtypes(self.header)
        for bucket in range(self._entries.buckets):
            first = bucket * self._bucket
            entries = self._entries.read(bucket)
            local = entries["index"].astype(np.int64) - first
            self._check_single(entries, local)
            order = np.empty(min(self._bucket, self.header.samples - first), np.intp)
            if len(local) < len(order):  # then a sample has no place, or one of a later bucket has two
                continue
            order[local] = np.arange(len(local))
            self._write(PLACE_NAME, first, entries["place"].take(order).astype(dtypes[PLACE_NAME][0]))
            for name, _ in self.header.schema.columns:
                file = column_name(name)
                self._write(file, first, entries["columns"][name].take(order).astype(dtypes[file][0]))
        if self.samples != self.header.samples:
            missing = self.header.samples - self.samples
            raise LayoutError(f"no chunk has {missing:,} of {counted(self.header.samples, 'sample')}", path=self.target)
        self._entries.remove()

    def _check_single(self, entries: NDArray[np.void], local: NDArray[np.int64]) -> None:
        """Raise `LayoutError` if a sample has two entries: it names the chunk that was added later."""
        if not len(local) or int(np.bincount(local).max()) == 1:
            return
        order = np.argsort(local, kind="stable")
        again = int(order[1:][local[order[1:]] == local[order[:-1]]].min())
        chunk = int(entries["place"][again]) // self.header.chunk_size
        raise LayoutError(
            "a sample has two places",
            path=f"{self.target}/{chunk_name(chunk)}",
            chunk=chunk,
            sample=int(entries["index"][again]),
        )

    def _write(self, name: str, first: int, values: NDArray[Any]) -> None:
        """Write elements of a file of the index, from element `first` on."""
        dtype, length = array_dtypes(self.header)[name]
        with (self.folder / name).open("r+b") as file:
            file.seek(len(_npy_head(dtype, length)) + first * dtype.itemsize)
            file.write(values.view(np.uint8).data)


def _new_npy(path: Path, dtype: np.dtype[Any], length: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = _npy_head(dtype, length)
    path.write_bytes(head)
    reserve(path, len(head) + dtype.itemsize * length)


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
