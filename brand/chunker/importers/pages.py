"""Large pages of Parquet files, value by value. Arrow decompresses a page as a whole, whatever its size.

PyArrow and pandas write up to 1,024 values into a page: a row group of 900 images of 2 MB has one page of 1.8 GB, and
Arrow takes twice that to read it. Here a page is decompressed piece by piece. It takes the memory of one value.

    column chunk   [dictionary page] data pages
    page           header (Thrift, compact protocol) | definition levels, values
    values         PLAIN: length (u32) and bytes of each; or indices into the dictionary page, whose values are PLAIN

`is_readable` says whether a column chunk is read here: values of bytes or text that are not in lists, and indices that
do not decrease, as a writer gives them to values that differ. (Apache Parquet format 2.10; Snappy format description.)
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.importers.files import LARGE_FILE, read_large, unpacked

_DATA, _INDEX, _DICTIONARY, _DATA_2 = 0, 1, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_SUFFIXES: Final = {"ZSTD": ".zst", "GZIP": ".gz"}
_CODECS: Final = ("UNCOMPRESSED", "SNAPPY", *_SUFFIXES)
_HEADER_BYTES: Final = 2 << 10
_MOST_HEADER: Final = 64 << 20
_BUFFER: Final = 1 << 20
_STEP: Final = 256 << 10
_HISTORY: Final = 1 << 20
"""Bytes to which a copy in a Snappy stream can refer; writers of Snappy compress 64 KiB by themselves."""
_FIRST_PAGES: Final = 3
"""A dictionary page, a page of indices, and one of values that did not fit the dictionary."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a column chunk."""

    kind: int
    values: int
    encoding: int
    begin: int
    """Offset of its contents in the file."""
    stored: int
    """Bytes of its contents in the file."""
    size: int
    """Bytes of its contents, decompressed."""
    levels: int
    """Bytes of the levels in front of the contents, which are not compressed; -1 if they are part of the contents."""
    is_compressed: bool

    @property
    def end(self) -> int:
        """Offset of the next page."""
        return self.begin + self.stored


class ColumnChunk:
    """The values of one column in one row group. Raises ValueError or EOFError if the file is damaged."""

    def __init__(self, file: BinaryIO, facts: Any, most_level: int) -> None:
        """Take the column chunk with these metadata of Arrow. A value at the level `most_level` is not missing."""
        self._file, self._codec, self._most_level = file, facts.compression, most_level
        self._values = int(facts.num_values)
        starts = [facts.data_page_offset]
        starts += [facts.dictionary_page_offset] if facts.has_dictionary_page else []
        self._start = min(starts)

    def pages(self) -> Iterator[Page]:
        """Yield the pages."""
        at, done = self._start, 0
        while done < self._values:
            page = _page_at(self._file, at)
            done += page.values if page.kind in (_DATA, _DATA_2) else 0
            at = page.end
            yield page

    def largest_page(self, *, far: bool) -> int:
        """Return the decompressed size of the largest page. If the file is `far`, the first ones decide.

        In a store, the header of each page is a request; later pages are mostly like the first ones.
        """
        return max((page.size for page in islice(self.pages(), _FIRST_PAGES if far else None)), default=0)

    def dictionary(self) -> tuple[int, int]:
        """Return the number of values in the dictionary page, and its decompressed size; zeros if there is none."""
        page = next(self.pages(), None)
        return (page.values, page.size) if page is not None and page.kind == _DICTIONARY else (0, 0)

    def is_readable(self) -> bool:
        """Whether `values` reads the column chunk."""
        if self._codec not in _CODECS:
            return False
        last = 0
        for page in self.pages():
            if page.kind == _DICTIONARY or page.kind == _INDEX:
                continue
            if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                levels, contents = self._opened(page)
                indices = _indices(contents, int(np.count_nonzero(levels == self._most_level)))
                if (np.diff(indices, prepend=last) < 0).any():
                    return False
                last = int(indices[-1]) if len(indices) else last
            elif page.encoding != _PLAIN:
                return False
        return True

    def values(self) -> Iterator[bytes | memoryview | None]:
        """Yield each value; None for a missing one."""
        dictionary: Iterator[bytes | memoryview | None] = iter(())
        at, value = -1, None
        for page in self.pages():
            if page.kind == _DICTIONARY:
                dictionary = _plain(self._stream(page, page.begin, page.stored), page.values)
            if page.kind not in (_DATA, _DATA_2):
                continue
            levels, contents = self._opened(page)
            present = int(np.count_nonzero(levels == self._most_level))
            if page.encoding == _PLAIN:
                found = _plain(contents, present)
                yield from (next(found) if level == self._most_level else None for level in levels.tolist())
                continue
            indices = iter(_indices(contents, present).tolist())
            for level in levels.tolist():
                if level != self._most_level:
                    yield None
                    continue
                index = next(indices)
                if index < at:
                    raise ValueError("an index decreases")
                while at < index:
                    value = None  # freed before the next one is read
                    value = next(dictionary, None)
                    if value is None:
                        raise ValueError(f"there is no value {index} in a dictionary")
                    at += 1
                yield value

    def _opened(self, page: Page) -> tuple[NDArray[np.int64], BinaryIO]:
        """Return the definition levels of a page, and the stream of its values."""
        width = self._most_level.bit_length()
        if page.kind == _DATA_2:
            self._file.seek(page.begin)
            told = _hybrid(_exactly(self._file, page.levels), width, page.values)
            return told, self._stream(page, page.begin + page.levels, page.stored - page.levels)
        stream = self._stream(page, page.begin, page.stored)
        if not width:
            return np.zeros(page.values, np.int64), stream
        return _hybrid(_exactly(stream, int.from_bytes(_exactly(stream, 4), "little")), width, page.values), stream

    def _stream(self, page: Page, begin: int, stored: int) -> BinaryIO:
        region = io.BufferedReader(_Region(self._file, begin, stored), _BUFFER)
        if self._codec == "UNCOMPRESSED" or not page.is_compressed or not stored:
            return region
        if self._codec == "SNAPPY":
            return io.BufferedReader(_Snappy(region), _BUFFER)
        stream: Any = unpacked(_SUFFIXES[self._codec], region)
        return stream  # type: ignore[no-any-return]


def _plain(stream: BinaryIO, count: int) -> Iterator[bytes | memoryview]:
    for _ in range(count):
        size = int.from_bytes(_exactly(stream, 4), "little")
        yield _exactly(stream, size) if size < LARGE_FILE else read_large(stream, size)


def _indices(stream: BinaryIO, count: int) -> NDArray[np.int64]:
    width = _exactly(stream, 1)[0]
    return _hybrid(stream.read(), width, count)


def _hybrid(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """Return numbers of `width` bits in runs: of one number, or of groups of eight. Raises ValueError, EOFError."""
    made, held, at = [np.zeros(0, np.int64)], 0, 0
    if not width:
        return np.zeros(count, np.int64)
    if width > 32:
        raise ValueError(f"numbers of {width} bits")
    while held < count:
        told, at = _varint(data, at)
        if told & 1:
            end = at + (told >> 1) * width
            bits = np.unpackbits(np.frombuffer(data[at:end], np.uint8), bitorder="little")
            run = bits[: len(bits) // width * width].reshape(-1, width).astype(np.int64) @ (1 << np.arange(width))
        else:
            end = at + (width + 7) // 8
            run = np.full(min(told >> 1, count - held), int.from_bytes(data[at:end], "little"), np.int64)
        made.append(run)
        held, at = held + len(run), end
        if not len(run) or (end > len(data) and held < count):
            raise EOFError("a run of numbers is truncated")
    return np.concatenate(made)[:count]


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("a page is truncated")
    return data


class _Region(io.RawIOBase):
    """A part of a file, whose position others move, too."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._at, self._end = file, begin, begin + size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, memory: Any) -> int:
        """Read on."""
        view = memoryview(memory)[: self._end - self._at]
        if not view:
            return 0
        self._file.seek(self._at)
        count: int = self._file.readinto(view) or 0  # type: ignore[attr-defined]
        self._at += count
        return count


class _Snappy(io.RawIOBase):
    """The contents of a Snappy stream, decompressed in steps. Raises ValueError or EOFError if it is damaged.

    A stream is the decompressed size, then literals and copies of bytes before. Data that does not compress has
    literals of 64 KiB.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._data = source.read(_STEP)
        self._left, self._at = _varint(self._data, 0)
        self._out = bytearray()
        self._given = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, memory: Any) -> int:
        """Read on."""
        if self._given == len(self._out) and self._left:
            self._step()
        piece = memoryview(self._out)[self._given : self._given + len(memory)]
        memory[: len(piece)] = piece
        count = len(piece)
        piece.release()
        self._given += count
        return count

    def _step(self) -> None:
        out = self._out
        if len(out) > 2 * _HISTORY:
            del out[:-_HISTORY]
        before = len(out)
        goal = before + min(_STEP, self._left)
        while len(out) < goal:
            if len(self._data) - self._at < 5:
                self._more()
            self._element(out)
        self._left -= len(out) - before
        if self._left < 0:
            raise ValueError("a Snappy stream is longer than it says")
        self._given = before

    def _more(self) -> None:
        self._data, self._at = self._data[self._at :] + self._source.read(_STEP), 0
        if not self._data:
            raise EOFError("a Snappy stream is truncated")

    def _element(self, out: bytearray) -> None:
        data, at = self._data, self._at
        tag = data[at]
        kind = tag & 3
        if not kind:
            extra = max(0, (tag >> 2) - 59)
            size = 1 + (int.from_bytes(data[at + 1 : at + 1 + extra], "little") if extra else tag >> 2)
            self._at = at + 1 + extra
            while size:
                piece = self._data[self._at : self._at + size]
                out += piece
                self._at += len(piece)
                size -= len(piece)
                if size:
                    self._more()
            return
        width = (0, 1, 2, 4)[kind]
        offset = int.from_bytes(data[at + 1 : at + 1 + width], "little")
        size = 1 + (tag >> 2)
        if kind == 1:
            offset, size = offset | tag >> 5 << 8, 4 + (tag >> 2 & 7)
        self._at = at + 1 + width
        if self._at > len(data):
            raise EOFError("a Snappy stream is truncated")
        if not 0 < offset <= len(out):
            raise ValueError(f"a copy in a Snappy stream refers to {offset} bytes before")
        start = len(out) - offset
        out += out[start : start + size] if offset >= size else (out[start:] * (size // offset + 1))[:size]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the offset after it. Raises EOFError, ValueError."""
    number = shift = 0
    while True:
        if at >= len(data):
            raise EOFError("a number is truncated")
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _page_at(file: BinaryIO, offset: int) -> Page:
    """Read the header of a page. Raises ValueError, EOFError."""
    size = _HEADER_BYTES
    while True:
        file.seek(offset)
        data = file.read(size)
        try:
            told, end = _struct(data, 0)
            break
        except EOFError:
            if len(data) < size or size >= _MOST_HEADER:
                raise
        size *= 4  # statistics may hold long values
    kind, unpacked, stored = (told.get(number, -1) for number in (1, 2, 3))
    facts = told.get({_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind, 6), {})
    if kind not in (_DATA, _INDEX, _DICTIONARY, _DATA_2) or min(unpacked, stored) < 0 or not isinstance(facts, dict):
        raise ValueError("the header of a page is damaged")
    values, encoding, levels, compressed = facts.get(1, 0), facts.get(2, -1), -1, True
    if kind == _DATA_2:
        encoding, levels, compressed = facts.get(4, -1), facts.get(5, 0) + facts.get(6, 0), facts.get(7, True)
    if values < (kind in (_DATA, _DATA_2)) or levels > stored:
        raise ValueError("the header of a page is damaged")
    return Page(kind, values, encoding, offset + end, stored, unpacked, levels, bool(compressed))


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return a struct of Thrift's compact protocol by field number, and the offset after it."""
    fields, number = dict[int, Any](), 0
    while True:
        if at >= len(data):
            raise EOFError("a header is truncated")
        head = data[at]
        at += 1
        if not head:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            told, at = _varint(data, at)
            number = _signed(told)
        fields[number], at = _thrift(data, at, head & 15)


def _thrift(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Return a value of this type: a truth value, a number, bytes, a list or a struct."""
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        told, at = _varint(data, at)
        return _signed(told), at
    if kind in (3, 7, 8):
        size, at = (1, at) if kind == 3 else (8, at) if kind == 7 else _varint(data, at)
        if at + size > len(data):
            raise EOFError("a header is truncated")
        return data[at : at + size], at + size
    if kind in (9, 10):
        if at >= len(data):
            raise EOFError("a header is truncated")
        size, inner, at = data[at] >> 4, data[at] & 15, at + 1
        if size == 15:
            size, at = _varint(data, at)
        items = []
        for _ in range(size):
            # The truth values of a list take a byte each, so that no size is more than the bytes behind it.
            item, at = _thrift(data, at, 3 if inner in (1, 2) else inner)
            items.append(item)
        return items, at
    if kind == 12:
        return _struct(data, at)
    raise ValueError(f"a header has a value of the unknown type {kind}")


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)
