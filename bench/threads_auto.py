"""How fast is `BrandLoader(num_workers="auto")`, and how much does it cost, against fixed numbers of threads?

    python -m bench.threads_auto --data images.brand [--loops 0 300 100] [--turns N] [--images N] [--out FILE]

One process trains on images that are decoded to 224 x 224 pixels: a loop that sleeps for each batch as long as
training it would take. Loops of several speeds (images a second; 0: it takes batches as fast as they arrive) meet
loaders with 1, 2, 4, ... threads up to the processors, and with "auto". The loaders of a loop take turns within the
run, so that a slow minute of the machine hits all alike, and "auto" remembers what it has learnt. At most `AHEAD`
batches are in progress, so that a loader is soon as fast as the loop. `images/s` counts from the first batch of a turn;
`CPU ms` are those of the training process for each image that was decoded, trained or not; `waits` is the fraction of
the time after the first batch in which the loop waited. All are medians of the turns without the first, in which "auto"
learns; the first is a column of its own. `/ best` and `/ all` compare turn by turn: the speed with the best fixed
number, the CPU ms with as many threads as processors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import machine, progress, show, table
from bench.system import cpu_s
from brand import BrandDataset, BrandLoader, DecodeImage

BATCH = 32
SIDE = 224
AHEAD = 8


def turn(loader: BrandLoader, epoch: int, rate: float, images: int) -> dict[str, float]:
    """Train on `images` images, `rate` of them a second."""
    loader.set_epoch(epoch)
    batches = iter(loader)
    before = loader.stages.totals()
    cpu = cpu_s()
    next(batches)
    waited = loader.stages.totals()["loop_waits"]
    started, done = time.perf_counter(), 0
    for _ in batches:
        done += BATCH
        if rate:
            time.sleep(BATCH / rate)
        if done >= images:
            break
    seconds, waits = time.perf_counter() - started, loader.stages.totals()["loop_waits"] - waited
    threads = loader._instruments.pace.threads
    batches.close()  # type: ignore[attr-defined]
    decoded = loader.stages.totals()["decoded"] - before["decoded"]
    return {
        "images_per_s": done / seconds,
        "cpu_ms": 1000 * (cpu_s() - cpu) / decoded,
        "waits": waits / seconds,
        "threads": threads,
    }


def take_turns(options: argparse.Namespace, rate: float) -> dict[str, list[dict[str, float]]]:
    """Run all loaders in turns, for one loop; the order of the loaders changes with each turn."""
    data = BrandDataset(
        options.data, memory=options.memory, fields=("image", "label"), decode={"image": DecodeImage(size=(SIDE, SIDE))}
    )
    auto = BrandLoader(data, BATCH, num_workers="auto", prefetch_batches=AHEAD)
    numbers = [1 << power for power in range(auto.num_workers.bit_length()) if 1 << power < auto.num_workers] + [
        auto.num_workers
    ]
    loaders = {
        **{str(number): BrandLoader(data, BATCH, num_workers=number, prefetch_batches=AHEAD) for number in numbers},
        "auto": auto,
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
    random = np.random.default_rng(0)
    epoch = 0
    for number in range(options.turns + 1):
        progress(f"loop {rate}, turn {number} of {options.turns}")
        for name in random.permutation(list(loaders)).tolist():
            found[name].append(turn(loaders[name], epoch, rate, options.images))
            epoch += 1
    return found


def rows_of(rate: float, found: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Return one line for each loader."""

    def middle(runs: Sequence[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs[1:])

    def ratio(runs: Sequence[dict[str, float]], others: Sequence[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] / other[key] for run, other in zip(runs[1:], others[1:], strict=True))

    fixed = {name: runs for name, runs in found.items() if name != "auto"}
    best = max(fixed, key=lambda name: middle(fixed[name], "images_per_s"))
    rows, most = [], list(fixed)[-1]
    for name, runs in found.items():
        speeds = [run["images_per_s"] for run in runs[1:]]
        rows.append(
            [
                f"{rate:.0f}/s" if rate else "none",
                name,
                f"{middle(runs, 'images_per_s'):.0f} ({min(speeds):.0f}-{max(speeds):.0f})",
                f"{ratio(runs, found[best], 'images_per_s'):.3f}",
                f"{middle(runs, 'cpu_ms'):.2f}",
                f"{ratio(runs, found[most], 'cpu_ms'):.3f}",
                f"{100 * middle(runs, 'waits'):.1f} %",
                f"{middle(runs, 'threads'):.0f}",
                f"{runs[0]['images_per_s']:.0f}",
            ]
        )
    return rows


def main() -> None:
    """Measure all loops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set with fields `image` and `label`")
    parser.add_argument("--memory", default="1GB", help="memory of the data server (%(default)s)")
    parser.add_argument(
        "--loops", type=float, nargs="+", default=[0, 300, 100], help="speeds of the loops, images/s (%(default)s)"
    )
    parser.add_argument("--turns", type=int, default=7, help="turns after the first (%(default)s)")
    parser.add_argument("--images", type=int, default=1280, help="images in a turn (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    facts: dict[str, Any] = {"machine": machine(), "loops": {}}
    rows: list[list[str]] = []
    for rate in options.loops:
        facts["loops"][rate] = take_turns(options, rate)
        rows += rows_of(rate, facts["loops"][rate])
    show(table(["loop", "threads", "images/s", "/ best", "CPU ms", "/ all", "waits", "at the end", "first turn"], rows))
    if options.out is not None:
        options.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
