"""Which files of a source are its shards, and how is one read from its front, even if it is compressed?"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from brand.errors import SourceError, counted

BUFFER_BYTES: Final = 1 << 20
COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz")
_BRACES: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_OF_BRACES: Final = 1_000_000
_PACKED_BYTES: Final = 1 << 14
"""Bytes of a zstd frame that are unpacked in one call."""
_DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""The errors of the libraries, in addition to OSError, for compressed bytes that are damaged or truncated."""


@dataclass(frozen=True, slots=True)
class ImportFile:
    """One file of a source."""

    path: Path
    name: str
    """The path below the source, for messages."""
    bytes: int
    mark: str
    """Size and date."""


def find_files(src: str | os.PathLike[str], suffixes: Iterable[str], what: str) -> list[ImportFile]:
    """Return the files of a folder, of a pattern (`part-*.tar`, `part-{000..146}.tar`), or the one file, by name.

    In a folder, the files count whose names end with one of `suffixes`, also in subfolders, except hidden files. Raises
    `SourceError` if there are none.
    """
    text, endings = os.fspath(src), tuple(suffixes)
    root = Path(os.path.normpath(text))
    if root.is_dir():
        found = [path for path in sorted(root.rglob("*")) if path.name.endswith(endings) and path.is_file()]
        paths = [path for path in found if not _hidden(path.relative_to(root))]
        if not paths:
            raise SourceError(
                text, f"there is no {what} in this folder", hint=f"Their names end with {', '.join(endings)}"
            )
        return [_file(path, path.relative_to(root).as_posix()) for path in paths]
    if root.is_file():
        return [_file(root, root.name)]
    names = _matching(text)
    if not names:
        raise SourceError(text, "there is no such file or folder, and no file that matches it")
    return [_file(Path(name), Path(name).name) for name in names]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _file(path: Path, name: str) -> ImportFile:
    try:
        facts = path.stat()
    except OSError as error:
        raise SourceError(str(path), f"cannot be read: {error.strerror}") from error
    return ImportFile(path, name, facts.st_size, f"{facts.st_size} {facts.st_mtime_ns}")


def _matching(pattern: str) -> list[str]:
    """Return the files of a pattern. Every name to which the braces expand must exist."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return sorted(name for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    first, last, width = int(braces[1]), int(braces[2]), len(braces[1])
    if last - first >= _MOST_OF_BRACES:
        raise SourceError(pattern, f"the pattern names more than {_MOST_OF_BRACES:,} files")
    names = [f"{pattern[: braces.start()]}{n:0{width}d}{pattern[braces.end() :]}" for n in range(first, last + 1)]
    missing = [name for name in names if not glob.glob(name)]
    if missing:
        more = f", and {counted(len(missing) - 1, 'other')} of {pattern}" if len(missing) > 1 else ""
        raise SourceError(missing[0], f"there is no such file{more}")
    return [found for name in names for found in sorted(glob.glob(name))]


@contextmanager
def reading(path: Path, name: str, *, packed: str | None = None) -> Iterator[BinaryIO]:
    """Open a file from its front, decompressed if its name, or `packed`, is that of a compressed file.

    An error inside of the block becomes a `SourceError` that names the file.
    """
    try:
        suffix = path.suffix if packed is None else packed
        with path.open("rb", buffering=BUFFER_BYTES) as file, _unpacked(suffix, file) as stream:
            yield stream
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise SourceError(name, f"its compressed bytes are damaged or truncated: {error}") from error


def _unpacked(suffix: str, file: BinaryIO) -> AbstractContextManager[Any]:
    if suffix in (".gz", ".tgz"):
        return gzip.open(file)
    if suffix == ".bz2":
        return bz2.open(file)
    if suffix == ".xz":
        return lzma.open(file)
    return io.BufferedReader(_Zstd(file), BUFFER_BYTES) if suffix == ".zst" else nullcontext(file)


class _Zstd(io.RawIOBase):
    """The contents of zstd frames. Raises EOFError if the last one is truncated; the library only ends there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None
        self._packed = b""
        self._contents = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there is data; return the number of bytes, 0 at the end."""
        while not self._contents:
            packed = self._packed or self._file.read(_PACKED_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is not complete")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._contents, self._packed = memoryview(self._frame.decompress(packed)), b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._contents))
        buffer[:count] = self._contents[:count]
        self._contents = self._contents[count:]
        return count
