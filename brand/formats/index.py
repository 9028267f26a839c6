"""The index: what follows from the chunks' tables, as memory-mapped arrays (docs/format.md, section 4).

`IndexBuilder` makes the files while chunks come in, in any order, in memory-mapped files of a work folder, so its
memory does not grow with the data set; `seal` checks it, moves it into place and writes the manifest last. `open_array`
maps one file and distrusts it. The chunker and `brand reindex` use the same two, which is why their results are equal
byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import LayoutError, MissingFileError, TruncatedError
from brand.formats.constants import (
    CHUNK_ROW,
    CHUNKS_NAME,
    EXTRAS_NAME,
    MANIFEST_NAME,
    PLACE_NAME,
    ROW,
    SAMPLES_NAME,
    SKIPPED_NAME,
    column_name,
)
from brand.formats.header import Header
from brand.formats.manifest import Manifest, index_names, pack_manifest
from brand.formats.mapped import flush, gather, release, reserve, scatter
from brand.formats.publish import file_digest, publish_bytes, publish_file, sync_folder

_HINT: Final = "`brand reindex` makes it again from the chunks"


def place_dtype(samples: int) -> np.dtype[Any]:
    """dtype of `place.npy`: the largest value stands for "not yet known" while the index is made."""
    return np.dtype("<u4") if samples <= 0xFFFFFFFF else np.dtype("<u8")


def array_dtypes(header: Header) -> dict[str, tuple[np.dtype[Any], int]]:
    """(dtype, length) of each file of the index."""
    columns = {
        column_name(n): (np.dtype("<i8" if c == "int" else "<f8"), header.samples) for n, c in header.schema.fixed
    }
    return {
        SAMPLES_NAME: (ROW, header.samples),
        PLACE_NAME: (place_dtype(header.samples), header.samples),
        CHUNKS_NAME: (CHUNK_ROW, header.chunks),
        **columns,
    }


class IndexBuilder:
    """Collects the tables of all chunks.

    Owned by one process; `folder` is a work folder on the data set's file system.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self.folder, self.header = folder, header
        self.samples = self.stored_bytes = self.raw_bytes = self.largest_sample = 0
        self._arrays = {name: _new_npy(folder / name, *facts) for name, facts in array_dtypes(header).items()}
        self._unknown = np.iinfo(self._arrays[PLACE_NAME].dtype).max
        self._arrays[PLACE_NAME][:] = self._unknown

    def add(self, number: int, rows: NDArray[np.void], checksum: int, columns: NDArray[np.void]) -> None:
        """Take over one chunk's table and its fixed fields (one structured row a sample, in storage order)."""
        first = number * self.header.chunk_size
        places = np.arange(first, first + len(rows))
        indices = rows["index"]
        place = self._arrays[PLACE_NAME]
        taken = gather(place, indices) != self._unknown
        scatter(place, indices, places)
        taken |= gather(place, indices) != places  # an index that stands twice in this chunk keeps one place only
        if taken.any():
            twice = int(indices[np.flatnonzero(taken)[0]])
            raise LayoutError("a sample stands in two places", path=self.folder, chunk=number, sample=twice)
        self._arrays[SAMPLES_NAME][first : first + len(rows)] = rows
        file_size = int(rows["offset"][-1]) + int(rows["size"][-1])
        self._arrays[CHUNKS_NAME][number] = (file_size, checksum)
        for name, _ in self.header.schema.fixed:
            scatter(self._arrays[column_name(name)], indices, columns[name])
        self.samples += len(rows)
        self.stored_bytes += int(rows["size"].sum(dtype=np.uint64))
        self.raw_bytes += int(rows["raw_size"].sum(dtype=np.uint64))
        self.largest_sample = max(self.largest_sample, int(rows["raw_size"].max()))
        release(*self._arrays.values())

    def finish(self) -> None:
        """Check that every sample has its place, and flush."""
        if self.samples != self.header.samples:
            missing = self.header.samples - self.samples
            raise LayoutError(f"{missing:,} samples of {self.header.samples:,} are in no chunk", path=self.folder)
        for array in self._arrays.values():
            flush(array)
        self._arrays.clear()


def _new_npy(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """A new .npy file, mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, facts)
        start = file.tell()
    reserve(path, start + dtype.itemsize * length)
    return np.lib.format.open_memmap(path, "r+").view(np.ndarray)


def seal(folder: Path, builder: IndexBuilder, *, data_set_id: bytes, dictionary_size: int) -> Manifest:
    """Move a finished index into the data set at `folder` and write its manifest, last of all."""
    builder.finish()
    files: dict[str, tuple[int, str]] = {}
    for name in index_names(builder.header):
        files[name] = file_digest(builder.folder / name)
        (folder / name).parent.mkdir(exist_ok=True)
        publish_file(builder.folder / name, folder / name)
    for parent in {Path(name).parent for name in files} | {Path("chunks")}:
        sync_folder(folder / parent)
    companions = {name: file_digest(folder / name) for name in (EXTRAS_NAME, SKIPPED_NAME) if (folder / name).exists()}
    manifest = Manifest(
        data_set_id=data_set_id,
        header=builder.header,
        dictionary_size=dictionary_size,
        stored_bytes=builder.stored_bytes,
        raw_bytes=builder.raw_bytes,
        largest_sample=builder.largest_sample,
        files=files,
        companions=companions,
    )
    publish_bytes(folder / MANIFEST_NAME, pack_manifest(manifest))
    return manifest


def open_array(folder: Path, name: str, header: Header) -> NDArray[Any]:
    """Map one file of the index read-only.

    Raises `MissingFileError`, `TruncatedError` or `LayoutError`; reads no element.
    """
    path = folder / name
    dtype, length = array_dtypes(header)[name]
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise MissingFileError("an index file is missing", path=path, hint=_HINT) from None
    except (ValueError, EOFError, OverflowError, MemoryError, SyntaxError) as error:
        raise TruncatedError(f"the index file is cut short or no .npy file: {error}", path=path, hint=_HINT) from error
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (length,):
        found = f"{getattr(array, 'shape', '?')} of {getattr(array, 'dtype', '?')}"
        raise LayoutError(
            "the index file does not fit the manifest",
            path=path,
            expected=f"({length},) of {dtype}",
            found=found,
            hint=_HINT,
        )
    return array.view(np.ndarray)  # a plain array: indexing a memmap costs five times as much
