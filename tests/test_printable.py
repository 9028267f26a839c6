"""Names that others have chosen cannot act on a terminal, forge a line, or be mistaken for other names."""

from __future__ import annotations

import json
import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.printable import escaped, printable, printable_json, printable_lines, unescaped

NAMES = st.binary(max_size=20).map(os.fsdecode) | st.text(max_size=20)
"""What a file may be called, and any text."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a/b.png", "a/b.png"),
        ("día 日本 🙂 שלום.png", "día 日本 🙂 שלום.png"),
        ("red\x1b[31m", "red\\x1b[31m"),
        ("bell\a", "bell\\x07"),
        ("one\ntwo\r\n", "one\\ntwo\\r\\n"),
        ("tab\t", "tab\\t"),
        ("\x7f\x00", "\\x7f\\x00"),
        ("\x9b31m", "\\u009b31m"),
        ("gnp\u202eexe", "gnp\\u202eexe"),
        ("\u2066\u2028", "\\u2066\\u2028"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("\ud800", "\\ud800"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_what_acts_is_shown_as_an_escape(text: str, shown: str) -> None:
    """Controls, overrides, line breaks and bytes that are no text; words of any language stay readable."""
    assert printable(text) == shown


@given(NAMES)
def test_printable_text_is_one_line_that_can_be_written(text: str) -> None:
    """No control character, no line break, valid UTF-8; and what is printable already stays as it is."""
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in shown)
    overrides = {"LRO", "RLO", "LRE", "RLE", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not overrides & set(map(unicodedata.bidirectional, shown))
    assert printable(shown) == shown


@given(NAMES)
def test_an_escaped_name_gives_the_name_back(text: str) -> None:
    """Bit for bit: so a table can hold any file name, and two names never look the same."""
    assert printable(escaped(text)) == escaped(text)
    assert unescaped(escaped(text)) == text


@pytest.mark.parametrize("text", ["\\", "\\q", "\\x1", "\\u20", "a\nb", "\\\\\\"])
def test_what_was_never_escaped_is_not_taken_back(text: str) -> None:
    """A lone backslash or a raw control character is an error, not a guess."""
    with pytest.raises(ValueError, match="not an escaped text"):
        unescaped(text)


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_values(text: str) -> None:
    """A document that is shown parses to what it was made of, and holds nothing that acts."""
    shown = printable_json(json.dumps({text: [text]}, indent=1, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert printable_lines(shown) == shown


def test_json_holds_names_that_are_no_text() -> None:
    """Bytes that are no UTF-8 stand in JSON as in messages."""
    shown = printable_json(json.dumps([os.fsdecode(b"\xff")], ensure_ascii=False))
    shown.encode()
    assert json.loads(shown) == ["\\xff"]
