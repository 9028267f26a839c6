"""How is a converted folder restored, bit for bit? Each sample's file under its key, and all other files."""

from __future__ import annotations

import contextlib
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, cast

from brand.errors import (
    ChecksumError,
    DecodeError,
    FormatError,
    LayoutError,
    MissingFileError,
    OversizedError,
    TargetExistsError,
    UnreadableError,
    UsageError,
)
from brand.formats.constants import EXTRAS_METHODS, EXTRAS_NAME, most_unpacked
from brand.formats.contents import read_records
from brand.formats.publish import digest_of, storage_errors
from brand.formats.record import RecordDecoder
from brand.formats.version import check_target_name
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.frontback import OnChunk, blocks_of, file_of, front_to_back, silent
from brand.storage.io.fronts import open_chunk, opened
from brand.storage.io.location import Location, Where

_STEP_BYTES: Final = 1 << 20


def unpack(where: Where, out: Path, on_chunk: OnChunk = silent) -> int:
    """Write the source folder of a data set to `out`, which must be new or empty. Return the number of files written.

    Raises `UsageError` for a partition, for a collection and for a data set that was not made from a folder,
    `TargetExistsError`, `FormatError` if a sample is damaged (files that were written before remain), `StorageError`.
    """
    data_set = StoredDataSet(where)
    if (share := data_set.share) is not None:
        raise UsageError(
            f"{data_set.name} is partition {share.node} of {share.nodes} of a data set and holds only some of its"
            " files. Unpack the undivided data set"
        )
    if data_set.version is not None:
        raise UsageError(
            f"{data_set.name} is a collection, made from several folders. Unpack its segments one by one, the folders"
            f" in {data_set.path}/parts: each restores its folder, including the files of samples deleted since"
        )
    field = data_set.header.source.get("file_field")
    if not field:
        raise UsageError(
            f"{data_set.name} was not made from a folder of files: there are none to restore."
            " `brand cat` prints single samples, BrandDataset reads them"
        )
    check_target_name(out)
    if out.exists() and not out.is_dir():
        raise TargetExistsError(f"{out} exists and is not a folder. Choose another target, or remove it")
    if out.exists() and any(out.iterdir()):
        raise TargetExistsError(f"{out} exists and is not empty. Choose another target, or remove it")
    files = 0
    with storage_errors(out, "cannot write"):
        out.mkdir(parents=True, exist_ok=True)
        chunks = range(data_set.header.chunks)
        with front_to_back(data_set.location, chunks) as passing:
            for number in chunks:
                files += _chunk(data_set, passing, number, out, field)
                on_chunk(number + 1, len(chunks), files)
        if EXTRAS_NAME in data_set.manifest.companions:
            files += _extras(data_set.location, data_set.manifest.companions[EXTRAS_NAME], out)
    return files


def _chunk(data_set: StoredDataSet, location: Location, number: int, out: Path, field: str) -> int:
    front = open_chunk(location, number, data_set.manifest, data_set.chunk_rows[number])
    path = location.chunk_file(number)
    decode = RecordDecoder(data_set.header.schema, (field, "key"))
    with _named(path, number), opened(location, number) as file:
        for row, record in read_records(file, front, path):
            if isinstance(record, FormatError):
                raise record
            index = int(row["index"])
            try:
                values = decode(record)
            except ValueError as error:
                raise DecodeError(str(error), path=path, chunk=number, sample=index) from error
            target = _target(out, values["key"], path)
            with target.open("xb") as copy:
                copy.write(values[field])
    return len(front.rows)


def _extras(location: Location, expected: tuple[int, str], out: Path) -> int:
    files, archive_path = 0, file_of(location, EXTRAS_NAME)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_extras_file(location, expected, out))
        with _zip_errors(archive_path):
            found = digest_of(file)
            if found != expected:
                raise ChecksumError("the file has changed", path=archive_path, expected=expected[1], found=found[1])
            archive = stack.enter_context(zipfile.ZipFile(file))
        members = archive.infolist()
        most, claimed = most_unpacked(expected[0]), sum(info.file_size for info in members)
        if claimed > most:
            what, expected_bytes = "the file would unpack to more than its size allows", f"<= {most} bytes"
            raise OversizedError(what, path=archive_path, expected=expected_bytes, found=claimed)
        for info in members:
            target = _target(out, info.filename.rstrip("/"), archive_path)
            if info.is_dir():
                target.mkdir(exist_ok=True)
                continue
            with target.open("xb") as copy:
                _unpack_member(archive, info, archive_path, copy)
            files += 1
    return files


def _extras_file(location: Location, expected: tuple[int, str], out: Path) -> BinaryIO:
    """Return the extras as a file. From a store, they are copied to an unnamed file on the file system of `out`."""
    path = file_of(location, EXTRAS_NAME)
    with _named(path), contextlib.ExitStack() as unless_whole:
        if not location.in_store:
            return (location.local / EXTRAS_NAME).open("rb")
        copy = unless_whole.enter_context(tempfile.TemporaryFile(dir=out))
        for block in blocks_of(location, EXTRAS_NAME, expected[0]):
            copy.write(block)
        copy.seek(0)
        unless_whole.pop_all()
        return cast(BinaryIO, copy)


@contextlib.contextmanager
def _named(path: str | Path, chunk: int | None = None) -> Iterator[None]:
    """Turn an OSError of reading the file `path` into a `FormatError`. An OSError of writing is not changed."""
    try:
        yield
    except OSError as error:
        if error.filename != str(path):
            raise
        if isinstance(error, FileNotFoundError):
            what = "the file is missing; `brand verify` lists all faults"
            raise MissingFileError(what, path=path, chunk=chunk) from None
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, chunk=chunk) from error


def _unpack_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, archive_path: str | Path, copy: BinaryIO) -> None:
    """Write one file of the extras, a step at a time. Raises `LayoutError` if its length is wrong."""
    if info.compress_type not in EXTRAS_METHODS:  # other methods may need gigabytes of memory to unpack
        raise LayoutError(f"{info.filename!r} has a compression method that extras do not use", path=archive_path)
    size = 0
    with _zip_errors(archive_path):
        member = archive.open(info)
    with member:
        while True:
            with _zip_errors(archive_path):
                step = member.read(_STEP_BYTES)
            if not step:
                break
            size += len(step)
            copy.write(step)
    if size != info.file_size:
        what = f"{info.filename!r} has another length than the archive records"
        raise LayoutError(what, path=archive_path, expected=f"{info.file_size} bytes", found=size)


@contextlib.contextmanager
def _zip_errors(archive_path: str | Path) -> Iterator[None]:
    """Turn all errors of reading a damaged zip file into one error."""
    try:
        yield
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, struct.error) as error:
        raise LayoutError(f"not a readable zip file: {error}", path=archive_path) from error


def _target(out: Path, key: str, source: str | Path) -> Path:
    """Return the path of a key's file, and make its folder. Raises `LayoutError` for a key that would leave `out`."""
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or any(part in ("..", ".") for part in parts) or "\0" in key:
        raise LayoutError(
            "a key that is not a path below the folder", path=source, expected="relative path", found=repr(key)
        )
    target = out.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
