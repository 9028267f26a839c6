"""Which files of a source are its shards, and how is one read from its front, even if it is compressed?

MDS and LitData store samples after a table of offsets (`at_offsets`), with columns of bytes whose contents the index
does not declare (`settled`), and raw pixels.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import zstandard

from brand.chunker.importers.finding import find_objects, is_pattern, place_of
from brand.chunker.importers.natural import LOOKED_AT, codec_of_bytes
from brand.chunker.importers.walk import files_below, is_data, refuse_converted
from brand.chunker.sources.card import CardFiles, declared, has_configs, of_card, read_card
from brand.chunker.sources.objects import ObjectFacts, ObjectPath, SourcePath, entries_below
from brand.chunker.sources.splits import ALL, choose, chosen, is_partition, labels_of
from brand.errors import BrandError, SourceError, UsageError, cause_of, counted
from brand.formats.constants import MAX_SAMPLE
from brand.formats.media import HEAD_BYTES
from brand.printable import printable

BUFFER_BYTES: Final = 1 << 20
LARGE_FILE: Final = 4 << 20
"""From this size on, numpy asks for large pages of memory."""
_PIECE_BYTES: Final = 4 << 20
COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz")
_UNPACKED: Final = (*COMPRESSED, ".tgz")
_BRACES: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_OF_BRACES: Final = 1_000_000
_PACKED_BYTES: Final = 1 << 14
"""Bytes of a zstd frame that are unpacked in one call."""

_U32: Final = struct.Struct("<I")
_PIXELS: Final = struct.Struct("<III")
_LONGEST_MODE: Final = 16


@dataclass(frozen=True, slots=True)
class ImportFile:
    """One file of a source."""

    path: SourcePath
    name: str
    """The path below the source, for messages."""
    bytes: int
    mark: str
    """Size and date; for an object, its size and version."""
    told: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Entries of the configuration in the card of a Hub data set, such as `sep`,"""
    types: Mapping[str, str] = field(default_factory=dict, compare=False)
    """and the types that it declares: column -> codec (`card.declared`)."""


def with_compressed(*suffixes: str) -> list[str]:
    """Return the endings of files, also of compressed ones."""
    return [*suffixes, *(suffix + ending for suffix in suffixes for ending in COMPRESSED)]


def find_files(
    src: str | os.PathLike[str],
    suffixes: Iterable[str],
    what: str,
    split: str | None = None,
    *,
    tables: bool = False,
    takes: Iterable[str] = (),
) -> list[ImportFile]:
    """Return the files of a folder, of a pattern (`part-*.tar`, `part-{000..146}.tar`), or the one file, by name.

    In a folder, the files count whose names end with one of `suffixes`, also in subfolders; `walk` says which do not.
    `split` chooses among the splits and configurations that the card of a Hub data set names (`card`), or else the
    names of files and folders. `tables` is whether the files are tables: then folders `column=value` are columns of
    theirs, and names that begin with `_` are no data. `takes` are entries of a card that the caller follows.

    Raises:
        SourceError: There are no such files, or one cannot be read.
        UsageError: The folder holds several splits or configurations, or not the one that was asked for.
    """
    text, endings = os.fspath(src), tuple(suffixes)
    if isinstance(place := place_of(text), ObjectPath):
        return _objects(text, place, endings, what, split, tables=tables, takes=takes)
    root = Path(os.path.normpath(text))
    if root.is_dir():
        names = files_below(root, endings, underscore=not tables)
        if not names:
            refuse_converted(root, what)
            hint = f"Their names end with {', '.join(endings)}" + (", and begin with no _" if tables else "")
            raise SourceError(text, f"there is no {what} in this folder", hint=hint)
        card = _card(root, split)
        part = of_source(text, card, names, lambda: files_below(root, ("",)), endings, split, takes)
        if not tables:
            _refuse_partitions(text, part.names)
        return [replace(_file(root / name, name), told=part.told, types=part.types) for name in part.names]
    if split not in (None, ALL):
        raise UsageError(f"--split chooses among the files of a folder, and {text} is not a folder: leave --split out")
    if root.is_file():
        return [_file(root, root.name)]
    found = _matching(text)
    if not found:
        raise SourceError(text, "there is no such file or folder, and no file that matches it")
    return [_file(Path(name), Path(name).name) for name in found]


def _objects(
    src: str,
    place: ObjectPath,
    endings: tuple[str, ...],
    what: str,
    split: str | None,
    *,
    tables: bool,
    takes: Iterable[str],
) -> list[ImportFile]:
    """Return the files of a source in a store or in a zip, as `find_files` does."""
    found, folder = find_objects(src, place, endings, what, _expanded), place.path
    if is_pattern(src) or found == [place]:
        if split not in (None, ALL):
            raise UsageError(f"--split chooses among the files of a folder, and {src} names files: leave --split out")
        return [_file(path, path.name) for path in found]
    paths = {path.path.relative_to(folder).as_posix(): path for path in found}
    names = [name for name in paths if all(is_data(part, underscore=not tables) for part in name.split("/"))]
    if not names:
        raise SourceError(src, f"there is no {what} in this folder", hint=f"Their names end with {', '.join(endings)}")
    every = partial(_names_below, place)
    part = of_source(src, _card(place, split), names, every, endings, split, takes)
    if not tables:
        _refuse_partitions(src, part.names)
    return [
        replace(_file(paths.get(name, place / name), name), told=part.told, types=part.types) for name in part.names
    ]


def _names_below(place: ObjectPath) -> list[str]:
    begin = len(f"{place.path}/") if place.path.parts else 0
    return [entry.name[begin:] for entry in entries_below(place)]


def _card(root: SourcePath, split: str | None) -> tuple[str, str]:
    """Return the card of a folder; an empty one if all files are taken. Raises `SourceError`."""
    try:
        return ("", "") if split == ALL else read_card(root)
    except OSError as error:
        raise SourceError(str(root), f"its README.md cannot be read: {error.strerror}") from error


def of_source(
    source: str,
    card: tuple[str, str],
    names: Sequence[str],
    every: Callable[[], Sequence[str]],
    endings: Sequence[str],
    split: str | None,
    takes: Iterable[str] = (),
) -> CardFiles:
    """Return the files of one split: as the card says, or else the names of the files.

    `names` are the files with one of `endings`, and `every` returns all. Raises `UsageError` as `find_files` does.
    """
    part = of_card(source, card, every() if has_configs(card) else (), endings, split, takes)
    return part or CardFiles(of_split(source, names, endings, split), {}, declared(card, None))


def of_split(source: str, names: Sequence[str], endings: Sequence[str], split: str | None) -> list[str]:
    """Return the files of one split; `names` are paths below the source. Raises `UsageError` as `find_files` does."""
    labels = labels_of(names, endings)
    return [name for name, taken in zip(names, chosen(source, labels, split), strict=True) if taken]


def indexed_folder(root: SourcePath, split: str | None) -> SourcePath:
    """Return the folder whose `index.json` lists the shards: `root`, or the one of a split below it.

    Raises `UsageError` if there are several splits, or not the one that was asked for.
    """
    if not isinstance(root, Path):
        return root if split in (None, ALL) else root / str(split)
    if (root / "index.json").exists() or not root.is_dir():
        if split not in (None, ALL):
            raise UsageError(f"{root} has an index.json, which lists all its shards: leave --split out")
        return root
    found = [name.rpartition("/")[0] for name in files_below(root, ("/index.json",))]
    if not found:
        return root
    if split == ALL:
        raise UsageError(f"{root} has no index.json that lists all shards: convert {', '.join(found)} one by one")
    return root / choose(str(root), dict.fromkeys(found, 1), split, "folder")


def _refuse_partitions(source: str, names: Iterable[str]) -> None:
    for name in names:
        column = next((part for part in name.split("/")[:-1] if is_partition(part)), None)
        if column is not None:
            raise UsageError(
                f"{source} has the folder {printable(column)}: the column {printable(column.partition('=')[0])!r} would"
                " be lost, which only Parquet files get from the names of folders. Name the files by a pattern to leave"
                f" it out: '{printable(source.rstrip('/'))}/**/*{''.join(Path(name).suffixes[-1:])}'"
            )


def listed_file(root: SourcePath, name: str, index: str = "index.json") -> ImportFile:
    """Return a file that the index of a folder names. Raises `SourceError`, ValueError if it is outside the folder."""
    try:
        return _file_at(below(root, name), name)
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror}; {index} lists it") from error


def _file(path: SourcePath, name: str) -> ImportFile:
    try:
        return _file_at(path, name)
    except OSError as error:
        raise SourceError(str(path), f"cannot be read: {error.strerror}") from error


def _file_at(path: SourcePath, name: str) -> ImportFile:
    facts = path.stat()
    if isinstance(facts, ObjectFacts):
        return ImportFile(path, name, facts.st_size, facts.mark)
    return ImportFile(path, name, facts.st_size, f"{facts.st_size} {facts.st_mtime_ns}")


def _matching(pattern: str) -> list[str]:
    """Return the files of a pattern. Every name to which the braces expand must exist."""
    if _BRACES.search(pattern) is None:
        found = sorted(_whole(name) for name in glob.glob(pattern, recursive=True) if not Path(name).is_dir())
        return _once(found) if "**" in pattern else found
    names = _expanded(pattern)
    missing = [name for name in names if not glob.glob(name)]
    if missing:
        more = f", and {counted(len(missing) - 1, 'other')} of {pattern}" if len(missing) > 1 else ""
        raise SourceError(missing[0], f"there is no such file{more}")
    return [_whole(found) for name in names for found in sorted(glob.glob(name))]


def _once(names: Iterable[str]) -> list[str]:
    """Return the names without further ones of a file that links to a folder above it give."""
    paths = [Path(name) for name in names]
    real = {folder: folder.resolve() for folder in {path.parent for path in paths}}
    return list({(real[path.parent], path.name): str(path) for path in reversed(paths)}.values())[::-1]


def _whole(name: str) -> str:
    """Return the name of a file. Raises `SourceError` if it is a link to a file that does not exist."""
    if not Path(name).exists():
        raise SourceError(name, "it is a link to a file that does not exist")
    return name


def _expanded(pattern: str) -> list[str]:
    """Return the names to which the braces of a pattern expand: the pattern itself, if it has none."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last, width = int(braces[1]), int(braces[2]), len(braces[1])
    if last - first >= _MOST_OF_BRACES:
        raise SourceError(pattern, f"the pattern names more than {_MOST_OF_BRACES:,} files")
    return [f"{pattern[: braces.start()]}{n:0{width}d}{pattern[braces.end() :]}" for n in range(first, last + 1)]


@contextmanager
def reading(path: SourcePath, name: str, *, packed: str | None = None) -> Iterator[BinaryIO]:
    """Open a file from its front, decompressed if its name, or `packed`, is that of a compressed file.

    An error inside of the block becomes a `SourceError` that names the file.
    """
    suffix = path.suffix if packed is None else packed
    try:
        with path.open("rb", buffering=BUFFER_BYTES) as file, unpacked(suffix, file) as stream:
            yield stream
    except BrandError:
        raise
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror or cause_of(error)}") from error
    except Exception as error:
        what = "its compressed bytes are damaged or truncated" if suffix in _UNPACKED else "cannot be read"
        raise SourceError(name, f"{what}: {cause_of(error)}") from error


def unpacked(suffix: str, file: BinaryIO) -> AbstractContextManager[Any]:
    """Return the stream of the decompressed contents of a file, as its name ends in `suffix`."""
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


def below(root: SourcePath, name: str) -> SourcePath:
    """Return the path of a file that an index names. Raises ValueError if it would be outside the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"it names the file {name!r}, which is not in the folder")
    return root / name


def settled(codecs: Mapping[str, str], rows: Iterator[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return columns and their codecs. For a column of `?`, the first rows decide: images, audio or other bytes.

    No row is read if there is no such column.
    """
    heads: dict[str, list[bytes | None]] = {name: [] for name, codec in codecs.items() if codec == "?"}
    for row in islice(rows, LOOKED_AT) if heads else ():
        for name, seen in heads.items():
            seen.append(bytes(row[name][:HEAD_BYTES]))  # the values may be large
    return [(name, codec_of_bytes(heads[name]) if name in heads else codec) for name, codec in codecs.items()]


def at_offsets(file: BinaryIO, samples: int, size: int | None) -> Iterator[bytes | memoryview]:
    """Yield the samples of a file that begins with their number and offsets, each u32; read from front to back.

    Large samples are views of memory. `size` is that of the whole file, if it is known. Raises EOFError if the file
    ends too early, or if its table of offsets contradicts it.
    """
    (found,) = _U32.unpack(_exactly(file, _U32.size))
    if found != samples:
        raise EOFError(f"it states {counted(found, 'sample')}, and the index {samples:,}")
    offsets = np.frombuffer(_exactly(file, 4 * (samples + 1)), "<u4").astype(np.int64)
    at = 4 * (samples + 2)
    ends = int(offsets[-1]) if size is None else size
    if int(offsets[0]) < at or (np.diff(offsets) < 0).any() or int(offsets[-1]) != ends:
        raise EOFError("the offsets of its samples contradict each other, or its size")
    _exactly(file, int(offsets[0]) - at)
    for length in np.diff(offsets).tolist():
        yield _exactly(file, length) if not LARGE_FILE <= length <= MAX_SAMPLE else read_large(file, length)


def _exactly(file: BinaryIO, size: int) -> bytes:
    if size > MAX_SAMPLE:
        raise EOFError(f"a sample of {size:,} bytes; the limit is {MAX_SAMPLE:,}")
    data = file.read(size)
    if len(data) != size:
        raise EOFError("it is truncated")
    return data


def read_large(file: BinaryIO, size: int, begun: bytes = b"") -> memoryview:
    """Return `size` bytes, of which the first ones, `begun`, are read already. Raises EOFError if the file ends before.

    They are in memory of numpy, which asks for large pages: bytes take five times as long to fill. A damaged size costs
    no memory, because the memory is filled piece by piece.
    """
    memory, done = np.empty(size, np.uint8).data, len(begun)
    memory[:done] = begun
    while done < size:
        if not (count := file.readinto(memory[done : done + _PIECE_BYTES])):  # type: ignore[attr-defined]
            raise EOFError("it is truncated")
        done += count
    return memory


def scalar(dtype: np.dtype[Any], data: bytes) -> Any:
    """Return a number. Raises ValueError if it has another size."""
    (value,) = np.frombuffer(data, dtype)
    return value.item()


def pixels(data: bytes) -> Any:
    """Return a Pillow image from width, height, length of the mode (u32 each), mode and pixels.

    Raises ValueError if they do not fit together.
    """
    from PIL import Image

    width, height, length = _PIXELS.unpack_from(data)
    start = _PIXELS.size + length
    if length > _LONGEST_MODE or width * height > len(data) * 8:
        raise ValueError(f"no image of {width} x {height} pixels")
    return Image.frombytes(data[_PIXELS.size : start].decode(), (width, height), data[start:])


@contextmanager
def index_errors(path: SourcePath, what: str) -> Iterator[None]:
    """Turn an error into a `SourceError`: `path`, which lists the files of a folder, cannot be read, or is invalid."""
    try:
        yield
    except BrandError:
        raise
    except FileNotFoundError as error:
        if not path.parent.exists():
            raise SourceError(str(path.parent), "there is no such folder") from error
        raise SourceError(str(path), "there is no such file; it lists the files of the folder") from error
    except NotADirectoryError as error:
        raise SourceError(str(path.parent), f"it is a file, not a folder of {what}") from error
    except OSError as error:
        raise SourceError(str(path), f"it cannot be read: {cause_of(error)}") from error
    except Exception as error:  # the index may hold anything in place of what is read from it
        raise SourceError(str(path), f"it is not an index of {what}: {cause_of(error)}") from error
