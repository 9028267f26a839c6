"""How do the files next to the samples, `extras.zip` and `skipped.tsv`, of several segments become those of one?

Tables are joined, sorted, without repeated lines. Archives are joined, too. Files with one name and different contents,
such as the `metadata.csv` of each night, are all kept: the later ones become `metadata~2.csv`, `metadata~3.csv`.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from brand.errors import ChecksumError
from brand.formats.constants import EXTRAS_NAME, SKIPPED_NAME, most_unpacked
from brand.formats.index import companions_in
from brand.formats.manifest import Files
from brand.formats.publish import FolderTarget

_DATE: Final = (1980, 1, 1, 0, 0, 0)


def merge_companions(folders: Sequence[Path], target: FolderTarget, work: Path) -> Files:
    """Write the companions of the data sets in `folders` to `target`, and return their facts.

    `work` is a folder for unfinished files. Raises OSError, and `ChecksumError` if an archive has changed.
    """
    for name, join in ((EXTRAS_NAME, _join_archives), (SKIPPED_NAME, _join_tables)):
        old = [folder / name for folder in folders if (folder / name).exists()]
        if len(old) == 1:
            shutil.copyfile(old[0], work / "companion")
        elif old:
            join(old, work / "companion")
        if old:
            target.publish(work / "companion", name)
    return companions_in(target.folder)


def _join_tables(old: Sequence[Path], to: Path) -> None:
    tables = [path.read_bytes().splitlines(keepends=True) for path in old]
    lines = sorted({line for table in tables for line in table[1:]})
    to.write_bytes(b"".join([tables[0][0], *lines]))


def _join_archives(old: Sequence[Path], to: Path) -> None:
    """Join archives. Raises `ChecksumError` if one cannot be unpacked."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        with zipfile.ZipFile(to, "w", method) as archive:
            for path in old:
                try:
                    with zipfile.ZipFile(path) as source:
                        for info in source.infolist():
                            _add(archive, source, info, method)
                except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                    raise ChecksumError(f"the archive is damaged: {error}", path=path) from error
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked <= most_unpacked(to.stat().st_size):  # else a reader would refuse it
            return


def _add(archive: zipfile.ZipFile, source: zipfile.ZipFile, info: zipfile.ZipInfo, method: int) -> None:
    """Add a file or an empty folder under the first name that is free, unless an equal one is there."""
    path, number, name = PurePosixPath(info.filename), 1, info.filename
    while (known := _member(archive, name)) is not None:
        if (known.file_size, known.CRC) == (info.file_size, info.CRC):
            return
        number += 1
        name = str(path.with_name(f"{path.stem}~{number}{path.suffix}"))
    archive.writestr(zipfile.ZipInfo(name, _DATE), source.read(info), compress_type=method)


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo | None:
    with suppress(KeyError):
        return archive.getinfo(name)
    return None
