"""The files of a folder as arrays on disk, so that a folder of any size takes little memory.

`names.bin` holds the keys one after the other. `entries.bin` holds one fixed row for each file, in the order of the
public index. `texts.bin` holds the transcripts; each is followed by the file's values in the other columns of the
table. `columns-of-entries.bin` holds the sizes of these values. Workers map the same files.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.formats.arrays import map_array, release

ENTRY: Final = np.dtype(
    [
        ("name_at", "<u8"),
        ("name_size", "<u4"),
        ("label", "<i4"),
        ("size", "<u8"),
        ("modified_ns", "<i8"),
        ("text_at", "<u8"),
        ("text_size", "<u4"),
        ("sidecar", "<u4"),
    ]
)

_BLOCK: Final = 1 << 18

SIDECARS: Final = {".txt": 1, ".lab": 2}
"""Suffix of a transcript next to an audio file -> its bit in `sidecar`. The first suffix found is used."""


class SourceFile(NamedTuple):
    """One file of the source."""

    key: str
    """Path below the source folder, with `/`."""
    label: int
    """Class number; -1 if there are no classes."""
    size: int
    modified_ns: int
    sidecar: int = 0


class ListingWriter:
    """Writes the rows of files, in index order; `close` returns the `Listing`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self._names: BinaryIO = (folder / "names.bin").open("wb")
        self._entries: BinaryIO = (folder / "entries.bin").open("wb")
        self._name_at = 0

    def add(self, files: list[SourceFile]) -> None:
        """Append files."""
        names = [file.key.encode() for file in files]
        rows = np.zeros(len(files), ENTRY)
        sizes = np.fromiter(map(len, names), np.int64, len(names))
        rows["name_at"] = self._name_at + np.cumsum(sizes) - sizes
        rows["name_size"] = sizes
        rows["label"] = [file.label for file in files]
        rows["size"] = [file.size for file in files]
        rows["modified_ns"] = [file.modified_ns for file in files]
        rows["sidecar"] = [file.sidecar for file in files]
        self._names.write(b"".join(names))
        self._entries.write(rows.tobytes())
        self._name_at += int(sizes.sum())
        self.count += len(files)

    def close(self) -> Listing:
        """Finish writing, and open the listing."""
        self._names.close()
        self._entries.close()
        return Listing(self.folder)


class Listing:
    """The files of a source, by index. Picklable; each process maps the files for itself."""

    def __init__(self, folder: Path, entries: str = "entries.bin", columns: tuple[str, ...] = ()) -> None:
        self.folder, self.columns = folder, columns
        self.entries_name = entries
        """File that holds the rows."""
        self.entries: NDArray[np.void] = map_array(folder / entries, ENTRY)
        self._names: NDArray[np.uint8] = map_array(folder / "names.bin", np.dtype("u1"))

    def __getstate__(self) -> tuple[Path, str, tuple[str, ...]]:
        return self.folder, self.entries_name, self.columns

    def __setstate__(self, state: tuple[Path, str, tuple[str, ...]]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.entries)

    def key(self, index: int) -> str:
        """Return the path of a file below the source folder."""
        entry = self.entries[index]
        at = int(entry["name_at"])
        return self._names[at : at + int(entry["name_size"])].tobytes().decode()

    def text(self, index: int) -> bytes:
        """Return the transcript of a file from a table, in UTF-8; empty if there is none."""
        entry = self.entries[index]
        size, at = int(entry["text_size"]), int(entry["text_at"])
        return self._texts[at : at + size].tobytes() if size else b""

    def values(self, index: int) -> list[bytes]:
        """Return the values of a file in `columns`, in UTF-8; empty if the table does not name the file."""
        ends = np.cumsum(self.column_sizes[index], dtype=np.int64).tolist()
        at = int(self.entries["text_at"][index]) + int(self.entries["text_size"][index])
        return [self._texts[at + low : at + high].tobytes() for low, high in zip([0, *ends], ends, strict=False)]

    def new_columns(self, columns: tuple[str, ...]) -> NDArray[np.uint32]:
        """Replace the columns. Return the sizes of their values, shape (len, columns), for the caller to fill in."""
        self.columns = columns
        self.__dict__.pop("column_sizes", None)
        if not columns:
            return self.column_sizes
        return map_array(self._columns_file, self._column_row, "w+", len(self))

    @cached_property
    def column_sizes(self) -> NDArray[np.uint32]:
        """Sizes of the values of each file, shape (len, columns)."""
        if not self.columns:
            return np.zeros((len(self), 0), np.uint32)
        return map_array(self._columns_file, self._column_row)

    @property
    def _columns_file(self) -> Path:
        return self.folder / f"columns-of-{self.entries_name}"

    @property
    def _column_row(self) -> np.dtype[Any]:
        return np.dtype(("<u4", (len(self.columns),)))

    @cached_property
    def _texts(self) -> NDArray[np.uint8]:
        return map_array(self.folder / "texts.bin", np.dtype("u1"))

    def without(self, bad: NDArray[np.bool_]) -> Listing:
        """Return the listing without some files."""
        with (self.folder / "kept.bin").open("wb") as kept:
            for start in range(0, len(bad), _BLOCK):
                kept.write(self.entries[start : start + _BLOCK][~bad[start : start + _BLOCK]].tobytes())
        found = Listing(self.folder, "kept.bin", self.columns)
        found._columns_file.write_bytes(self.column_sizes[~bad].tobytes())
        return found

    def writable_entries(self) -> NDArray[np.void]:
        """Return the entries mapped for writing (transcripts are filled in after the scan)."""
        return map_array(self.folder / self.entries_name, ENTRY, "r+")

    def release(self) -> None:
        """Release mapped pages."""
        release(self.entries, self._names)

    def fingerprint(self, *, times: bool) -> str:
        """Return the identity of the files: names, labels, sizes, texts of a table; with `times` also their dates."""
        digest = xxhash.xxh3_128()
        for start in range(0, len(self.entries), _BLOCK):
            block = np.array(self.entries[start : start + _BLOCK])
            if not times:
                block["modified_ns"] = 0
            digest.update(block.tobytes())
        texts = self._texts if (self.folder / "texts.bin").exists() else self._names[:0]
        if self.columns:
            digest.update("\n".join(self.columns).encode())
            digest.update(self.column_sizes.tobytes())
        for blob in (self._names, texts):
            for start in range(0, len(blob), 1 << 22):
                digest.update(blob[start : start + (1 << 22)].tobytes())
        return digest.hexdigest()
