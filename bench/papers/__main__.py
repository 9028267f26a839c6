"""Do simulator, theory and plans yield the figures that the papers print?

    python -m bench.papers [tables|scenarios|grid|theory|brand|joader|all] [--scale 0.1]

`tables`: each policy in the four tables of the thesis behind HDMLP, by the clock `in_turn`. `scenarios`: the five
scenarios of the paper itself, which prints bars and no seconds: times of the lower bound, beside what its text says.
`grid`: policy `frequency` with more or less memory and disk. A cell has the simulated seconds, the published seconds,
and their ratio. All seconds are multiplied by the factor that makes the lower bound (`perfect`) equal to the published
one. The last column is the clock `fair`, in which nodes share the bandwidth of storage. `theory`: access counts, Lemma
1, reuse distances, hits and threads (`theory.py`). `brand`: misses, requests and reads of Brand's own paper, from real
plans (`breakdown.py`), and simulated hours (`epoch_times.py`). `joader`: reads of several jobs with one cache
(`joader.py`).

`--scale 0.1` simulates a tenth of the samples of `tables`, `scenarios` and `grid`, with a tenth of the capacity.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.harness import progress, show, table
from bench.papers import breakdown, epoch_times, joader, theory
from bench.papers.cells import cells
from bench.papers.clock import in_turn
from bench.papers.policies import POLICIES
from bench.papers.scene import load_grid, load_published, load_scene


def tables(scale: float) -> None:
    """Print the four tables, a row for each policy."""
    for name in ("hdmlp-t1", "hdmlp-t2", "hdmlp-t3", "hdmlp-t4"):
        scene, rows = load_scene(name).scaled(scale), []
        for cell in cells(name, scale=scale):
            progress(f"{name}: {cell.policy}")
            rows.append([cell.policy, *_cells(cell.in_turn_s, cell.published_s), _seconds(cell.fair_s)])
        show(f"\n{name}: {scene.samples:,} samples, {scene.epochs} epochs\n")
        show(table(["policy", "ours, s", "published, s", "ratio", "fair, s"], rows))


SCENARIOS: dict[str, tuple[float, str]] = {
    "hdmlp-1": (1.0, "naive takes 3.6 times as long as the best policy"),
    "hdmlp-2": (0.01, "HDMLP (frequency) is the best policy, very close to the lower bound"),
    "hdmlp-3": (0.01, "HDMLP is the best policy, close to the lower bound (OpenImages)"),
    "hdmlp-3-places": (0.01, "HDMLP is the best policy, close to the lower bound (Places)"),
    "hdmlp-4": (0.1, "HDMLP approaches the lower bound; deepio_p and parallel, which leave out data, are better"),
    "hdmlp-5": (1.0, "as scenario 4"),
}
"""The fraction at which each scenario is simulated, and what section 4 of the paper says of it."""


def scenarios(scale: float) -> None:
    """Print the policies of the paper in its scenarios, in times of the lower bound."""
    policies = list(load_published("hdmlp-t1"))
    names, rows = list(SCENARIOS), dict[str, list[str]]()
    for name, (own, _) in SCENARIOS.items():
        progress(f"scenarios: {name}")
        found = {cell.policy: cell.in_turn_s for cell in cells(name, policies, scale * own)}
        bound = found["perfect"]
        for policy, seconds in found.items():
            times = "N/A" if seconds is None or bound is None else f"{seconds / bound:.3f}"
            rows.setdefault(policy, []).append(times)
    show("\nscenarios of HDMLP, by the clock of the paper: time over that of the lower bound\n")
    show(table(["policy", *names], [[policy, *times] for policy, times in rows.items()]))
    for name, (own, said) in SCENARIOS.items():
        part = "" if own == 1 else f" ({own:g} of its samples)"
        show(f"{name}{part}: the paper says: {said}")


def grid(scale: float) -> None:
    """Print the environment study: capacity of the disk and of memory, a row for each cell."""
    study, published, rows = load_grid("hdmlp-grid"), load_published("hdmlp-grid"), []
    first = study.scenes[0][0].scaled(scale)
    draws = first.draws()
    factor = published["perfect"] / float(in_turn(first, POLICIES["perfect"](first, draws), draws)[-1])
    for disk, scenes, row in zip(study.disk_mb, study.scenes, study.published, strict=True):
        for memory, scene, theirs in zip(study.memory_mb, scenes, row, strict=True):
            progress(f"hdmlp-grid: disk {disk:,} MB, memory {memory:,} MB")
            small = scene.scaled(scale)
            ours = float(in_turn(small, POLICIES["frequency"](small, draws), draws)[-1])
            rows.append([f"{disk:,}", f"{memory:,}", *_cells(ours * factor, theirs)])
    show(f"\nhdmlp-grid, policy frequency: {first.samples:,} samples, {first.epochs} epochs\n")
    show(table(["disk, MB", "memory, MB", "ours, s", "published, s", "ratio"], rows))


def brand() -> None:
    """Print the tables of Brand's own paper: counts, then times."""
    breakdown.print_all()
    epoch_times.print_all()


SECTIONS: dict[str, Callable[[float], None]] = {
    "tables": tables,
    "scenarios": scenarios,
    "grid": grid,
    "theory": lambda _: theory.print_all(),
    "brand": lambda _: brand(),
    "joader": lambda _: joader.print_all(),
}
"""The sections that can be printed; each function takes the scale."""


def _cells(ours: float | None, theirs: float | None) -> list[str]:
    ratio = "" if ours is None or theirs is None else f"{ours / theirs:.3f}"
    return ["N/A" if ours is None else _seconds(ours), _seconds(theirs), ratio]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    """Print one section, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="?", choices=[*SECTIONS, "all"], default="all")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of samples and capacity (default: 1)")
    given = parser.parse_args()
    for name, section in SECTIONS.items():
        if given.section in (name, "all"):
            section(given.scale)


if __name__ == "__main__":
    main()
