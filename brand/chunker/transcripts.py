"""Which text belongs to which clip? A table (TSV or CSV of path and text) is joined to the listing by hashed path.

The table is read once, row by row; texts go to `texts.bin`, their places into the listing's entries. Memory: 16 bytes a
clip.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from brand.chunker.listing import Listing
from brand.errors import SourceError, UsageError
from brand.formats.mapped import flush

PATH_NAMES: Final = ("path", "file", "filename", "file_name", "audio", "clip", "wav")
TEXT_NAMES: Final = ("text", "transcript", "transcription", "sentence")


def join_table(table: Path, root: Path, listing: Listing, unusable: Collection[str]) -> int:
    """Give each clip that the table names its text; returns how many got one. Rows of `unusable` clips are passed over.

    Raises `UsageError` for a table without the two columns, `SourceError` for a row that names no clip or a clip that
    is named twice.
    """
    find = _Finder(listing)
    entries = listing.writable_entries()
    bases = (os.path.abspath(root) + "/", str(root.resolve()) + "/", "./")
    told = np.zeros(len(listing), bool)
    with (listing.folder / "texts.bin").open("wb") as texts:
        for line, path, text in _rows(table):
            key = path.strip()
            for base in bases:
                key = key.removeprefix(base)
            index = find(key)
            if index is None:
                if key in unusable:
                    continue
                hint = "Paths are relative to the audio folder"
                raise SourceError(f"{table}, line {line}", f"there is no clip {path!r} in the folder", hint=hint)
            if told[index]:
                raise SourceError(f"{table}, line {line}", f"clip {path!r} is named a second time")
            data = text.strip().encode()
            entries["text_at"][index], entries["text_size"][index] = texts.tell(), len(data)
            texts.write(data)
            told[index] = True
    flush(entries)
    return int(told.sum())


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


def _rows(table: Path) -> Iterator[tuple[int, str, str]]:
    """(line, path, text) of each row of the table."""
    csv.field_size_limit(min(sys.maxsize, 1 << 24))
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            tabs = table.suffix.lower() == ".tsv" or "\t" in head
            file.seek(0)
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(file)
            first = next(reader, [])
            path_at, text_at, has_head = _columns(table, first)
            if not has_head:
                yield 1, first[path_at], first[text_at]
            for row in reader:
                if not row:
                    continue
                if len(row) <= max(path_at, text_at):
                    raise UsageError(f"{table}, line {reader.line_num}: {len(row)} columns, expected {len(first)}")
                yield reader.line_num, row[path_at], row[text_at]
    except FileNotFoundError:
        raise UsageError(f"{table}: there is no such table of transcripts") from None
    except IsADirectoryError:
        raise UsageError(f"{table}: a table of transcripts is a file, this is a folder") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{table}: not a table in UTF-8: {error}") from error


def _columns(table: Path, first: list[str]) -> tuple[int, int, bool]:
    """(position of path, position of text, whether the first row is a head)."""
    names = [name.strip().lower() for name in first]
    path_at = next((names.index(n) for n in PATH_NAMES if n in names), None)
    text_at = next((names.index(n) for n in TEXT_NAMES if n in names), None)
    if path_at is not None and text_at is not None:
        return path_at, text_at, True
    if len(first) == 2:
        return 0, 1, False
    raise UsageError(
        f"{table}: expected a column of paths ({', '.join(PATH_NAMES)}) and one of texts ({', '.join(TEXT_NAMES)}),"
        f" or exactly two columns without a head; found {', '.join(first) or 'nothing'}"
    )


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())
