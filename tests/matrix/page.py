"""What does the page show of the verdicts? A row for each framework, and one for each error that it raises itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.matrix.cells import FRAMEWORKS, LOADERS, Cell
from tests.matrix.verdicts import EXACT, OWN_ERROR, Verdict
from tests.matrix.ways.cures import OWN

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "frameworks-tried.md"
_HEADS = (("framework", *LOADERS, "cures followed"), ("framework", "its own error", "cells"))
_BEGIN, _END = "<!-- {} -->\n", "<!-- end of {} -->"
_NAMES = ("matrix", "errors")


def rows(framework: str, found: Mapping[Cell, Verdict]) -> tuple[str, str]:
    """Return the rows of a framework in both tables."""
    each = [_counted(verdict for cell, verdict in found.items() if cell.loader == loader) for loader in LOADERS]
    cures = len({cure for verdict in found.values() for cure in verdict.cures})
    own = [verdict.message for verdict in found.values() if verdict.word == OWN_ERROR]
    errors = ((phrase, sum(phrase in message for message in own)) for phrase in OWN.get(framework, ()))
    return _row(framework, *each, cures), "".join(_row(framework, f"`{phrase}`", count) for phrase, count in errors)


def _row(*values: object) -> str:
    return f"| {' | '.join(map(str, values))} |\n"


def _counted(verdicts: Iterable[Verdict]) -> str:
    """Return a number for each word, exact first."""
    words = Counter(verdict.word for verdict in verdicts)
    ordered = sorted(words, key=lambda word: (word != EXACT, word))
    return ", ".join(f"{words[word]} {word}" for word in ordered)


def write(found: Mapping[str, Mapping[Cell, Verdict]]) -> None:
    """Replace the rows of these frameworks."""
    text = PAGE.read_text(encoding="utf-8")
    for number, (name, head) in enumerate(zip(_NAMES, _HEADS, strict=True)):
        before, _, rest = text.partition(_BEGIN.format(name))
        old, _, after = rest.partition(_END.format(name))
        lines: list[str] = []
        for framework in FRAMEWORKS:
            kept = (line for line in old.splitlines(keepends=True) if line.startswith(f"| {framework} |"))
            lines += [rows(framework, found[framework])[number]] if framework in found else kept
        if any(lines):
            lines = [_row(*head), "|---" * len(head) + "|\n", *lines]
        text = f"{before}{_BEGIN.format(name)}{''.join(lines)}{_END.format(name)}{after}"
    PAGE.write_text(text, encoding="utf-8")
