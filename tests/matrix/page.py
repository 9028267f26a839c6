"""What does the page show of the verdicts? Counts by framework and loader, and the errors that frameworks raise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.matrix.cells import LOADERS, Cell
from tests.matrix.verdicts import EXACT, OWN_ERROR, Verdict
from tests.matrix.ways.cures import OWN

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "frameworks-tried.md"
_BEGIN, _END = "<!-- matrix -->\n", "<!-- end of matrix -->"

Found = Mapping[str, Mapping[Cell, Verdict]]
"""The verdicts of the cells of each framework."""


def tables(found: Found) -> str:
    """Return the two tables."""
    lines = ["| framework | " + " | ".join(LOADERS) + " | cures followed |", "|---" * (len(LOADERS) + 2) + "|"]
    for framework, verdicts in found.items():
        each = [_counted(verdict for cell, verdict in verdicts.items() if cell.loader == loader) for loader in LOADERS]
        cures = len({cure for verdict in verdicts.values() for cure in verdict.cures})
        lines.append(f"| {framework} | {' | '.join(each)} | {cures} |")
    lines += ["", "| framework | its own error | cells |", "|---|---|---|"]
    for framework, phrases in OWN.items():
        for phrase in phrases:
            own = [each for each in found.get(framework, {}).values() if each.word == OWN_ERROR]
            lines.append(f"| {framework} | `{phrase}` | {sum(phrase in each.message for each in own)} |")
    return "\n".join(lines) + "\n"


def _counted(verdicts: Iterable[Verdict]) -> str:
    """Return a number for each word, exact first."""
    words = Counter(verdict.word for verdict in verdicts)
    ordered = sorted(words, key=lambda word: (word != EXACT, word))
    return ", ".join(f"{words[word]} {word}" for word in ordered)


def write(found: Found) -> None:
    """Replace the tables of the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}{tables(found)}{_END}{after}", encoding="utf-8")
