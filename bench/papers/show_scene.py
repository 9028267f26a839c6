"""How many seconds does each policy take in one scene of a paper, and how many did the paper print?

    python -m bench.papers.show_scene NAME|FILE [--policies A,B,...] [--plot FILE] [--json]

NAME is a scene of the folder `scenes`, such as hdmlp-t1; FILE is a TOML file with the same fields. All policies are the
default. `--plot` plots them (.png, .svg or .pdf), `--json` prints all digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.papers.cells import Cell, cells
from bench.papers.policies import POLICIES
from bench.papers.scene import Scene, load_scene
from brand.cli.output import echo, empty_figure, print_json, save_figure
from brand.errors import UsageError, counted


def show_scene(name: str, policies: str, plot: Path | None, *, as_json: bool) -> None:
    """Simulate some policies, or `all`, in a scene, and print a row for each.

    Raises `UsageError` if the scene or a policy is unknown or invalid.
    """
    figure = empty_figure(plot) if plot else None
    wanted = list(POLICIES) if policies == "all" else [policy.strip() for policy in policies.split(",")]
    scene, rows = load_scene(name), list(cells(name, wanted))
    if as_json:
        print_json({"scene": name, "rows": [_facts(cell) for cell in rows]})
    else:
        _show(name, scene, rows)
    if plot and figure:
        _draw(rows, figure)
        save_figure(figure, plot)
        if not as_json:
            echo(f"The policies are drawn in {plot}")


def _facts(cell: Cell) -> dict[str, Any]:
    return {
        "policy": cell.policy,
        "in_turn_s": cell.in_turn_s,
        "published_s": cell.published_s,
        "deviation_percent": cell.deviation,
        "fair_s": cell.fair_s,
        "reason": cell.reason or None,
    }


def _show(name: str, scene: Scene, rows: list[Cell]) -> None:
    from rich.console import Console
    from rich.table import Table

    epochs, nodes = counted(scene.epochs, "epoch"), counted(scene.nodes, "node")
    echo(f"{name}: {counted(scene.samples, 'sample')} of {scene.mean_mb:g} MB, {epochs}, {nodes}")
    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("policy")
    for column in ("ours, s", "published, s", "deviation", "fair, s"):
        table.add_column(column, justify="right")
    for cell in rows:
        deviation = "" if cell.deviation is None else f"{cell.deviation:+.1f}%"
        ours = "N/A" if cell.in_turn_s is None else _seconds(cell.in_turn_s)
        table.add_row(cell.policy, ours, _seconds(cell.published_s), deviation, _seconds(cell.fair_s))
    Console(highlight=False, width=100).print(table)
    for cell in rows:
        if cell.reason:
            echo(f"{cell.policy}: {cell.reason}")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def _draw(rows: list[Cell], figure: Any) -> None:
    axes = figure.subplots()
    kinds = {
        "ours": [cell.in_turn_s for cell in rows],
        "published": [cell.published_s for cell in rows],
        "where nodes share storage": [cell.fair_s for cell in rows],
    }
    for number, (label, seconds) in enumerate(kinds.items()):
        if any(seconds):
            at = [row + 0.27 * (number - 1) for row in range(len(rows))]
            axes.bar(at, [each or 0 for each in seconds], width=0.27, label=label)
    axes.set_xticks(range(len(rows)), [cell.policy for cell in rows], rotation=45, ha="right")
    axes.set(ylabel="seconds")
    axes.legend()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one scene."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", metavar="NAME|FILE")
    parser.add_argument("--policies", metavar="A,B,...", default="all")
    parser.add_argument("--plot", metavar="FILE", type=Path)
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args(arguments)
    try:
        show_scene(given.scene, given.policies, given.plot, as_json=given.as_json)
    except UsageError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
