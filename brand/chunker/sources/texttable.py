"""The rows of a CSV or TSV file: cells, and the line at which each row begins.

    separator    `Dialect.separator`, or a tab for `.tsv`, or the most frequent of , ; tab | in the first line
    quotes       `Dialect.quote`, or none if the separator is a tab, or double quotes

A file with tabs is read literally: a quote is a character as any other. A row that cannot be used (another number of
cells, bytes that are not UTF-8, a quote that is not closed) is one bad row: reading continues with the line after the
one at which the row began, so an open quote does not swallow the rows that follow it.
"""

from __future__ import annotations

import csv
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO, Final, NamedTuple

from brand.chunker.sources.encoding import BOM, check_encoding, not_utf8
from brand.errors import SourceError, UsageError, counted
from brand.formats.noticed import Noticed

QUOTES: Final = ("none", "double", "single")
_CHUNK_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 1 << 16
"""Bytes read first: some callers look at the first rows only."""
MOST_CHARACTERS: Final = 64 << 20
"""The longest row of several lines."""
_KEPT_QUOTES: Final = "{count} row[s] [has|have] cells in quotes, and the quotes are kept: --quote double removes them"
_IN_QUOTES: Final = (
    "{count} row[s] [has|have] a cell in quotes that holds lines like rows: --quote none reads quotes as characters"
)
_NAMED: Final = {"tab": "\t", "\\t": "\t", "space": " "}
_SEPARATORS: Final = ",;\t|"
_CHARACTERS: Final = {"double": '"', "single": "'", "none": None}


@dataclass(frozen=True)
class Dialect:
    """The options of a user for the form of a table in text. An empty one is found from the file."""

    separator: str = ""
    """One character between cells, or `tab`, `space`."""
    quote: str = ""
    """`none`: quotes are characters as any other; `double` or `single`: a cell may be in such quotes."""
    escape: str = ""
    """A character that makes the one after it literal, such as a backslash."""

    def __post_init__(self) -> None:
        if self.quote not in ("", *QUOTES):
            raise UsageError(f"--quote {self.quote}: give one of {', '.join(QUOTES)}")
        separator = _NAMED.get(self.separator, self.separator)
        if len(separator) > 1 or separator in ("\n", "\r"):
            raise UsageError(f"--separator {self.separator!r}: give one character, or tab, or space")
        object.__setattr__(self, "separator", separator)
        if len(self.escape) > 1 or self.escape in ("\n", "\r"):
            raise UsageError(f"--escape {self.escape!r}: give one character")
        characters = [c for c in (separator, self.escape, _CHARACTERS.get(self.quote)) if c]
        if len(set(characters)) < len(characters):
            raise UsageError("--separator, --quote and --escape name one character twice")


class RowFault(NamedTuple):
    """Why a row cannot be used."""

    reason: str
    hint: str = ""


Row = tuple[int, list[str], RowFault | None]
"""The line at which a row begins (from 1), its cells, and the reason if it cannot be used."""


Batch = tuple[Sequence[int], list[list[str]], RowFault | None]
"""Lines at which rows begin, and their cells; or the line of one row, and the reason why it cannot be used."""


class TextTable:
    """The rows of one table below its header. Each row that can be used has as many cells as the header."""

    def __init__(self, file: str, name: str, stream: BinaryIO, dialect: Dialect) -> None:
        """Read the header of an open file, whose name is `file`, and `name` in messages.

        Raises `SourceError`, `UsageError`.
        """
        self._file, self.name, self._stream = file, name, stream
        self._literal_quotes: list[int] = []
        """Lines of rows with cells in quotes, in a table that is read literally."""
        self._rows_in_quotes: list[int] = []
        """Lines of rows with a quoted cell that holds lines with as many cells as a row."""
        self._line = 1
        """The line at which the next row begins."""
        self._again: deque[str] = deque()
        """Lines to read before those of the stream."""
        self._held: list[str] = []
        """Lines of the row that is being read."""
        self._damaged = False
        """Whether lines that are not UTF-8 were read."""
        self._width = 0
        first = stream.readline()
        check_encoding(file, name, first)
        first = first.removeprefix(BOM)
        if b"\r" in first.rstrip(b"\r\n") and not first.endswith(b"\n"):
            hint = f"Convert it first: tr '\\r' '\\n' < {shlex.quote(file)} > {shlex.quote(f'unix-{file}')}"
            raise SourceError(name, "its lines end with CR, as on old Macs", hint=hint)
        if first:
            self._again.append(self._text(first))
        self.separator = dialect.separator or _separator(file, first.decode("utf-8", "replace"))
        literal = self.separator == "\t" or dialect.escape == '"'
        self._quote = _CHARACTERS[dialect.quote or ("none" if literal else "double")]
        self._escape = dialect.escape or None
        self._is_literal = self._quote is None and self._escape is None
        self.header_line, header, fault = next(self._singly(), (0, list[str](), None))
        if fault is not None:
            raise SourceError(name, f"line {self.header_line}: {fault.reason}", hint=fault.hint)
        self.header: Sequence[str] = header
        if not dialect.quote and self._quote is None and header and all(map(_is_quoted, header)):
            raise UsageError(
                f"{name}: the names of its columns are in quotes, and a table with tabs is read literally: give --quote"
                " double to read cells in quotes, or --quote none if the quotes belong to the names"
            )

    def __iter__(self) -> Iterator[Row]:
        for lines, rows, fault in self.batches():
            if fault is not None:
                yield lines[0], [], fault
            for line, cells in zip(lines, rows, strict=False):
                yield line, cells, None

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in batches, and each bad row as one of its own."""
        size = _FIRST_BYTES
        while self._again or (chunk := self._stream.readlines(size)):
            size = min(2 * size, _CHUNK_BYTES)
            first = self._line
            rows = None if self._again else self._together(chunk)
            if rows is not None:
                self._line += len(rows)
                yield range(first, self._line), rows, None
                continue
            lines, rows = [], []
            for line, cells, fault in self._singly():
                if fault is None:
                    lines.append(line)
                    rows.append(cells)
                else:
                    if rows:
                        yield lines, rows, None
                    yield [line], [], fault
                    lines, rows = [], []
                if not self._again:
                    break
            if rows:
                yield lines, rows, None

    def _together(self, chunk: list[bytes]) -> list[list[str]] | None:
        """Return the rows of lines if each of them is one row; else None, and the lines are to be read again."""
        try:
            text = b"".join(chunk).decode()
        except UnicodeDecodeError:
            self._again.extend(map(self._text, chunk))
            return None
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        rows: list[list[str]] = []
        if self._is_literal:
            lines = [line.removesuffix("\r") for line in lines] if "\r" in text else lines
            rows = [line.split(self.separator) for line in lines]
        elif self._quote is not None and self._quote not in text and self._escape is None and "\r" not in text:
            rows = [line.split(self.separator) for line in lines]
        else:
            with suppress(csv.Error):
                rows = list(self._reader(lines))
        if len(rows) != len(lines) or set(map(len, rows)) != {self._width} or (self._width == 1 and "" in lines):
            self._again.extend(map(self._text, chunk))
            return None
        if self._is_literal and '"' in text:
            for number, cells in enumerate(rows, self._line):
                if any(map(_is_quoted, cells)):
                    self._literal_quotes.append(number)
        return rows

    def _singly(self) -> Iterator[Row]:
        """Yield the rows one by one. The caller may stop after any row."""
        return self._literal() if self._is_literal else self._quoted()

    @property
    def noticed(self) -> tuple[Noticed, ...]:
        """Facts about the rows that were read."""
        found = (
            ("quoted_cells", self._literal_quotes, _KEPT_QUOTES),
            ("rows_in_quotes", self._rows_in_quotes, _IN_QUOTES),
        )
        return tuple(Noticed(what, len(at), f"{self.name}, line {at[0]}", text) for what, at, text in found if at)

    def _literal(self) -> Iterator[Row]:
        """Yield the rows of a table in which each line is a row."""
        separator = self.separator
        for text in self._feed():
            line, self._line = self._line, self._line + 1
            self._held.clear()
            text = text.removesuffix("\n").removesuffix("\r")
            if not text:
                continue
            cells = text.split(separator)
            if self._damaged and not _is_whole(text):
                yield line, [], self._broken([text])
                continue
            self._width = self._width or len(cells)
            if len(cells) != self._width:
                yield line, [], self._other_width(cells)
                continue
            if '"' in text and any(map(_is_quoted, cells)):
                self._literal_quotes.append(line)
            yield line, cells, None

    def _quoted(self) -> Iterator[Row]:
        """Yield the rows of a table in which a quote or an escape may continue a row on the next line."""
        held = self._held
        while True:
            try:
                for cells in self._reader(self._feed()):
                    line = self._line
                    if len(held) == 1 and len(cells) == self._width and not self._damaged:
                        self._line += 1
                        held.clear()
                        yield line, cells, None
                    elif cells:
                        self._width = self._width or len(cells)
                        yield self._checked(cells)
                    else:
                        self._line += len(held)
                        held.clear()
                return
            except csv.Error as error:
                yield self._failed(str(error))

    def _reader(self, lines: Iterable[str]) -> Any:
        csv.field_size_limit(MOST_CHARACTERS)
        return csv.reader(
            lines,
            delimiter=self.separator,
            quotechar=self._quote or '"',
            quoting=csv.QUOTE_NONE if self._quote is None else csv.QUOTE_MINIMAL,
            escapechar=self._escape,
            strict=True,
        )

    def _text(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            self._damaged = True
            return line.decode("utf-8", "surrogateescape")

    def _feed(self) -> Iterator[str]:
        """Yield the lines of the file as text, those that are read again first, and hold them in `_held`."""
        held, again, size = self._held, self._again, 0
        while True:
            if again:
                text = again.popleft()
            elif line := self._stream.readline():
                text = self._text(line)
            else:
                return
            size = size + len(text) if held else len(text)
            held.append(text)
            if size > MOST_CHARACTERS and len(held) > 1:
                raise csv.Error("")  # a row is too long
            yield text

    def _checked(self, cells: list[str]) -> Row:
        """Return a row of several lines, or one that may be bad."""
        line, held = self._line, self._held
        if self._damaged and not all(map(_is_whole, held)):
            fault = self._broken(held)
        elif len(cells) != self._width:
            fault = self._other_width(cells)
        else:
            inner = (text.rstrip("\r\n").count(self.separator) + 1 for text in held[1:-1])
            if self._width > 1 and any(count == self._width for count in inner):
                self._rows_in_quotes.append(line)
            self._line += len(held)
            held.clear()
            return line, cells, None
        self._resume()
        return line, [], fault

    def _failed(self, error: str) -> Row:
        """Return the bad row at which reading failed."""
        line, last = self._line, self._line + len(self._held) - 1
        hint = "A quote inside of a quoted cell is doubled; --escape and --quote name other forms"
        if self._quote is None:
            error, hint = "an escape at the end of a line continues the row, which does not end", ""
        elif last > line or "unexpected end" in error:
            error = f"a quote that opens in it is not closed properly up to line {last}"
            hint = "--quote none reads quotes as characters"
        elif "new-line" in error:
            error, hint = "it has a carriage return outside of quotes", ""
        self._resume()
        return line, [], RowFault(error, hint)

    def _resume(self) -> None:
        """Continue after the first line of the row that was read."""
        self._again.extendleft(reversed(self._held[1:]))
        self._line += 1
        self._held.clear()

    def _other_width(self, cells: Sequence[str]) -> RowFault:
        reason = f"it has {counted(len(cells), 'cell')}, and the header has {counted(self._width, 'column')}"
        if len(self._held) > 1:
            last = self._line + len(self._held) - 1
            more = f"; a quote that opens in it continues it to line {last}"
            return RowFault(reason + more, "--quote none reads quotes as characters")
        if self._quote is None:
            return RowFault(reason, "--quote double reads cells in quotes, which may hold the separator")
        return RowFault(reason, "A cell with the separator in it stands in quotes")

    def _broken(self, lines: Sequence[str]) -> RowFault:
        broken = next(text for text in lines if not _is_whole(text))
        return RowFault(*not_utf8(self._file, broken.encode("utf-8", "surrogateescape")))


def _is_whole(text: str) -> bool:
    """Whether all bytes of a decoded line were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_quoted(cell: str) -> bool:
    return len(cell) > 1 and cell[0] == '"' == cell[-1]


def _separator(file: str, first: str) -> str:
    """Return a tab for TSV files; else the most frequent separator outside of quotes in the first line."""
    if ".tsv" in (suffix.lower() for suffix in PurePath(file).suffixes):
        return "\t"
    outside = "".join(first.split('"')[::2])
    return max(_SEPARATORS, key=outside.count)
