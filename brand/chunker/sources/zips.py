"""The files of a zip, in any order: a `Store` that can only be read, and that no URL of a data set names.

The directory at the end of the zip is read once. A file is then one range of the zip, which holds its header and its
contents; size and CRC-32 are compared with those of the directory. `folders` has the folders that the zip names, and
`faults` the files that cannot be read, with the reason.
"""

from __future__ import annotations

import errno
import io
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import BinaryIO, Final, NamedTuple, cast

import numpy as np

from brand.errors import SourceError, cause_of
from brand.stores.store import Entry

_HEADER: Final = struct.Struct("<4s22xHH")
_MAGIC: Final = b"PK\x03\x04"
_LONGEST: Final = 2 * 0xFFFF
"""Bytes that the name and the other facts in a header can have."""
_PIECE: Final = 1 << 20
_BUFFER: Final = 1 << 20
_ENCRYPTED: Final = 1
_UTF8: Final = 1 << 11
_DOS: Final = 0
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_NAMES: Final = {1: "shrink", 6: "implode", 9: "deflate64", 93: "zstd", 95: "xz", 98: "ppmd", 99: "AES"}
_UNZIP: Final = "unzip it, and convert the folder"
_FACTS: Final = np.dtype([("at", "<i8"), ("packed", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("method", "<u2")])


class _Member(NamedTuple):
    at: int
    """Position of its header."""
    packed: int
    size: int
    crc: int
    method: int


class ZipStore:
    """The files of one zip; see `Store` for its methods. Any number of threads may use it, and forked processes."""

    def __init__(self, name: str, file: Callable[[], BinaryIO], piece: Callable[[int, int], bytes]) -> None:
        """`file` opens the zip, and `piece` returns the bytes of a range (offset, size) of it.

        Raises OSError, and `SourceError` if it is not a zip.
        """
        self.name, self._file, self._piece = name, file, piece
        self.folders: set[str] = set()
        self.faults: dict[str, str] = {}
        """Name -> why the file cannot be read."""
        with file() as opened:
            found, self._end = _directory(name, opened)
        self._starts = np.sort(np.array([*(info.header_offset for info in found), self._end], np.int64))
        times, places = Counter(map(_name_of, found)), Counter(self._starts.tolist())
        self._index: dict[str, int] = {}
        members = list[_Member]()
        for info in found:
            member = _name_of(info)
            fault = _fault(info, member)
            if times[member] > 1:
                fault = fault or "the zip holds several files of this name"
            begin, end = info.header_offset, info.header_offset + _HEADER.size + info.compress_size
            if not 0 <= begin < end <= self._after(begin) or places[begin] > 1:
                fault = fault or "its place in the zip is that of another file, or outside: the zip is damaged"
            if info.is_dir() or member.endswith("/"):
                if _is_below(member):
                    self.folders.add(member.rstrip("/"))
            elif fault:
                self.faults[member] = fault
            else:
                self._index[member] = len(members)
                members.append(_member_of(info))
        self._members = np.array(members, _FACTS)

    def __repr__(self) -> str:
        return f"ZipStore({self.name}, {len(self._index):,} files)"

    def entries(self, folder: str) -> Iterator[Entry]:
        """See `Store`. The mark is the checksum of the contents."""
        for name in self._index:
            if not folder or name.startswith(f"{folder}/"):
                yield self.entry(name)

    def entry(self, name: str) -> Entry:
        """See `Store`."""
        member = self._member(name)
        return Entry(name, member.size, f"{member.crc:08x}")

    def fetch(self, name: str, most: int) -> tuple[bytes, str]:
        """See `Store`. Sends one request."""
        member, url = self._member(name), f"{self.name}/{name}"
        if member.size > most:
            raise OSError(errno.EFBIG, f"it has {member.size:,} bytes, and at most {most:,} are read", url)
        size = min(self._after(member.at) - member.at, _HEADER.size + _LONGEST + member.packed)
        raw = memoryview(self._piece(member.at, size))
        with _reading(url), _opened(name, member, io.BytesIO(raw[_past_header(raw) :])) as contents:
            data = contents.read(member.size)
            if len(data) < member.size:
                raise EOFError("its contents end too early, or overlap those of another file")
        return data, f"{member.crc:08x}"

    def read(self, name: str, most: int) -> bytes:
        """See `Store`."""
        return self.fetch(name, most)[0]

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read from front to back; a jump back begins at the front. Raises OSError."""
        member, url = self._member(name), f"{self.name}/{name}"
        with ExitStack() as held, _reading(url):
            file = held.enter_context(self._file())
            file.seek(member.at)
            header = file.read(_HEADER.size)
            file.seek(member.at + _past_header(memoryview(header)))
            held.pop_all()
        contents = _Unpacked(url, _opened(name, member, file))
        return cast(BinaryIO, io.BufferedReader(contents, _BUFFER))

    def open_unpacked(self, name: str) -> BinaryIO:
        """Return a copy of a file on the disk of this machine, in which any jump is fast. Raises OSError."""
        copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
        with ExitStack() as held, self.open(name) as file:
            held.enter_context(copy)
            while data := file.read(_PIECE):
                copy.write(data)
            held.pop_all()
        return cast(BinaryIO, copy)

    def _after(self, place: int) -> int:
        """Return where the next file begins, or the directory; 0 behind that."""
        following = int(np.searchsorted(self._starts, place, "right"))
        return min(int(self._starts[following]), self._end) if following < len(self._starts) else 0

    def _member(self, name: str) -> _Member:
        url = f"{self.name}/{name}"
        if name in self.faults:
            raise OSError(errno.EIO, self.faults[name], url)
        if name not in self._index:
            raise FileNotFoundError(errno.ENOENT, "there is no such file in the zip", url)
        return _Member(*self._members[self._index[name]].tolist())


class _Unpacked(io.RawIOBase):
    """The contents of a file, with the errors of `_reading`."""

    def __init__(self, url: str, file: zipfile.ZipExtFile) -> None:
        self._url, self._file = url, file

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, and read what is before it."""
        with _reading(self._url):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as there are bytes; return their number, 0 at the end."""
        with _reading(self._url):
            data = self._file.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the zip."""
        self._file.close()
        super().close()


def _directory(name: str, file: BinaryIO) -> tuple[list[zipfile.ZipInfo], int]:
    """Return the files that a zip lists, and the end of their contents. Raises `SourceError`, OSError."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.infolist(), archive.start_dir
    except OSError:
        raise
    except Exception as error:
        what = "it is not a whole zip: its list of files, which is at the end, is missing or damaged"
        raise SourceError(name, f"{what}: {cause_of(error)}") from error


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return the path of a file; zipfile takes the bytes of a name for code page 437, unless they are marked."""
    name = info.filename
    if not info.flag_bits & _UTF8 and not name.isascii():
        with suppress(UnicodeEncodeError):  # newer versions of zipfile have found the name in Unicode already
            name = name.encode("cp437").decode("utf-8", "surrogateescape")
    if info.create_system == _DOS and "/" not in name:
        name = name.replace("\\", "/")
    while name.startswith("./"):
        name = name[2:]
    return name


def _member_of(info: zipfile.ZipInfo) -> _Member:
    return _Member(info.header_offset, info.compress_size, info.file_size, info.CRC, info.compress_type)


def _fault(info: zipfile.ZipInfo, name: str) -> str:
    """Return why a file of a zip cannot be read; an empty text if it can."""
    if any("\udc80" <= character <= "\udcff" for character in name):
        return "the name is not valid UTF-8: unzip the file with -O ENCODING, and convert the folder"
    if not _is_below(name):
        return "the name is not that of a file below the zip"
    if info.flag_bits & _ENCRYPTED:
        return f"it is encrypted: {_UNZIP}"
    if info.compress_type not in _METHODS:
        method = _NAMES.get(info.compress_type, f"method {info.compress_type}")
        return f"it is compressed with {method}, which Python does not read: {_UNZIP}"
    if stat.S_ISLNK(info.external_attr >> 16):
        return f"a symbolic link: {_UNZIP}"
    return ""


def _is_below(name: str) -> bool:
    return not any(part in ("", ".", "..") for part in name.rstrip("/").split("/"))


def _past_header(raw: memoryview) -> int:
    """Return the size of the header of a file at the begin of `raw`. Raises EOFError if there is none."""
    if len(raw) < _HEADER.size or (head := _HEADER.unpack_from(raw))[0] != _MAGIC:
        raise EOFError("its place in the zip holds something else: the zip is damaged, or was replaced")
    return _HEADER.size + int(head[1]) + int(head[2])


def _opened(name: str, member: _Member, file: BinaryIO) -> zipfile.ZipExtFile:
    """Return the contents of a file, which are checked while they are read."""
    info = SimpleNamespace(
        filename=name,
        compress_type=member.method,
        compress_size=member.packed,
        file_size=member.size,
        CRC=member.crc,
    )
    return zipfile.ZipExtFile(file, "r", cast(zipfile.ZipInfo, info), close_fileobj=True)


@contextmanager
def _reading(url: str) -> Iterator[None]:
    """Turn the errors of damaged files into OSErrors that name the file."""
    try:
        yield
    except Exception as error:  # the libraries of the compressions raise many kinds
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.EIO, f"its bytes in the zip are damaged: {cause_of(error)}", url) from error
