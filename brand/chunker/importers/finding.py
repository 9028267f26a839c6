"""The files of a source in a store or in a zip, of a folder or of a pattern: `s3://bucket/{000..146}.tar`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Final

from brand.chunker.importers.walk import refuse_tables
from brand.chunker.sources.objects import (
    LINES,
    WITHOUT_LISTS,
    ObjectPath,
    SourcePath,
    entries_below,
    faults_below,
    is_zip,
    source_path,
    store_of,
)
from brand.errors import SourceError, UsageError, counted
from brand.printable import printable

_PATTERN: Final = re.compile(r"[*[{]")
"""Marks of a pattern. `?` begins a query of a URL, which may be a secret, and is refused."""


def is_pattern(src: str) -> bool:
    """Return whether a URL has the marks of a pattern."""
    return _PATTERN.search(src) is not None


def place_of(src: str) -> SourcePath:
    """Return the folder or file that a source names; of a pattern, the folder before its first mark.

    Raises `UsageError`, `SourceError`.
    """
    # Braces and the like are no characters of a URL, so the part before them is parsed alone.
    mark = _PATTERN.search(src)
    return source_path(src if mark is None else src[: mark.start()].rpartition("/")[0] or ".")


def folders_with(root: SourcePath, name: str) -> list[str]:
    """Return the folders below a source that hold a file of this name, sorted. Raises `SourceError`, `UsageError`."""
    if isinstance(root, Path):
        return sorted(path.parent.relative_to(root).as_posix() for path in root.glob(f"**/{name}"))
    try:
        found = [path.path.parent for path in _listed(root) if path.name == name]
    except OSError as error:
        raise SourceError(str(root), f"cannot be listed: {error.strerror}") from error
    return sorted(path.relative_to(root.path).as_posix() for path in found)


def find_objects(
    src: str, place: ObjectPath, endings: Sequence[str], what: str, expand: Callable[[str], list[str]]
) -> list[ObjectPath]:
    """Return the objects of a folder, of a pattern, or the one object, by name, as `find_files` does for files.

    `place` is `place_of(src)`, and `expand` returns the names to which braces expand. Raises `SourceError`,
    `UsageError`.
    """
    try:
        if is_pattern(src):
            return _matching(src, place, expand)
        if place.name.endswith(tuple(endings)) and place.is_file():
            return [place]
        found = sorted(_listed(place, endings), key=lambda path: path.path.parts)
    except OSError as error:
        raise SourceError(src, f"cannot be listed: {error.strerror}") from error
    refuse_tables(src, {part for path in found for part in path.path.parts})
    paths = [path for path in found if path.name.lower().endswith(tuple(endings)) and not _hidden(path, place)]
    if not paths:
        raise SourceError(src, f"there is no {what} in this folder", hint=f"Their names end with {', '.join(endings)}")
    return paths


def _matching(src: str, folder: ObjectPath, expand: Callable[[str], list[str]]) -> list[ObjectPath]:
    before = src[: _PATTERN.search(src).start()].rpartition("/")[0]  # type: ignore[union-attr]
    names = [name[len(folder.root) + 1 :] for name in expand(f"{folder}{src[len(before) :]}")]
    exact = [name for name in names if not _PATTERN.search(name)]
    if folder.root.startswith(WITHOUT_LISTS) and not is_zip(folder.root):
        if len(exact) < len(names):
            raise UsageError(f"{src}: a web server does not list files: name them, as '{folder}/part-{{000..146}}.tar'")
        with ThreadPoolExecutor(LINES) as pool:
            return list(pool.map(lambda name: _entry(folder.root, name), exact))
    there = {str(path.path): path for path in _listed(folder)}
    missing = [name for name in names if not any(fnmatch.fnmatchcase(other, name) for other in there)]
    if missing and len(names) > 1:
        more = f", and {counted(len(missing) - 1, 'other')} of {src}" if len(missing) > 1 else ""
        raise SourceError(f"{folder.root}/{missing[0]}", f"there is no such object{more}")
    if missing:
        raise SourceError(src, "there is no object that matches it")
    return [there[found] for name in names for found in sorted(fnmatch.filter(there, name))]


def _entry(root: str, name: str) -> ObjectPath:
    return ObjectPath(root, PurePosixPath(name), store_of(root).entry(name))


def _listed(folder: ObjectPath, endings: Sequence[str] = ()) -> Iterator[ObjectPath]:
    """Yield the objects below a folder. Raises OSError, `UsageError`, `SourceError`.

    A file of a zip that cannot be read, and whose name ends with one of `endings`, is an error.
    """
    for entry in entries_below(folder):
        yield ObjectPath(folder.root, PurePosixPath(entry.name), entry)
    for name, reason in faults_below(folder).items():
        if name.lower().endswith(tuple(endings)):
            raise SourceError(f"{folder.root}/{printable(name)}", reason)


def _hidden(path: ObjectPath, folder: ObjectPath) -> bool:
    return any(part.startswith(".") for part in path.path.relative_to(folder.path).parts)
