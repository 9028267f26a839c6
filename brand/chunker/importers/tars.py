"""The files of a tar archive in order, read quickly from its front, so that damage is never taken for its end.

An archive is a row of blocks of 512 bytes. Each file has a header (ustar, GNU or the older v7), then its contents in
whole blocks. A header before it may hold a long name (GNU) or records such as `path` and `size` (pax). Blocks of zeros
end an archive; another one may follow.

Python's library spends most of its time on headers, takes a missing end for an end, and skips a header that it cannot
read. Here `_Walk` steps from header to header through a stretch that was read at once, and compares all their checksums
together before any file is returned. Any deviation from the format is an error, and so are sparse files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np

from brand.errors import SourceError
from brand.formats.constants import MAX_SAMPLE
from brand.formats.record import windows

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_STRETCH: Final = 1 << 20
"""Bytes that are read at once."""
_MOST_TOLD: Final = 1 << 20
"""The most bytes of a header before a header."""
_CHECKSUM: Final = slice(148, 156)
_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"
_LONG_NAME, _LONG_LINK, _FOR_ALL = b"L", b"K", b"g"
_BEFORE: Final = (_LONG_NAME, _LONG_LINK, _FOR_ALL, b"x", b"X")
"""Types of headers that describe the next header."""
_DAMAGED: Final = "a header in it is damaged"


def members(stream: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files, in order; also of archives that follow one another.

    Raises `SourceError` if the archive is damaged.
    """
    try:
        yield from _files(stream)
    except ValueError as error:
        raise SourceError(name, str(error)) from None


def _files(stream: BinaryIO) -> Iterator[tuple[str, bytes]]:
    walk, data = _Walk(), b""
    while True:
        for name, begin, end in walk.over(data):
            yield name, data[begin:end]
        if not (more := _read(stream, max(_STRETCH, walk.missing))):
            walk.end(data)
            return
        data = data[walk.at :] + more


def _read(stream: BinaryIO, size: int) -> bytes:
    """Return `size` bytes, or those that are left. A size in a header costs no memory before the bytes are there."""
    pieces = []
    while size > 0 and (piece := stream.read(min(size, _STRETCH))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


class _Walk:
    """Steps from header to header through the stretches of one file."""

    def __init__(self) -> None:
        self.at = 0
        """Offset in the last stretch of the first block that has not been used."""
        self.missing = 0
        """Bytes that are missing of the file that begins there."""
        self._within = ""  # the name of that file
        self._ended = False
        """Whether the last block marked the end of an archive."""
        self._told: dict[str, str] | None = None
        """Facts from headers before the next one: `path`, `size`. None if there are none."""

    def __repr__(self) -> str:
        return f"_Walk(at {self.at}, {self.missing} bytes missing, told {self._told})"

    def over(self, data: bytes) -> list[tuple[str, int, int]]:
        """Return the files that are wholly in a stretch: names, begins and ends of the contents. Raises ValueError."""
        spans, heads = list[tuple[str, int, int]](), list[int]()
        self.at = self.missing = 0
        while self.at + _BLOCK <= len(data):
            head = self.at
            if not data[head] and data[head : head + _BLOCK] == _ZEROS:
                if self._told is not None:
                    raise ValueError(f"{_DAMAGED}: the header that follows it is missing")
                self.at, self._ended = self.at + _BLOCK, True
                continue
            heads.append(head)
            kind, told, begin = data[head + 156 : head + 157], self._told or {}, head + _BLOCK
            name = told.get("path") or _name(data, head)
            end = begin + (_size(data, head, kind, told) if kind in _FILES or kind in _BEFORE else 0)
            after = end + (begin - end) % _BLOCK
            if after > len(data):
                self.missing, self._within = after - len(data), name
                break
            self.at, self._ended = after, False
            if kind in _BEFORE:
                self._hear(kind, data[begin:end])
                continue
            self._told = None
            if kind in _FILES and not (kind == b"\0" and name.endswith("/")):  # v7 has no type for folders
                spans.append((name, begin, end))
            elif kind not in (*_FILES, _FOLDER):
                _check(data, heads)
                raise ValueError(f"{name!r} is a link, a sparse or a special file, and only files can be samples")
        _check(data, heads)
        return spans

    def end(self, data: bytes) -> None:
        """Check that nothing is missing after the last stretch. Raises ValueError if the archive is not at its end."""
        if self.missing:
            raise ValueError(f"it is truncated within {self._within!r}")
        if self.at < len(data):
            raise ValueError(f"{_DAMAGED}: it is truncated")
        if self._told is not None or not self._ended:
            raise ValueError("it ends without the mark of its end: it is truncated")

    def _hear(self, kind: bytes, data: bytes) -> None:
        """Read a header before a header. If several state the same thing, the first one is right."""
        told = dict[str, str]()
        if kind == _LONG_NAME:
            told = {"path": _text(data)}
        elif kind != _LONG_LINK:
            told = {key: value for key, value in _pax(data) if key in ("path", "size") or key.startswith("GNU.sparse")}
            if any(key.startswith("GNU.sparse") for key in told):
                raise ValueError("it holds a sparse file, and only whole files can be samples")
            if told and kind == _FOR_ALL:
                raise ValueError(f"{_DAMAGED}: it sets the {next(iter(told))} of all files")
        self._told = told | (self._told or {})


def _check(data: bytes, heads: list[int]) -> None:
    """Compare the checksums of headers: sums of their bytes, which old programs took for signed ones."""
    if not heads:
        return
    blocks = windows(np.frombuffer(data, np.uint8), _BLOCK)[np.array(heads)].view(np.uint8).reshape(len(heads), _BLOCK)
    told = np.array([_octal(block[_CHECKSUM].tobytes()) for block in blocks])
    blocks[:, _CHECKSUM] = ord(" ")
    sums, signed = (blocks.view(kind).sum(axis=1, dtype=np.int64) for kind in (np.uint8, np.int8))
    if not np.all((sums == told) | (signed == told)):
        raise ValueError(f"{_DAMAGED}: its checksum differs")


def _name(data: bytes, head: int) -> str:
    """Return the name in a header.

    The space that holds the front of a long name in `ustar` has another use in GNU's headers.
    """
    name = _text(data[head : head + 100])
    has_front = data[head + 345] and data[head + 257 : head + 263] == b"ustar\0"
    return f"{_text(data[head + 345 : head + 500])}/{name}" if has_front else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _size(data: bytes, head: int, kind: bytes, told: dict[str, str]) -> int:
    """Return the number of bytes that follow a header."""
    field = data[head + 124 : head + 136]
    if kind not in _BEFORE and "size" in told:
        size = _whole(told["size"].encode("utf-8", "surrogateescape"), 10)
    else:  # GNU gives a large number itself, in place of its digits
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    most = _MOST_TOLD if kind in _BEFORE else MAX_SAMPLE
    if size > most:
        raise ValueError(f"{_DAMAGED}: {size:,} bytes follow it, and the limit is {most:,}")
    return size


def _octal(field: bytes) -> int:
    return _whole(field.partition(b"\0")[0].strip(b" ") or b"0", 8)


def _whole(digits: bytes, base: int) -> int:
    try:
        return int(digits if digits.isdigit() else b"", base)
    except ValueError:
        raise ValueError(f"{_DAMAGED}: it has {digits[:20]!r} for a number") from None


def _pax(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the records of a pax header: `LENGTH KEY=VALUE` and a line feed; the length counts all of it."""
    at = 0
    while at < len(data):
        digits = data[at : at + 10].partition(b" ")[0]
        end = at + _whole(digits, 10)
        key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or not key or end > len(data) or data[end - 1 : end] != b"\n":
            raise ValueError(f"{_DAMAGED}: a record of it is malformed")
        yield _text(key), value.decode("utf-8", "surrogateescape")
        at = end
