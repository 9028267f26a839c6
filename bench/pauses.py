"""How long does the server's loop pause while it plans an epoch of 13 million samples during a training that draws?

    python -m bench.pauses --work SCRATCH [--samples 13000000] [--out bench/results/pauses.json]

One job draws batches of 1,024 records. Another process asks the server for its statistics every few milliseconds: an
answer is late if the loop was busy with other work. After a while a second job, with another seed, begins its first
epoch; its plan is ready when its first batch arrives. The data set is that of `server_memory`.

"before" is the time in which only the first job draws, "beside" the time until the second job's first batch, and
"after" some seconds later. The two processes, the server and its threads are more than the processors, so the pauses
that the machine itself adds are in "before".
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.server_memory import make
from brand import BrandDataset, BrandLoader, BrandSampler

BATCH: Final = 1024
EVERY_S: Final = 0.002
PHASE_S: Final = 10.0
SAMPLES: Final = 13_000_000
GOALS: Final = {"plan_s": 4.0, "pause_s": 0.02}

_processes = multiprocessing.get_context("spawn")


def draw(folder: Path, seed: int, pipe: Connection) -> None:
    """Draw until told to end. Send the seconds until the first batch, and at the end the number of samples."""
    data = BrandDataset(folder, memory=0.1, fields=("label",))
    sampler, count = BrandSampler(data, seed=seed), 0
    loader = BrandLoader(data, BATCH, sampler=sampler)
    began_s = time.monotonic()
    while not pipe.poll():
        for _ in loader:
            if not count:
                pipe.send(time.monotonic() - began_s)
            count += BATCH
            if pipe.poll():
                break
    pipe.send(count)


def ask(folder: Path, pipe: Connection) -> None:
    """Ask for statistics until told to end. Send the time of each question, and how long its answer took."""
    data = BrandDataset(folder, memory=0.1, fields=("label",))
    next(iter(BrandLoader(data, 16, sampler=BrandSampler(data, seed=0))))
    pipe.send("ready")
    found = []
    while not pipe.poll():
        asked_s = time.monotonic()
        data.stats()
        found.append((asked_s, time.monotonic() - asked_s))
        time.sleep(EVERY_S)
    pipe.send(found)


def start(work: Callable[..., None], *args: Any) -> tuple[Any, Connection]:
    """Start a process that does this, and return it with a pipe to it."""
    here, there = _processes.Pipe()
    process = _processes.Process(target=work, args=(*args, there), daemon=True)
    process.start()
    return process, here


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.work / f"records-{options.samples}.brand"
    options.work.mkdir(parents=True, exist_ok=True)
    make(folder, options.samples)
    jobs = [start(draw, folder, 0)]
    results: dict[str, Any] = {"first_plan_s": jobs[0][1].recv()}
    jobs.append(start(ask, folder))
    jobs[1][1].recv()
    marks = [time.monotonic()]
    time.sleep(PHASE_S)
    marks.append(time.monotonic())
    jobs.append(start(draw, folder, 1))
    results["second_plan_s"] = jobs[2][1].recv()
    marks.append(time.monotonic())
    time.sleep(PHASE_S)
    marks.append(time.monotonic())
    for _, pipe in jobs:
        pipe.send("end")
    results["drawn"], asked, _ = (pipe.recv() for _, pipe in jobs)
    for process, _ in jobs:
        process.join()
    at_s, took_s = np.array(asked).T
    for name, first_s, last_s in zip(("before", "beside", "after"), marks, marks[1:], strict=False):
        took = took_s[(at_s >= first_s) & (at_s < last_s)] * 1e3
        some = {"longest": took.max(), "p99": np.quantile(took, 0.99), "p50": np.median(took), "answers": len(took)}
        results[name] = {title: float(value) for title, value in some.items()}
        print(f"{name}: " + ", ".join(f"{title} {value:,.1f}" for title, value in some.items()) + " (ms)")
    first, second = results["first_plan_s"], results["second_plan_s"]
    print(f"first batch: {first:.1f} s alone, {second:.1f} s beside the other job (goal: {GOALS['plan_s']:.0f} s)")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
