"""No silent cell: each way to train in a framework is exact, or is refused with a message that says what to do."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.jobs import make_numbers, run
from tests.frameworks.judge import verdict
from tests.frameworks.loops import LOOPS
from tests.frameworks.program import LOADERS

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]

PAGE = Path(__file__).parents[2] / "docs" / "dev" / "frameworks-tried.md"
COLUMNS = {
    "whole epochs": ("whole",),
    "stopped in the first epoch": ("first of 1", "first of 2"),
    "stopped in a later one": ("later of 1", "later of 2"),
    "stopped twice": ("again", "twice"),
}
"""What the page shows, and the runs behind it."""
COUNTS_STEPS = ("Hugging Face Trainer", "Lightning Trainer")
"""What may be refused although it is as the page says: what counts steps goes on with as many processes only."""


@pytest.mark.parametrize("framework", LOOPS)
def test_every_run_is_exact_or_refused(results: Any, numbers: Path, framework: str) -> None:
    """And what the page says to use is exact, but where the page says otherwise."""
    found = verdicts(results(framework), numbers)
    assert {case: word for case, word in found.items() if word not in ("exact", "refused")} == {}
    for (ranks, case), word in found.items():
        way, _, name = case.split("|")
        same = " of " not in name or name.endswith(f" of {ranks}")
        if way == "as on the page" and (same or framework not in COUNTS_STEPS):
            assert word == "exact", f"{framework}, {ranks} processes, {case}"


def test_the_page_has_the_table(results: Any, numbers: Path) -> None:
    """Printed by `python -m tests.frameworks.test_matrix`."""
    found = {framework: verdicts(results(framework), numbers) for framework in LOOPS}
    assert table(found) in PAGE.read_text(encoding="utf-8")


def verdicts(found: dict[int, list[dict[str, Any]]], path: Path) -> dict[tuple[int, str], str]:
    """By number of processes and run: exact, refused, or what is wrong."""
    return {
        (ranks, case): verdict(path, of_ranks, case)
        for ranks, of_ranks in found.items()
        for case in of_ranks[0]
        if case != "order"
    }


def table(found: dict[str, dict[tuple[int, str], str]]) -> str:
    """For the page: a row for each framework, way and loader."""
    lines = ["| framework | how | loader | " + " | ".join(COLUMNS) + " |", "|---" * (3 + len(COLUMNS)) + "|"]
    for framework, ways in LOOPS.items():
        for way in ways:
            for loader in LOADERS:
                cells = [_cell(found[framework], f"{way}|{loader}", names) for names in COLUMNS.values()]
                if any(cells):
                    lines.append(f"| {framework} | {way} | `{loader}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[tuple[int, str], str], case: str, names: tuple[str, ...]) -> str:
    """One word, or more where going on with another number of processes is another matter."""
    runs = {
        (ranks, name): found[ranks, f"{case}|{name}"]
        for ranks in (1, 2)
        for name in names
        if (ranks, f"{case}|{name}") in found
    }
    words = set(runs.values())
    if len(words) <= 1 or not all(" of " in name for _, name in runs):
        return "/".join(sorted(words))
    same, fewer, more = (
        "/".join(sorted({word for (ranks, name), word in runs.items() if fits(ranks, int(name[-1]))}))
        for fits in (int.__eq__, int.__lt__, int.__gt__)
    )
    others = f"another number of processes {fewer}" if fewer == more else f"fewer processes {fewer}, with more {more}"
    return f"{same}; with {others}"


def main() -> None:
    """Write the table into the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_numbers(Path(folder) / "numbers.brand")
        found = {}
        for number, framework in enumerate(LOOPS):
            (work := Path(folder) / str(number)).mkdir()
            found[framework] = verdicts(run(framework, path, work), path)
            sys.stdout.write(f"{framework}: {sorted(set(found[framework].values()))}\n")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- matrix -->\n")
    after = rest.partition("<!-- end of matrix -->")[2]
    PAGE.write_text(f"{before}<!-- matrix -->\n{table(found)}<!-- end of matrix -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
