"""How long do four ranks of a node wait for shared decode workers if one rank gets the largest images?

    python -m bench.uneven_ranks --data images.brand [--samples N] [--budget N ...] [--load SHARE ...] [--out FILE]

First the seconds are measured that `DecodeImage(shorter=256)` really takes for N random images of the data set:
processor time of one thread, which a busy machine hardly changes. Then ranks train with these seconds, on a clock that
is computed. Each iteration, rank 0 gets a batch of the quarter that has most bytes, and the other ranks get batches of
the rest. A part of each batch, between none and half, is decoded already. Decode workers take pieces of a queue as they
become free. Training takes so long that all images together keep the decode workers busy for LOAD of the time.

The allotments (`bench.papers.allotment`) see the sizes, and the costs that `brand.node.decide.decoding.queues` has
learnt from the iterations before. `gap` is the fraction of iterations in which ranks could begin more than 10 % of the
training time apart, `time` the mean iteration over training, `threads` the mean number that is used. `knows` is `least`
with the seconds that are really taken. The first `WARM` iterations are not counted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import machine, show, table
from bench.papers.allotment import ALLOTMENTS, least
from bench.papers.threads import imbalance
from brand import DecodeImage
from brand import open as open_set
from brand.node.decide.decoding.allotment import Allotment, Queues
from brand.node.decide.decoding.queues import Costs, seconds_with

RANKS: Final = 4
BATCH: Final = 256
PIECE: Final = 4
"""Samples that a decode worker takes at a time."""
WARM: Final = 50
SHOWN: Final = ("equal", "by requests", "algorithm 1", "greedy", "least")


@dataclass(frozen=True, slots=True)
class Pictures:
    """Sizes and measured decode seconds of some images."""

    sizes: NDArray[np.int64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run under an allotment."""

    gap: float
    time: float
    threads: float


def measured(folder: Path, samples: int) -> Pictures:
    """Decode some images, one after the other, and measure them."""
    data, prepare = open_set(folder), DecodeImage(shorter=256)
    chosen = np.random.default_rng(0).permutation(len(data))[:samples]
    sizes, seconds = [], []
    for index in chosen.tolist():
        content = data.sample(index)["image"]
        start = time.thread_time()
        prepare(content)
        seconds.append(time.thread_time() - start)
        sizes.append(len(content))
    return Pictures(np.array(sizes), np.array(seconds))


def batches(pictures: Pictures, iterations: int) -> list[list[NDArray[np.int64]]]:
    """Return the images that are still to be decoded for each rank, [iteration][rank]."""
    random = np.random.default_rng(1)
    by_size = np.argsort(pictures.sizes, kind="stable")
    large = len(by_size) - len(by_size) // RANKS
    pools = [by_size[large:], *[by_size[:large]] * (RANKS - 1)]
    return [
        [random.choice(pool, BATCH - random.integers(0, BATCH // 2 + 1), replace=False) for pool in pools]
        for _ in range(iterations)
    ]


def pieces_of(seconds: NDArray[np.float64]) -> list[float]:
    """Return the seconds of each piece."""
    sums: list[float] = np.add.reduceat(seconds, np.arange(0, len(seconds), PIECE)).tolist()
    return sums


def done_s(pieces: Sequence[float], threads: int) -> float:
    """Return the second at which `threads` decode workers have done all pieces.

    Each worker takes the next piece when it becomes free.
    """
    free = [0.0] * threads
    for piece in pieces:
        heapq.heappush(free, heapq.heappop(free) + piece)
    return max(free)


def queues_of(seconds: Sequence[NDArray[np.float64]], budget: int, train_s: float) -> Queues:
    """Return one iteration, from known or estimated seconds of each image."""
    pieces = [pieces_of(each) for each in seconds]
    total_s, longest_s = np.array([sum(each) for each in pieces]), np.array([max(each) for each in pieces])
    requests = np.array([len(each) for each in seconds], np.float64)
    return Queues(seconds_with(total_s, longest_s, budget)[None], requests[None], train_s)


def run(
    pictures: Pictures,
    work: Sequence[Sequence[NDArray[np.int64]]],
    budget: int,
    train_s: float,
    ways: dict[str, Callable[[Queues], Allotment]],
) -> dict[str, Figures]:
    """Train; all ways see the same batches, and the costs that were learnt from them."""
    costs = Costs()
    ready: dict[str, list[list[float]]] = {name: [] for name in ways}
    used: dict[str, list[int]] = {name: [] for name in ways}
    for number, ranks in enumerate(work):
        predicted = queues_of([costs.predict(pictures.sizes[chosen]) for chosen in ranks], budget, train_s)
        true = queues_of([pictures.seconds[chosen] for chosen in ranks], budget, train_s)
        for chosen in ranks:
            for first in range(0, len(chosen), PIECE):
                piece = chosen[first : first + PIECE]
                costs.observe(pictures.sizes[piece], pictures.seconds[piece])
        if number < WARM:
            continue
        pieces = [pieces_of(pictures.seconds[chosen]) for chosen in ranks]
        for name, allot in ways.items():
            threads = allot(true if name == "knows" else predicted)[0].tolist()
            used[name].append(sum(threads))
            ready[name].append([done_s(each, k) for each, k in zip(pieces, threads, strict=True)])
    found = {}
    for name, times in ready.items():
        ends = np.array(times)
        mean = float(np.maximum(ends.max(axis=1), train_s).mean() / train_s)
        found[name] = Figures(imbalance(ends, train_s), mean, float(np.mean(used[name])))
    return found


def main() -> None:
    """Measure the images, then compute all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set with a field `image`")
    parser.add_argument("--samples", type=int, default=6000, help="images that are measured (%(default)s)")
    parser.add_argument("--iterations", type=int, default=300, help="iterations of a run (%(default)s)")
    parser.add_argument("--budget", type=int, nargs="+", default=[8, 16], help="decode workers (%(default)s)")
    parser.add_argument(
        "--load", type=float, nargs="+", default=[0.5, 0.65, 0.8], help="load of the workers (%(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    pictures = measured(options.data, options.samples)
    work = batches(pictures, options.iterations + WARM)
    busy_s = np.mean([sum(float(pictures.seconds[chosen].sum()) for chosen in ranks) for ranks in work])
    first = np.mean([float(pictures.seconds[ranks[0]].sum()) for ranks in work])
    show(f"{1e3 * pictures.seconds.mean():.2f} ms an image; rank 0 has {100 * first / busy_s:.0f} % of the work\n")
    ways = {**{name: ALLOTMENTS[name] for name in SHOWN}, "knows": least}
    rows, facts = [], []
    for budget in options.budget:
        for load in options.load:
            train_s = float(busy_s / budget / load)
            found = run(pictures, work, budget, train_s, ways)
            cells = [f"{100 * one.gap:.0f} %, {one.time:.2f}, {one.threads:.1f}" for one in found.values()]
            rows.append([str(budget), f"{load:.2f}", f"{1e3 * train_s:.0f} ms", *cells])
            runs: dict[str, Any] = {name: asdict(one) for name, one in found.items()}
            facts.append({"budget": budget, "load": load, "train_s": train_s, "runs": runs})
    show(table(["decode workers", "load", "training", *ways], rows))
    show("\ngap, time, threads")
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine(), "runs": facts}, indent=1))


if __name__ == "__main__":
    main()
