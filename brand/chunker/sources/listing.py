"""The files of a folder and their transcripts as arrays on disk, so that a folder of any size takes little memory.

`names.bin` holds the keys one after the other. `entries.bin` holds one fixed row for each file, in the order of the
public index. `texts.bin` holds the transcripts; each is followed by the file's values in the other columns of the
table. `columns-of-entries.bin` holds the sizes of these values. Workers map the same files.

Transcripts are in a table (TSV or CSV of path and text), which is joined to the files by hashed path. The table is read
once, row by row. This takes 16 bytes of memory for each audio file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.texttable import Dialect, TextTable
from brand.errors import SourceError, UsageError
from brand.formats.arrays import flush, map_array, release
from brand.formats.header import is_field_name
from brand.formats.noticed import Noticed
from brand.printable import escaped

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

SIDECARS: Final = {".txt": 1, ".lab": 2, ".json": 4}
"""Suffix of a file that belongs to the file next to it -> its bit in `sidecar`. The first text found is used."""
TEXT_BITS: Final = SIDECARS[".txt"] | SIDECARS[".lab"]
TEXTS_OF_FOLDER: Final = ".trans.txt"
"""End of the name of a table that has the texts of the audio files next to it, one per line, as LibriSpeech has it."""
SIDECARS_OF: Final = {"image": (".txt", ".json"), "audio": (".txt", ".lab", TEXTS_OF_FOLDER)}
"""Field of a file -> ends of the names of the files that may belong to it, or to all files of a folder."""

PATH_NAMES: Final = ("path", "file", "filename", "file_name", "audio", "clip", "wav")
TEXT_NAMES: Final = ("text", "transcript", "transcription", "sentence")
RESERVED: Final = ("index", "key", "audio", "label", "duration", "text")
"""Fields that every sample has: no column may have such a name."""


class SourceFile(NamedTuple):
    """One file of the source."""

    key: str
    """Path below the source folder, with `/`."""
    label: int
    """Class number; -1 if there are no classes."""
    size: int
    modified_ns: int
    sidecar: int = 0
    text: str = ""
    """Transcript from a table next to the file."""


class ListingWriter:
    """Writes the rows of files, in index order; `close` returns the `Listing`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self._names: BinaryIO = (folder / "names.bin").open("wb")
        self._entries: BinaryIO = (folder / "entries.bin").open("wb")
        self._texts: BinaryIO | None = None  # opened at the first text: most folders have none
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
        if any(file.text for file in files):
            self._texts = self._texts or (self.folder / "texts.bin").open("wb")
            texts = [file.text.encode() for file in files]
            text_sizes = np.fromiter(map(len, texts), np.int64, len(texts))
            rows["text_at"] = self._texts.tell() + np.cumsum(text_sizes) - text_sizes
            rows["text_size"] = text_sizes
            self._texts.write(b"".join(texts))
        self._names.write(b"".join(names))
        self._entries.write(rows.tobytes())
        self._name_at += int(sizes.sum())
        self.count += len(files)

    def close(self) -> Listing:
        """Finish writing, and open the listing."""
        self._names.close()
        self._entries.close()
        if self._texts is not None:
            self._texts.close()
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
        return self.keys(self.entries[index : index + 1])[0]

    def keys(self, entries: NDArray[np.void]) -> list[str]:
        """Return the paths of the files of these rows, below the source folder."""
        names, at = self._names.data, entries["name_at"].tolist()
        ends = (entries["name_at"] + entries["name_size"]).tolist()
        return [str(names[low:high], "utf-8") for low, high in zip(at, ends, strict=True)]

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


def join_table(
    table: SourcePath,
    root: SourcePath,
    listing: Listing,
    unusable: Collection[str],
    columns: Sequence[str] = (),
    dialect: Dialect | None = None,
) -> tuple[int, list[str]]:
    """Give each audio file that the table names its text, and its values in `columns`.

    Rows of `unusable` files (names as `escaped` writes them) are skipped. Returns how many files got a text, and notes:
    the columns that were not chosen, and facts about the rows.

    Raises `UsageError` if the table lacks one of the two columns or a wanted one, `SourceError` if a row names no audio
    file, or names one for the second time.
    """
    find = _AudioFinder(listing)
    entries = map_array(listing.folder / listing.entries_name, ENTRY, "r+")
    sizes = listing.new_columns(tuple(columns))
    rows = TableRows(table, tuple(columns), dialect or Dialect())
    bases = bases_of(root)
    told = np.zeros(len(listing), bool)
    with (listing.folder / "texts.bin").open("wb") as texts:
        for line, path, text, *values in rows:
            key = path.strip()
            for base in bases:
                key = key.removeprefix(base)
            index = find(key)
            if index is None:
                if escaped(key) in unusable:
                    continue
                hint = "Paths are relative to the audio folder"
                raise SourceError(f"{table}, line {line}", f"there is no audio file {path!r} in the folder", hint=hint)
            if told[index]:
                raise SourceError(f"{table}, line {line}", f"audio file {path!r} is named a second time")
            data = text.strip().encode()
            entries["text_at"][index], entries["text_size"][index] = texts.tell(), len(data)
            texts.write(data)
            if values:
                encoded = [value.strip().encode() for value in values]
                sizes[index] = list(map(len, encoded))
                texts.writelines(encoded)
            told[index] = True
    flush(entries)
    flush(sizes)
    notes = [not_taken(table, rows.left)] if rows.left else []
    return int(told.sum()), [*notes, *(fact.text for fact in rows.noticed)]


def bases_of(root: SourcePath) -> tuple[str, ...]:
    """Return what a table may write before the path of a file below a folder."""
    here = (os.path.abspath(root), str(root.resolve())) if isinstance(root, Path) else (str(root),)
    return (*(f"{base}/" for base in here), "./")


def not_taken(table: SourcePath, left: Sequence[str]) -> str:
    """Return a note that names the columns which were not chosen, and the option that chooses them."""
    can = ",".join(name for name in left if is_field_name(name) and name not in RESERVED)
    if len(left) == 1:
        what, them = f"The column {left[0]} of {table.name} is not read", "it"
    else:
        what, them = f"The columns {', '.join(left)} of {table.name} are not read", "them"
    return what + (f"; --columns {can} adds {them}" if can else "")


class Finder:
    """Name of a file -> its index, by hashed name: its key, or with `stems` the key without its ending."""

    def __init__(self, listing: Listing, *, stems: bool = False) -> None:
        self._name: Callable[[int], str] = (lambda i: os.path.splitext(listing.key(i))[0]) if stems else listing.key
        self._hashed = _Hashed(map(self._name, range(len(listing))))

    def __call__(self, name: str) -> int | None:
        """Return the index of a file; None if there is no such file. Raises ValueError if there are several."""
        found = [index for index in self._hashed.find(name) if self._name(index) == name]
        if len(found) > 1:
            raise ValueError(f"there are {len(found)} files {name!r}, with several endings")
        return found[0] if found else None


class _AudioFinder:
    """Key -> index. A name without folder and suffix finds the one file that is called so."""

    def __init__(self, listing: Listing) -> None:
        self._listing, self._by_key = listing, Finder(listing)

    def __call__(self, key: str) -> int | None:
        index = self._by_key(key)
        if index is not None or "/" in key:
            return index
        found = [index for index in self._by_stem.find(key) if _stem(self._listing.key(index)) == key]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _by_stem(self) -> _Hashed:
        return _Hashed(_stem(self._listing.key(index)) for index in range(len(self._listing)))


class _Hashed:
    """The positions of texts, by hashed text."""

    def __init__(self, texts: Iterator[str]) -> None:
        hashes = np.fromiter(map(_hash, texts), np.uint64)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, text: str) -> list[int]:
        """Return the positions of texts with the hash of this one."""
        low, high = (np.searchsorted(self._hashes, np.uint64(_hash(text)), side) for side in ("left", "right"))
        found: list[int] = self._order[low:high].tolist()
        return found


def _stem(key: str) -> str:
    return os.path.splitext(key.rpartition("/")[2])[0]


class TableRows:
    """(line, path, text, value of each wanted column) of each row of the table."""

    def __init__(self, table: SourcePath, columns: tuple[str, ...], dialect: Dialect) -> None:
        self._table, self._columns, self._dialect = table, columns, dialect
        self.left: list[str] = []
        """Names of the columns that were not chosen; known after the first row is read."""
        self.noticed: tuple[Noticed, ...] = ()
        """Facts about the rows; known after all are read."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        table = self._table
        try:
            with table.open("rb") as file:
                rows = TextTable(table.name, str(table), file, self._dialect)
                first = list(rows.header)
                path_at, text_at, has_head = _columns_of(table, first)
                taken = (path_at, text_at, *self._places(first if has_head else []))
                self.left = [name for at, name in enumerate(first) if at not in taken and name.strip()]
                if not has_head:
                    yield rows.header_line, first[path_at], first[text_at]
                for line, row, fault in rows:
                    if fault is not None:
                        raise UsageError(f"{table}, line {line}: {fault.reason}. {fault.hint}".rstrip(". "))
                    yield line, *(row[at] for at in taken)
                self.noticed = rows.noticed
        except SourceError as error:
            raise UsageError(f"not a table in UTF-8: {error}") from error
        except FileNotFoundError:
            raise UsageError(f"{table}: there is no such table of transcripts") from None
        except IsADirectoryError:
            raise UsageError(f"{table}: a table of transcripts is a file, this is a folder") from None

    def _places(self, head: list[str]) -> list[int]:
        names = [name.strip() for name in head]
        for name in self._columns:
            if name in RESERVED:
                raise UsageError(f"--columns {name}: every sample has a field of this name; rename the column")
            if name not in names:
                there = f"it has {', '.join(names)}" if names else "its first row does not name its columns"
                raise UsageError(f"--columns {name}: {self._table} has no such column; {there}")
        return [names.index(name) for name in self._columns]


def _columns_of(table: SourcePath, first: list[str]) -> tuple[int, int, bool]:
    """Return (position of path, position of text, whether the first row is a header)."""
    names = [name.strip().lower() for name in first]
    path_at = next((names.index(n) for n in PATH_NAMES if n in names), None)
    text_at = next((names.index(n) for n in TEXT_NAMES if n in names), None)
    if path_at is not None and text_at is not None:
        return path_at, text_at, True
    if len(first) == 2:
        return 0, 1, False
    raise UsageError(
        f"{table}: expected a column of paths ({', '.join(PATH_NAMES)}) and one of texts ({', '.join(TEXT_NAMES)}),"
        f" or exactly two columns without a header; found {', '.join(first) or 'nothing'}"
    )


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())
