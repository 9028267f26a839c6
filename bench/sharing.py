"""How much faster are jobs that train on one data set of images at the same time, if they share a data server?

    python -m bench.sharing --data images.brand --images FOLDER [--scene SCENE ...] [--jobs N ...] [--arms ARM ...]
                            [--seconds 25] [--repeat 3] [--decoded-memory 1GB] [--rate 100] [--out FILE]

Each job is a process of its own. It decodes images to a shorter side of 256 pixels, and cuts 224 x 224 pixels out of
each at random: the decoding is the same for all jobs, the cut is each job's own. The arms take turns.

    plain     a DataLoader with one worker process for each job, over the folder of images
    apart     a data server for each job, and each job decodes for itself
    reading   one data server; each job decodes for itself
    shared    one data server, which decodes once for all jobs (`--decoded-memory`)

    together    as many jobs as `--jobs` says begin at the same time (several numbers: one row each)
    quarters    four jobs begin a quarter of an epoch apart
    half late   two jobs, the second begins when the first has drawn half of an epoch
    half speed  two jobs, the second trains half as fast as the first, which draws at most `--rate` images a second;
                measured from the middle of the first job's epoch on

Training takes no time except in `half speed`, so the processors limit the rates, and the rates show the gain; in `half
speed` sleeps limit the rates, and the processor time shows the gain. Columns, medians of the turns: images a second of
all jobs together, of the slowest job, and for each second of processor time of jobs and servers; samples decoded by the
server for each draw, and bytes read for each byte drawn; the ratio of images a second, and of images for each processor
second, to the first arm within each turn; and how much longer an epoch takes than with one job alone, if `--jobs` has
1, too. A span of `--seconds` is measured once all jobs draw. Late jobs need a data set whose epoch takes a minute or
two: `brand convert` a part of the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

from bench.harness import machine, progress, show, table
from bench.sharing_jobs import BATCH, Job, over, serving, side_by_side, wait_for
from brand import BrandDataset

ARMS: Final = ("plain", "apart", "reading", "shared")
LATE: Final = {"quarters": (0, 0.25, 0.5, 0.75), "half late": (0, 0.5), "half speed": (0, 0)}
"""The time at which each job of a scene begins, in epochs of the first job."""


def jobs_of(scene: str, count: int, arm: str, servers: Sequence[str], given: argparse.Namespace) -> list[Job]:
    """Return the jobs of a scene."""
    protocols: dict[str, Literal["stripes", "shared"] | None] = {"plain": None, "apart": "stripes"}
    order = protocols.get(arm, "shared")
    step_s = BATCH / given.rate if scene == "half speed" else 0.0
    return [
        Job(given.data, order, server, given.images, step_s=(1 + number) * step_s, late=late)
        for number, (late, server) in enumerate(zip(LATE.get(scene, count * (0,)), servers, strict=True))
    ]


def turn(scene: str, count: int, arm: str, given: argparse.Namespace) -> dict[str, float]:
    """Run all jobs of an arm."""
    with ExitStack() as stack:
        servers = count * [""]
        if arm == "apart":
            servers = [stack.enter_context(serving(given.data)) for _ in range(count)]
        elif arm != "plain":
            prepared = given.decoded_memory if arm == "shared" else None
            servers = count * [stack.enter_context(serving(given.data, prepared))]
        jobs = jobs_of(scene, count, arm, servers, given)
        samples = len(BrandDataset(given.data))
        running = stack.enter_context(side_by_side(jobs, samples))
        if scene == "half speed":  # by then, the slower job has lost the other and joined it again
            wait_for(running[0], samples / 2)
        span = over(given.seconds, running)
    return {
        "images_per_s": sum(span.rates),
        "slowest": min(span.rates),
        "per_cpu_s": sum(span.rates) * given.seconds / span.cpu_s,
        "prepared_per_draw": span.made,
        "read_per_byte": span.read,
    }


def rows_of(found: dict[tuple[str, int, str], list[dict[str, float]]]) -> list[list[str]]:
    """Return a row for each scene, number of jobs and arm."""
    rows = []
    for (scene, count, arm), turns in found.items():
        first = next(theirs for (a, b, _), theirs in found.items() if (a, b) == (scene, count))
        middle = {name: statistics.median(each[name] for each in turns) for name in turns[0]}
        ratios = [
            statistics.median(mine[name] / theirs[name] for mine, theirs in zip(turns, first, strict=True))
            for name in ("images_per_s", "per_cpu_s")
        ]
        alone = found.get((scene, 1, arm))
        longer = (
            statistics.median(a["slowest"] / b["slowest"] for a, b in zip(alone, turns, strict=True)) if alone else 0
        )
        numbers = [f"{value:.2f}" for value in (*middle.values(), *ratios)]
        rows.append([scene, str(count), arm, *numbers, f"{longer:.2f}" if alone else ""])
    return rows


def main() -> None:
    """Run the arms and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="a data set of images")
    parser.add_argument("--images", required=True, help="the folder of the same images")
    parser.add_argument("--scene", nargs="+", choices=["together", *LATE], default=["together"])
    parser.add_argument("--jobs", type=int, nargs="+", default=[2], help="numbers of jobs of the scene `together`")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--decoded-memory", default="1GB", help="memory for decoded images")
    parser.add_argument("--rate", type=float, default=100, help="images a second of the faster job in `half speed`")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    scenes = [(scene, n) for scene in given.scene for n in ([len(LATE[scene])] if scene in LATE else given.jobs)]
    found: dict[tuple[str, int, str], list[dict[str, float]]] = {
        (scene, count, arm): [] for scene, count in scenes for arm in given.arms
    }
    for _ in range(given.repeat):
        for (scene, count, arm), turns in found.items():
            turns.append(turn(scene, count, arm, given))
            progress(f"{scene}, {count} jobs, {arm}: {turns[-1]['images_per_s']:.0f} images/s")
    heads = ["scene", "jobs", "arm", "images/s, all jobs", "slowest job", "images/CPU s", "prepared/draw", "read/byte"]
    show(table([*heads, f"/ {given.arms[0]}", "of CPU", "epoch / 1 job"], rows_of(found)))
    if given.out:
        turns_of: list[dict[str, Any]] = [
            {"scene": scene, "jobs": count, "arm": arm, "turns": turns} for (scene, count, arm), turns in found.items()
        ]
        given.out.write_text(json.dumps({"machine": machine(), "found": turns_of}, indent=1))


if __name__ == "__main__":
    main()
