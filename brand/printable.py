r"""How is text of other programs and users shown: file names, class names, keys, transcripts, messages of another node?

A name on Linux may hold any byte but `/` and NUL: a terminal escape, a bell, a line break that forges a line of a log,
an override that reverses the text around it. This module, and no other, turns such characters into escapes:

    tab, line feed, carriage return       \t  \n  \r
    other control characters of ASCII     \x1b
    a byte that is not UTF-8              \xff   (Python holds it as a lone surrogate, U+DC80 to U+DCFF)
    C1 controls, line and paragraph separators, bidirectional overrides, other lone surrogates    \u202e

All other characters are unchanged, so that people can read text of any language.
"""

from __future__ import annotations

import re
from typing import Final

_ACTS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal, a log or a table interprets, and characters that UTF-8 cannot hold."""
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_LONG: Final = {text: char for char, text in _SHORT.items()} | {"\\\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(?:[tnr\\]|x[0-9a-f]{2}|u[0-9a-f]{4})")
_RAW: Final = 0xDC00
"""Python holds byte `b` of a name that is not UTF-8 as U+DC00 + b."""


def printable(text: str) -> str:
    """Return text on one line, for messages and logs. Printable text is unchanged."""
    return _ACTS.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the same as `printable` for text of several lines: line feeds are kept."""
    return "\n".join(map(printable, text.split("\n")))


def escaped(text: str) -> str:
    """Return the same as `printable`, with each backslash doubled, so that `unescaped` restores any text."""
    return printable(text.replace("\\", "\\\\"))


def unescaped(text: str) -> str:
    """Restore the text that `escaped` has changed; `os.fsencode` turns the result into a file name's bytes.

    Raises ValueError for text that `escaped` never writes.
    """
    if _ACTS.search(text) or "\\" in _ESCAPE.sub("", text):
        raise ValueError(f"{text!r} is not an escaped text")
    return _ESCAPE.sub(_unescape, text)


def printable_json(document: str) -> str:
    """Return a JSON document whose strings hold such characters as JSON's own escapes, so that the values do not
    change.

    Lone surrogates, which JSON cannot hold, become the escapes of `printable`.
    """
    return "\n".join(_ACTS.sub(_escape_in_json, line) for line in document.split("\n"))


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    raw = code - _RAW if _RAW + 0x80 <= code <= _RAW + 0xFF else code
    return f"\\x{raw:02x}" if code < 0x80 or raw != code else f"\\u{code:04x}"


def _escape_in_json(match: re.Match[str]) -> str:
    lone = 0xD800 <= ord(match[0]) <= 0xDFFF
    return "\\" + _escape(match) if lone else f"\\u{ord(match[0]):04x}"


def _unescape(match: re.Match[str]) -> str:
    text = match[0]
    if text in _LONG:
        return _LONG[text]
    code = int(text[2:], 16)
    return chr(code + _RAW if text[1] == "x" and code >= 0x80 else code)
