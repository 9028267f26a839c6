"""The values of a JSON file, one at a time in bounded memory: of lines, or of an array or a sequence of values.

A damaged line is one bad sample. In an array nothing after a damaged place can be trusted, so it ends the file.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from brand.chunker.sources.encoding import BOM, not_utf8
from brand.errors import SourceError

READ_BYTES: Final = 1 << 20
MOST_CHARACTERS: Final = 1 << 30
"""The longest value of an array, or of a sequence of values."""
_MARGIN: Final = 16
"""Characters at the end of a text within which an error may mean that the text is incomplete."""
_SPACES: Final = " \t\n\r"
_DEEP: Final = "it is nested too deeply: Python reads about 1,000 levels"


Item = tuple[int, dict[str, Any] | str, int, bool]
"""One value of a file: the number of its line, or its own, from 1; the sample, or in words why it is none; its length
in the file; whether NaN or an infinity is in it."""


class _Decoder:
    """Parses one value after the other, and notes NaN and infinities, which JSON does not have."""

    def __init__(self) -> None:
        self.has_nan = False
        made = json.JSONDecoder(parse_constant=self._constant)
        self.decode, self.raw_decode = made.decode, made.raw_decode

    def reset(self) -> None:
        """Forget what was seen, before the next value."""
        self.has_nan = False

    def _constant(self, name: str) -> float:
        self.has_nan = True
        return float(name)


def line_items(file: str, stream: BinaryIO, limit: int | None, *, first: bool) -> Iterator[Item]:
    """Yield the lines that are not empty of a file of which each line is a sample, from up to `limit` bytes.

    `first`: the stream is at the front of the file. Numbers count from the first line that is read.
    """
    left, decoder = math.inf if limit is None else limit, _Decoder()
    decode = decoder.decode
    for number, line in enumerate(stream, 1):
        if left <= 0:
            return
        left -= len(line)
        text = line.strip()
        if number == 1 and first:
            text = text.removeprefix(BOM)
        if text:
            decoder.reset()
            row: Any
            try:
                row = decode(text.decode())
            except UnicodeDecodeError:
                row = ". ".join(not_utf8(file, text))
            except (ValueError, RecursionError) as error:
                row = _why_no_json(error, text.decode())
            else:
                row = row if isinstance(row, dict) else _no_object(row)
            yield number, row, len(line), decoder.has_nan


def stream_items(name: str, stream: BinaryIO) -> Iterator[Item]:
    """Yield the values of the arrays of a file, and those outside of arrays. Raises `SourceError` if it is damaged."""
    text, decoder, number = _Text(name, stream), _Decoder(), 0
    in_array = wants_comma = False
    while (mark := text.next_mark()) or in_array:
        if not mark:
            raise SourceError(name, f"it is truncated: the array ends after item {number}, without ]")
        if in_array and mark == "]":
            in_array = False
            text.skip()
        elif in_array and wants_comma:
            if mark != ",":
                raise SourceError(name, f"after item {number}: expected a comma or ], found {mark!r}")
            wants_comma = False
            text.skip()
        elif not in_array and mark == "[":
            in_array, wants_comma = True, False
            text.skip()
        else:
            number += 1
            decoder.reset()
            value, size = text.value(decoder, number)
            wants_comma = in_array
            yield number, value if isinstance(value, dict) else _no_object(value), size, decoder.has_nan


class _Text:
    """The characters of a file that are not yet parsed."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name, self._stream = name, stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False

    def next_mark(self) -> str:
        """Return the next character that is no space, without passing it; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACES:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(READ_BYTES):
                return ""

    def skip(self) -> None:
        """Pass one character."""
        self._at += 1

    def value(self, decoder: _Decoder, number: int) -> tuple[Any, int]:
        """Return the next value, and its length. Raises `SourceError`, with the number of the value."""
        while True:
            held = len(self._text) - self._at
            try:
                value, end = decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or not self._more(READ_BYTES):  # a number may go on
                    size, self._at = end - self._at, end
                    return value, size
                continue
            except RecursionError:
                raise SourceError(self._name, f"item {number}: {_DEEP}") from None
            except json.JSONDecodeError as error:
                incomplete = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _MARGIN
                if not incomplete or held > MOST_CHARACTERS or not self._more(max(READ_BYTES, held)):
                    around = self._text[max(self._at, error.pos - 20) : error.pos + 20]
                    raise SourceError(self._name, f"item {number}: it is no JSON: {error.msg}, at {around!r}") from None
            except ValueError as error:  # a number of too many digits
                raise SourceError(self._name, f"item {number}: {error}") from None

    def _more(self, size: int) -> bool:
        """Read more characters, and drop those that are parsed. Return False at the end of the file."""
        if self._ended:
            return False
        data = self._stream.read(size)
        self._ended = not data
        try:
            more = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise SourceError(self._name, f"it is not UTF-8: {error.reason}") from error
        self._text, self._at = self._text[self._at :] + more, 0
        return not self._ended or bool(more)


def has_lines(stream: BinaryIO) -> bool:
    """Return whether the lines of a file are values of their own, so far as its first ones show.

    A file that begins with an array is none, nor is one whose first value goes on after its first line, or is followed
    by another one on the same line.
    """
    line = b""
    for raw in iter(lambda: stream.readline(READ_BYTES), b""):
        line = raw.removeprefix(BOM) if not line else raw
        line = line.strip()
        if line:
            break
    if not line.startswith(b"{"):
        return not line.startswith(b"[")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return True
    decoder = json.JSONDecoder()
    try:
        _, end = decoder.raw_decode(text)
    except RecursionError:
        return True
    except json.JSONDecodeError as error:
        incomplete = error.msg.startswith("Unterminated string") or error.pos >= len(text) - _MARGIN
        return not (incomplete and _goes_on(text, stream))
    return end == len(text) or text[end:].lstrip()[:1] != "{"


def _goes_on(text: str, stream: BinaryIO) -> bool:
    """Return whether the value that begins with this line ends on a later one."""
    more = stream.read(READ_BYTES).decode("utf-8", "replace")
    try:
        json.JSONDecoder().raw_decode(f"{text}\n{more}")
    except RecursionError:
        return False
    except json.JSONDecodeError as error:  # a value of more than READ_BYTES
        return len(more) >= READ_BYTES // 4 and error.pos >= len(text) + len(more) - _MARGIN
    return True


def _no_object(value: Any) -> str:
    names = {"list": "a list", "str": "a text", "NoneType": "null", "bool": "true or false"}
    return f"it holds {names.get(type(value).__name__, 'a number')}, and a sample is an object: {{...}}"


def _why_no_json(error: Exception, text: str) -> str:
    if isinstance(error, RecursionError):
        return _DEEP
    if isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data") and text[error.pos] in "{[":
        return "two values are on one line: each line of such a file holds one"
    if text.startswith(("{'", '{"')) and ("{'" in text or "': " in text):
        try:
            import ast

            if isinstance(ast.literal_eval(text), dict):
                return "it is a dict as Python prints it, and no JSON: json.dumps writes JSON"
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    return f"it is no JSON: {error}"


def without_nan(value: Any) -> tuple[Any, int]:
    """Return a value of JSON with None for NaN, and how many there were."""
    if isinstance(value, float):
        return (None, 1) if math.isnan(value) else (value, 0)
    if isinstance(value, list):
        made = [without_nan(each) for each in value]
        return [each for each, _ in made], sum(count for _, count in made)
    if isinstance(value, dict):
        named = {name: without_nan(each) for name, each in value.items()}
        return {name: each for name, (each, _) in named.items()}, sum(count for _, count in named.values())
    return value, 0
