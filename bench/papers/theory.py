"""Do the models of access counts, reuse distances, hits and loading threads give the figures of the papers?

`python -m bench.papers theory` prints them. A row has our figure, the figure that a paper prints, and that of this
project's *first model* of the same thing, which was written from the paper's text before this code. Lobster publishes
neither its throughput tables nor its preprocessing models. So its threads are compared on a synthetic node, whose
numbers were chosen so that the first model's table comes out again: two programs agree there, and nothing is said of
Lobster's own node. The tests in `tests/papers` check these figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Final

from bench.harness import show, table
from bench.papers.allotment import ALLOTMENTS, least
from bench.papers.frequency import counted_above, draw_counts, expected_above, from_other_nodes, lemma_1, node_draws
from bench.papers.hits import RULES
from bench.papers.reuse import reuse_distances, share_longer
from bench.papers.threads import Outcome, ThreadScene, outcome
from bench.papers.threads import algorithm_1_as_printed as as_printed
from brand.node.decide.decoding.allotment import binary_search


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, with those that it is compared with."""

    what: str
    ours: float
    printed: float | None = None
    where: str = ""
    """The paper and section that print a figure."""
    first: float | None = None
    """The figure of the first model."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Hit ratios of one rule, in %: of the first model, and as Lobster prints it."""

    first: float
    printed: float | None = None


HITS: Final = {
    "lru": Hits(24.0, 24.5),
    "random": Hits(24.5),
    "static": Hits(28.5, 32.6),
    "frequency": Hits(38.0, 48.9),
    "frequency, prefetched": Hits(42.8, 48.9),
    "next use": Hits(59.3, 63.2),
    "belady": Hits(59.2),
    "2I - h": Hits(12.1),
}
"""Demand hits of one of eight nodes that read for themselves; each caches 29.6 %, 50 epochs.

Lobster names systems, not rules: PyTorch (lru), DALI (static), NoPFS (frequency) and itself (next use).
"""
STEADY: Final = Hits(63.9, 63.2)
"""Demand hits of `next use`, as in `HITS`, once the caches are full."""
_HDMLP: Final = "HDMLP 3.1"
HELD: Final = 0.296
"""Lobster's fraction of the data in a node's cache: 40 of 135 GB."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The first model's figures of one allotment in one scene."""

    time: float
    """Mean duration of an iteration over that of training."""
    imbalance: float
    """Imbalanced iterations, in % of all iterations."""
    threads: float | None = None


SLACKER: Final = "least, slack 0.2"
THREADS: Final[dict[ThreadScene, dict[str, Threads]]] = {
    ThreadScene(local=0.3, remote=0.4, budget=16): {
        "equal": Threads(1.89, 99, 16),
        "by requests": Threads(1.82, 99),
        "algorithm 1": Threads(1.35, 89, 15.6),
        "greedy": Threads(1.33, 80),
        "least": Threads(1.33, 80, 16),
    },
    ThreadScene(local=0.3, remote=0.4, budget=32): {
        "equal": Threads(1.21, 66, 32),
        "by requests": Threads(1.13, 55),
        "algorithm 1": Threads(1.10, 40, 21.2),
        "greedy": Threads(1.00, 1, 31.9),
        "least": Threads(1.00, 1, 25.4),
    },
    ThreadScene(local=0.5, remote=0.3, budget=32): {
        "equal": Threads(1.10, 38),
        "by requests": Threads(1.02, 10),
        "algorithm 1": Threads(1.09, 42, 15.5),
        "greedy": Threads(1.00, 0),
        "least": Threads(1.00, 0, 18.7),
    },
    ThreadScene(local=0.3, remote=0.4, budget=32, prediction_error=0.2): {
        "equal": Threads(1.21, 66),
        "by requests": Threads(1.13, 55),
        "algorithm 1": Threads(1.21, 77),
        "greedy": Threads(1.04, 15),
        "least": Threads(1.07, 28, 25.9),
        SLACKER: Threads(1.04, 15, 29.8),
    },
}
"""Lobster's eight GPUs in four scenes."""


DALI: Final = ("static", "equal")
"""The rule of its cache, and its allotment of threads."""
ABLATION: Final = {
    "threads": ("static", "algorithm 1"),
    "eviction": ("next use", "equal"),
    "both": ("next use", "algorithm 1"),
    "both, `least`": ("next use", "least"),
}
"""Lobster's variants of section 5.6, and both parts with this project's allotment."""
TRAIN_S: Final = (0.05, 0.1, 0.2)
"""Seconds of training in an iteration: of a small model, of one that trains as fast as its samples come, and of a large
one. The paper does not give the seconds of its models."""
NO_REMOTE: Final = 1e-3
"""Fraction of samples in other nodes' caches. The paper's ablation has one node; `ThreadScene` needs more than none."""


@cache
def hit_figures(nodes: int) -> tuple[dict[str, float], float]:
    """Return the demand hit ratio of every rule, and of `next use` after ten epochs, 0 to 1; see `HITS`."""
    samples = 2_500 * nodes
    draws = node_draws(samples, nodes, 50, seed=0)
    found = {rule: hits(draws, int(HELD * samples)) for rule, hits in RULES.items()}
    return {rule: float(hit.mean()) for rule, hit in found.items()}, float(found["next use"][10:].mean())


@cache
def thread_figures(scene: ThreadScene) -> dict[str, Outcome]:
    """Return the outcome of every allotment in a scene; see `THREADS`."""
    seconds, queues = scene.draw()
    allotted = {name: allot(queues) for name, allot in ALLOTMENTS.items()}
    allotted[SLACKER] = least(queues, slack=0.2)
    return {name: outcome(seconds, threads, scene.train_s) for name, threads in allotted.items()}


@cache
def ablation(train_s: float) -> dict[str, float]:
    """Return how many times as fast as DALI's arms each variant of `ABLATION` is (Lobster, section 5.6, figure 11)."""
    found, _ = hit_figures(nodes=8)

    def time(rule: str, allotment: str) -> float:
        seconds, queues = ThreadScene(local=found[rule], remote=NO_REMOTE, train_s=train_s).draw()
        return outcome(seconds, ALLOTMENTS[allotment](queues), train_s).time

    return {name: time(*DALI) / time(*variant) for name, variant in ABLATION.items()}


def print_frequency() -> None:
    """Print how many samples a node draws more than 1.1 times as often as the mean."""
    setting, delta = (10_000, 4, 1000), Fraction(1, 10)
    counted = counted_above(*setting, delta, seed=0)
    rows = [
        Row("drawn more than 275 times, expected", expected_above(*setting, delta), 323, _HDMLP),
        Row("drawn 275 times or more, expected", 10_000 * float(draw_counts(4, 1000)[275:].sum()), first=378.2),
        *(Row(f"drawn more than 275 times, node {node}", float(n), 329, _HDMLP) for node, n in enumerate(counted)),
    ]
    _print("Access counts: 10,000 samples, 4 nodes, 1,000 epochs", rows)


def print_homes() -> None:
    """Print how many draws come from another node if each sample has one copy, where it is drawn most often."""
    clusters = [(nodes, epochs) for nodes in (2, 3, 8) for epochs in (10, 90)]
    rows = [
        Row(f"{nodes} nodes, {epochs} epochs: from another node, %", 100 * from_other_nodes(20_000, nodes, epochs, 0))
        for nodes, epochs in clusters
    ]
    _print("One copy of each sample, at the node that draws it most: 20,000 samples", rows)


def print_lemma() -> None:
    """Print for how many numbers of nodes, epochs and draws Lemma 1 of HDMLP holds."""
    cases, wrong = lemma_1(most_nodes=6, most_epochs=24)
    show(f"Lemma 1 of HDMLP, both bounds, up to 6 nodes and 24 epochs: {cases:,} cases, {wrong} of them wrong\n")


def print_reuse() -> None:
    """Print the fraction of a node's draws that it repeats after more than 1,000 iterations."""
    rows = [
        Row("in a run without end, %", 100 * share_longer(1000, 8, 562), first=84.48),
        Row("in 30 epochs, %", 100 * share_longer(1000, 8, 562, 30), 80, "Lobster 3", first=79.8),
        Row("in 50 epochs, %", 100 * share_longer(1000, 8, 562, 50), first=82.0),
    ]
    counted = reuse_distances(node_draws(562 * 64, 8, 30, seed=0), 562)
    rows.append(Row("in 30 epochs, counted, %", 100 * float((counted > 1000).mean()), 80, "Lobster 3"))
    _print("Reuse distances above 1,000 iterations: 8 nodes, 562 iterations an epoch", rows)


def print_hits() -> None:
    """Print the demand hits of eight nodes that read for themselves, and of one node that draws everything."""
    found, steady = hit_figures(nodes=8)
    figures = [(rule, found[rule], hits) for rule, hits in HITS.items()]
    rows = []
    for rule, ours, hits in [*figures, ("next use, after ten epochs", steady, STEADY)]:
        where = "" if hits.printed is None else "Lobster 5.5"
        rows.append(Row(f"{rule}, %", 100 * ours, hits.printed, where, hits.first))
    _print("Demand hits: 8 nodes that read for themselves, 29.6 % each, 50 epochs", rows)
    found, _ = hit_figures(nodes=1)
    rows = [Row(f"{rule}, %", 100 * found[rule], first=4.8 if rule == "lru" else 29.0) for rule in ONE_NODE]
    _print("Demand hits: one node that draws every sample in each epoch", rows)


ONE_NODE: Final = ("lru", "static", "belady")
"""The rules that the first model also has on one node."""


def print_threads() -> None:
    """Print the loading threads of eight GPUs: time, imbalance, threads in use; then Algorithm 1's steps.

    Its form as printed in the paper follows.
    """
    for scene, figures in THREADS.items():
        ours = thread_figures(scene)
        rows = []
        for name, figure in figures.items():
            rows.append(Row(f"{name}: iteration / training", ours[name].time, first=figure.time))
            rows.append(Row(f"{name}: imbalanced, %", 100 * ours[name].imbalance, first=figure.imbalance))
            if figure.threads is not None:
                rows.append(Row(f"{name}: threads", ours[name].threads, first=figure.threads))
        wrong = f", prediction off by {scene.prediction_error:.0%}" if scene.prediction_error else ""
        _print(f"Threads: {scene.local} local, {scene.remote} remote, {scene.budget} threads{wrong}", rows)
    _, queues = ThreadScene().draw()
    _, steps = binary_search(queues)
    rows = [
        Row("steps of its search, mean", float(steps.mean()), first=2.5),
        Row("steps of its search, most", float(steps.max()), first=6),
    ]
    _print("Algorithm 1, repaired: 0.3 local, 0.4 remote, 32 threads", rows)
    printed = as_printed(queues)
    none = (printed == 0).any(axis=1).mean()
    show(f"As printed, it leaves a GPU without any thread in {none:.0%} of the iterations.\n")


def print_ablation() -> None:
    """Print how much faster Lobster's parts are alone and together, by the duration of training."""
    printed = {"threads": 1.3, "eviction": 1.15}
    for train_s in TRAIN_S:
        rows = [
            Row(f"{name}, times as fast", ours, printed.get(name), "Lobster 5.6" if name in printed else "")
            for name, ours in ablation(train_s).items()
        ]
        _print(f"Ablation: times as fast as DALI's rules, {1000 * train_s:.0f} ms of training an iteration", rows)


def _print(title: str, rows: Iterable[Row]) -> None:
    cells = [
        (row.what, f"{row.ours:.2f}", *_beside(row.ours, row.printed), row.where, *_beside(row.ours, row.first))
        for row in rows
    ]
    heads = ("figure", "ours", "printed", "difference", "where", "first model", "difference")
    show(f"{title}\n\n{table(heads, cells)}\n")


def _beside(ours: float, theirs: float | None) -> tuple[str, str]:
    return ("", "") if theirs is None else (f"{theirs:g}", f"{ours - theirs:+.2f}")


def print_all() -> None:
    """Print all tables."""
    for section in (print_frequency, print_homes, print_lemma, print_reuse, print_hits, print_threads, print_ablation):
        section()
