"""Which figures stand in the README's table? Medians of what `training_reads` has measured, a row for each regime.

Each cell has the samples a second of the first and of the second epoch, with a `~` where a run was stopped before its
first epoch ended. The last lines name every rival that is faster than Brand, by epoch. Only figures of one row compare:
they come from one run, in turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.training_loaders import BRAND, LIMIT, WAYS

Runs = Sequence[Mapping[str, Any]]
RATES: Final = ("samples_per_s", "second_samples_per_s")
"""Of the first and of the second epoch."""


def rate(runs: Runs, rival: str, key: str) -> float | None:
    """The median of one figure of a rival; None where it has none."""
    values = [run["values"][key] for run in runs if run["rival"] == rival and run["values"].get(key) is not None]
    return median(values) if values else None


def cell(runs: Runs, rival: str) -> str:
    """The rates of a rival, first / second epoch."""
    found = [rate(runs, rival, key) for key in RATES[: 1 if rival == LIMIT.rival.name else 2]]
    early = any(not run["values"].get("complete", [True])[0] for run in runs if run["rival"] == rival)
    return " / ".join(f"{value:,.0f}" for value in found if value is not None) + (" ~" if early else "")


def faster(runs: Runs, names: Sequence[str], key: str) -> list[str]:
    """Rivals that are faster than Brand in one figure, and how much."""
    brand = rate(runs, BRAND.rival.name, key)
    rivals = {name: rate(runs, name, key) for name in names if not name.startswith(BRAND.rival.name)}
    return [f"{name} x{value / brand:.2f}" for name, value in rivals.items() if brand and value and value > brand]


def lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The table in Markdown, and who is faster."""
    rows = [
        (f"{result['settings']['task']}, {regime}", measured["runs"])
        for result in results
        for regime, measured in result["results"].items()
    ]
    every = {run["rival"] for _, runs in rows for run in runs}
    names = [way.rival.name for way in WAYS if way.rival.name in every]
    yield "| | " + " | ".join(names) + " |"
    yield "|---" * (1 + len(names)) + "|"
    for title, runs in rows:
        yield f"| {title} | " + " | ".join(cell(runs, name) for name in names) + " |"
    rivals = [way.rival.name for way in WAYS if way.rival.name in every and not way.yardstick]
    for title, runs in rows:
        for number, key in enumerate(RATES, 1):
            yield f"{title}, epoch {number}: faster than Brand: {', '.join(faster(runs, rivals, key)) or 'nobody'}"


def main() -> None:
    """Print the table of these files."""
    parser = argparse.ArgumentParser(prog="bench.honest_table", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="what `training_reads --out` has written")
    print("\n".join(lines([json.loads(file.read_text()) for file in parser.parse_args().results])))


if __name__ == "__main__":
    main()
