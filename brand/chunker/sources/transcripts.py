"""Which text belongs to which audio file?

A table (TSV or CSV of path and text) is joined to the listing by hashed path.

The table is read once, row by row. Texts are written to `texts.bin`, and their offsets into the listing's entries. The
values of a file in the other wanted columns follow its text, and their sizes are in the listing's columns. This takes
16 bytes of memory for each audio file.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from brand.chunker.sources.listing import Listing
from brand.errors import SourceError, UsageError
from brand.formats.arrays import flush
from brand.formats.header import is_field_name
from brand.printable import escaped

PATH_NAMES: Final = ("path", "file", "filename", "file_name", "audio", "clip", "wav")
TEXT_NAMES: Final = ("text", "transcript", "transcription", "sentence")


RESERVED: Final = ("index", "key", "audio", "label", "duration", "text")
"""Fields that every sample has: no column may have such a name."""


def join_table(
    table: Path, root: Path, listing: Listing, unusable: Collection[str], columns: Sequence[str] = ()
) -> tuple[int, list[str]]:
    """Give each audio file that the table names its text, and its values in `columns`.

    Rows of `unusable` files (names as `escaped` writes them) are skipped. Returns how many files got a text, and the
    names of the columns that were not chosen.

    Raises `UsageError` if the table lacks one of the two columns or a wanted one, `SourceError` if a row names no audio
    file, or names one for the second time.
    """
    find = _Finder(listing)
    entries = listing.writable_entries()
    sizes = listing.new_columns(tuple(columns))
    rows = _TableRows(table, tuple(columns))
    bases = (os.path.abspath(root) + "/", str(root.resolve()) + "/", "./")
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
    return int(told.sum()), rows.left


def not_taken(table: Path, left: Sequence[str]) -> str:
    """Return a note that names the columns which were not chosen, and the option that chooses them."""
    can = ",".join(name for name in left if is_field_name(name) and name not in RESERVED)
    if len(left) == 1:
        what, them = f"The column {left[0]} of {table.name} is not read", "it"
    else:
        what, them = f"The columns {', '.join(left)} of {table.name} are not read", "them"
    return what + (f"; --columns {can} adds {them}" if can else "")


class _Finder:
    """Key -> index, by hashed key."""

    def __init__(self, listing: Listing) -> None:
        hashes = np.fromiter((_hash(listing.key(i)) for i in range(len(listing))), np.uint64, len(listing))
        self._listing, self._order = listing, np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def __call__(self, key: str) -> int | None:
        at = int(np.searchsorted(self._hashes, np.uint64(_hash(key))))
        index = int(self._order[at]) if at < len(self._order) else -1
        return index if index >= 0 and self._listing.key(index) == key else None


class _TableRows:
    """(line, path, text, value of each wanted column) of each row of the table."""

    def __init__(self, table: Path, columns: tuple[str, ...]) -> None:
        self._table, self._columns = table, columns
        self.left: list[str] = []
        """Names of the columns that were not chosen; known after the first row is read."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        table = self._table
        csv.field_size_limit(min(sys.maxsize, 1 << 24))
        try:
            with table.open(newline="", encoding="utf-8-sig") as file:
                head = file.readline()
                tabs = table.suffix.lower() == ".tsv" or "\t" in head
                file.seek(0)
                reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(file)
                first = next(reader, [])
                path_at, text_at, has_head = _columns(table, first)
                taken = (path_at, text_at, *self._places(first if has_head else []))
                self.left = [name for at, name in enumerate(first) if at not in taken and name.strip()]
                if not has_head:
                    yield 1, first[path_at], first[text_at]
                for row in reader:
                    if not row:
                        continue
                    if len(row) <= max(taken):
                        raise UsageError(f"{table}, line {reader.line_num}: {len(row)} columns, expected {len(first)}")
                    yield reader.line_num, *(row[at] for at in taken)
        except FileNotFoundError:
            raise UsageError(f"{table}: there is no such table of transcripts") from None
        except IsADirectoryError:
            raise UsageError(f"{table}: a table of transcripts is a file, this is a folder") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{table}: not a table in UTF-8: {error}") from error

    def _places(self, head: list[str]) -> list[int]:
        """Return the positions of the wanted columns."""
        names = [name.strip() for name in head]
        for name in self._columns:
            if name in RESERVED:
                raise UsageError(f"--columns {name}: every sample has a field of this name; rename the column")
            if name not in names:
                there = f"it has {', '.join(names)}" if names else "its first row does not name its columns"
                raise UsageError(f"--columns {name}: {self._table} has no such column; {there}")
        return [names.index(name) for name in self._columns]


def _columns(table: Path, first: list[str]) -> tuple[int, int, bool]:
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
