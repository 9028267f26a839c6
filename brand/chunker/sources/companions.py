"""Files next to the samples: `skipped.tsv` lists files that were left out, `extras.zip` completes the source folder.

`extras.zip` holds the transcripts (tables and sidecars) and the empty folders of the source; `brand unpack` restores
them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from brand.chunker.plan.report import Problem
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.source import FolderSource
from brand.formats.constants import EXTRAS_NAME, SKIPPED_NAME, most_unpacked
from brand.formats.publish import storage_errors

_DATE = (1980, 1, 1, 0, 0, 0)  # so that every run writes equal bytes


def write_skipped(into: Path, problems: Iterable[Problem]) -> str | None:
    """Write `skipped.tsv` into a folder: one line for each file that was left out, sorted by path.

    Returns its name, or None if no file was left out.

    Paths are escaped, so a tab or a line break in a name does not break the table.
    """
    rows = sorted((p.path, p.reason) for p in problems)
    if not rows:
        return None
    lines = ["path\treason", *map("\t".join, rows)]
    with storage_errors(into, "cannot write"):
        (into / SKIPPED_NAME).write_bytes(("\n".join(lines) + "\n").encode())
    return SKIPPED_NAME


def write_extras(into: Path, folder: ScannedFolder, source: FolderSource, table: Path | None) -> str | None:
    """Write `extras.zip` into a folder. Returns its name, or None if there is nothing to put into it."""
    names = []
    if table is not None and table.resolve().is_relative_to(folder.root.resolve()):
        names.append(table.resolve().relative_to(folder.root.resolve()).as_posix())
    empty = [f"{name}/" for name in sorted(folder.empty_folders)]
    if not names and not empty and not source.listing.entries["sidecar"].any():
        return None
    path = into / EXTRAS_NAME
    with storage_errors(path, "cannot write"):
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            with zipfile.ZipFile(path, "w", method) as archive:
                for name in empty:
                    archive.writestr(zipfile.ZipInfo(name, _DATE), b"")
                for name in (*names, *source.all_sidecars()):
                    _store(archive, folder.root, name, method)
                unpacked = sum(info.file_size for info in archive.infolist())
            if unpacked <= most_unpacked(path.stat().st_size):
                break
    return EXTRAS_NAME


def _store(archive: zipfile.ZipFile, root: Path, name: str, method: int) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = method
    archive.writestr(info, (root / name).read_bytes())
