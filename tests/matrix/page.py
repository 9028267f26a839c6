"""The table of `docs/dev/frameworks-tried.md`: a row for each framework, with the number of each verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.matrix.cells import FRAMEWORKS, LOADERS, Cell
from tests.matrix.verdicts import EXACT, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "frameworks-tried.md"
_HEAD = ("framework", *LOADERS, "cures followed")
_BEGIN, _END = "<!-- matrix -->\n", "<!-- end of matrix -->"


def row(framework: str, found: Mapping[Cell, Verdict]) -> str:
    """Return the row of a framework."""
    each = [_counted(verdict for cell, verdict in found.items() if cell.loader == loader) for loader in LOADERS]
    return _row(framework, *each, len({cure for verdict in found.values() for cure in verdict.cures}))


def _row(*values: object) -> str:
    return f"| {' | '.join(map(str, values))} |\n"


def _counted(verdicts: Iterable[Verdict]) -> str:
    """Return a number for each word, exact first."""
    words = Counter(verdict.word for verdict in verdicts)
    ordered = sorted(words, key=lambda word: (word != EXACT, word))
    return ", ".join(f"{words[word]} {word}" for word in ordered)


def write(found: Mapping[str, Mapping[Cell, Verdict]]) -> None:
    """Replace the rows of these frameworks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    old, _, after = rest.partition(_END)
    lines = [_row(*_HEAD), "|---" * len(_HEAD) + "|\n"]
    for framework in FRAMEWORKS:
        kept = (line for line in old.splitlines(keepends=True) if line.startswith(f"| {framework} |"))
        lines += [row(framework, found[framework])] if framework in found else kept
    PAGE.write_text(f"{before}{_BEGIN}{''.join(lines)}{_END}{after}", encoding="utf-8")
