"""Which files are below a folder? Links to folders are followed; one that cannot be followed is an error.

Hidden files (a leading dot) and the folders of writers that are at work (`_temporary`) are no data. For Parquet, no
file or folder is data whose name begins with `_`, as for Spark and PyArrow. Folders of table formats, whose log says
which files are valid, are refused: their old files are still there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from brand.chunker.sources.splits import is_partition
from brand.errors import SourceError, UsageError
from brand.formats.constants import MANIFEST_NAME

_NO_DATA: Final = frozenset({"_temporary", "_SUCCESS", "_spark_metadata", "__MACOSX"})
_TABLES: Final = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
_READER: Final = {
    "Delta Lake": "brand.pack(deltalake.DeltaTable(FOLDER).to_pyarrow_table(), DST) takes those",
    "Hudi": "write the table as Parquet with Spark first",
    "Iceberg": "brand.pack(CATALOG.load_table(NAME).scan().to_arrow(), DST) of pyiceberg takes those",
}


def files_below(root: Path, endings: Sequence[str], *, underscore: bool = True) -> list[str]:
    """Return the paths below a folder, sorted, of the files whose names end with one of `endings`, in any case.

    Args:
        root: The folder.
        endings: The ends of names, in lower case.
        underscore: Whether names that begin with `_` are data.

    Raises:
        SourceError: A folder cannot be read, a link is broken, or two links lead to one folder.
        UsageError: A folder is a table of Delta Lake, Hudi or Iceberg.
    """
    walk = _FolderWalk(root, tuple(endings), underscore=underscore)
    return sorted(walk.below("", frozenset()), key=lambda name: Path(name).parts)


def is_data(name: str, *, underscore: bool) -> bool:
    """Return whether a file or folder of this name may be data; `underscore` is as in `files_below`."""
    if name.startswith(".") or name in _NO_DATA:
        return False
    return underscore or not name.startswith("_") or is_partition(name)


class _FolderWalk:
    """One walk through the folders below `root`."""

    def __init__(self, root: Path, endings: tuple[str, ...], *, underscore: bool) -> None:
        self._root, self._endings, self._underscore = root, endings, underscore
        self._seen: dict[tuple[int, int], str] = {}
        """Device and number of each folder -> its path."""

    def below(self, folder: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        """Yield the files below a folder; `above` are the folders that contain it."""
        try:
            facts = (self._root / folder).stat()
            with os.scandir(self._root / folder) as found:
                entries = list(found)
        except OSError as error:
            raise SourceError(folder or str(self._root), f"the folder cannot be read: {error.strerror}") from error
        identity = (facts.st_dev, facts.st_ino)
        if identity in above:  # a link leads back to a folder above it, whose files are read already
            return
        if identity in self._seen:
            raise SourceError(
                folder or str(self._root),
                f"it is the folder {self._seen[identity] or '.'}, which a link names again: its files would be there"
                " twice",
                hint="Remove the link, or name the files by a pattern",
            )
        self._seen[identity] = folder
        names = {entry.name for entry in entries}
        inside = os.listdir(self._root / folder / "metadata") if (self._root / folder / "metadata").is_dir() else []
        refuse_tables(self._root / folder, names, inside)
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not is_data(entry.name, underscore=self._underscore):
                continue
            if entry.is_dir():
                yield from self.below(name, above | {identity})
            elif f"/{entry.name}".lower().endswith(self._endings):
                if not entry.is_file():
                    why = "a link to a file that does not exist" if entry.is_symlink() else "not a regular file"
                    raise SourceError(name, f"it is {why}", hint="Remove it, or name the files by a pattern")
                yield name


def refuse_tables(folder: object, names: Collection[str], metadata: Iterable[str] = ()) -> None:
    """Raise `UsageError` if the names in a folder, and in its folder `metadata`, are those of a table with a log."""
    kind = next((_TABLES[name] for name in _TABLES if name in names), None)
    if kind is None and "data" in names and any(name.endswith(".metadata.json") for name in metadata):
        kind = "Iceberg"
    if kind is not None:
        raise UsageError(
            f"{folder} is a table of {kind}: its log says which of the files are valid, and the others are still there;"
            f" {_READER[kind]}"
        )


def refuse_converted(root: Path, what: str) -> None:
    """Raise `UsageError` if a folder without files of this kind holds data sets of Brand."""
    found = sorted(path.parent.name for path in root.glob(f"*/{MANIFEST_NAME}"))
    if found:
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        raise UsageError(
            f"{root} holds no {what}, but data sets of Brand, which are converted already: {found[0]}{more}."
            f" BrandDataset({str(root / found[0])!r}) reads one; `brand append dataset` joins them"
        )
