"""Does a job that shares a data server keep its own pace, and how much do the jobs read? Nothing is decoded.

    python -m bench.sharing_pace --data images.brand [--question QUESTION ...] [--seconds 20] [--repeat 3]
                                 [--step 0.05] [--lab LAB] [--out FILE]

Each job is a process of its own that takes batches of 64 files; training is a sleep. The questions, and their tables:

    sleeps    Four jobs train 1, 2, 3 and 4 times `--step` for a batch. Samples a second of each next to the other jobs,
              and the ratio to its samples a second alone on the same server.
    killed    Of two jobs that train `--step` for a batch, the second half an epoch late, one is killed with SIGKILL.
              Samples a second of the other in the 5 s before and the 5 s after, and their ratio. The job that is killed
              is the first, which sets the pace, and then the second.
    alone     One job without others, which trains nothing, with `stripes` and with `shared`: samples a second.
    reads     Two jobs that train nothing, together and half an epoch late. Bytes that the server reads for each byte
              drawn, and samples a second of both; with `--lab` the server reads a network storage (120 MB/s, 400
              operations a second), has memory for a quarter of the data and `BESIDE_BYTES` in addition, the page cache
              included, and the table has the bytes that the kernel counted.

Medians of the turns. `reads` needs a data set whose epoch takes a minute or so if it is read through `--lab`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from bench.harness import machine, progress, show, table
from bench.sharing_jobs import Job, over, serving, side_by_side
from brand import BrandDataset

AFTER_S: Final = 5.0
MEMORY: Final = 0.25
"""The fraction of the data for which a server has memory."""
BESIDE_BYTES: Final = 256 << 20
"""Memory of a server in the lab in addition to that: for its program and for the rest of the page cache."""
PROTOCOLS: Final[tuple[Literal["stripes", "shared"], ...]] = ("stripes", "shared")
Figures = dict[str, float]


def sleeps(given: argparse.Namespace) -> Figures:
    """Measure the rates of four jobs, next to each other over alone."""
    with serving(given.data) as server:
        jobs = [Job(given.data, "shared", server, decode=False, step_s=times * given.step) for times in (1, 2, 3, 4)]
        alone = []
        for job in jobs:
            with side_by_side([job], 0) as running:
                alone += over(given.seconds, running).rates
        with side_by_side(jobs, 0) as running:
            beside = over(given.seconds, running).rates
    found = {f"job {n}, samples/s": rate for n, rate in enumerate(beside, 1)}
    return found | {f"job {n} / alone": mine / its for n, (mine, its) in enumerate(zip(beside, alone, strict=True), 1)}


def killed(given: argparse.Namespace) -> Figures:
    """Measure the rate of one job before and after another job is killed."""
    found: Figures = {}
    for number, name in enumerate(("pacemaker killed", "follower killed")):
        with serving(given.data) as server:
            jobs = [Job(given.data, "shared", server, decode=False, step_s=given.step, late=late) for late in (0, 0.5)]
            with side_by_side(jobs, len(BrandDataset(given.data))) as running:
                time.sleep(2 * AFTER_S)
                at_s = time.monotonic()
                running[number].kill()
                time.sleep(AFTER_S)
                other = running[1 - number]
                other.wait_until(at_s + AFTER_S)
                before, after = other.rate(at_s - AFTER_S, at_s), other.rate(at_s, at_s + AFTER_S)
        found |= {f"{name}: samples/s after": after, f"{name}: after / before": after / before}
    return found


def alone(given: argparse.Namespace) -> Figures:
    """Measure one job, in either order."""
    rates = dict[str, float]()
    for order in PROTOCOLS:
        with (
            serving(given.data) as server,
            side_by_side([Job(given.data, order, server, decode=False)], 0) as running,
        ):
            rates[order] = over(given.seconds, running).rates[0]
    return {"stripes, samples/s": rates["stripes"], "shared / stripes": rates["shared"] / rates["stripes"]}


def reads(given: argparse.Namespace) -> Figures:
    """Measure the reads of two jobs."""
    found: Figures = {}
    for name, late in (("together", 0.0), ("half late", 0.5)):
        with ExitStack() as stack:
            report = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "lab.json"
            data_set = BrandDataset(given.data)
            most = int(MEMORY * data_set._source.mean_bytes * len(data_set)) + BESIDE_BYTES
            lab = [*shlex.split(given.lab), "--profile", "nas", "--cold", "--memory", str(most), "--path", given.data]
            lab += ["--json", str(report), "--"]
            drawn = 0
            with serving(given.data, memory=MEMORY, within=lab if given.lab else ()) as server:
                jobs = [Job(given.data, "shared", server, decode=False, late=each) for each in (0, late)]
                with side_by_side(jobs, len(data_set)) as running:
                    span = over(given.seconds, running)
                    drawn = sum(each.drawn for each in running)
            found |= {f"{name}: read/byte": span.read, f"{name}: samples/s": sum(span.rates)}
            if given.lab:  # counts from the first draw on, also before the second job
                counted = json.loads(report.read_text())["read_bytes"]
                found[f"{name}: read/byte, kernel, all the time"] = counted / (drawn * data_set._source.mean_bytes)
    return found


QUESTIONS: Final[dict[str, Callable[[argparse.Namespace], Figures]]] = {
    "sleeps": sleeps,
    "killed": killed,
    "alone": alone,
    "reads": reads,
}


def main() -> None:
    """Ask the questions and print a table for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="a data set with the fields image and label")
    parser.add_argument("--question", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--step", type=float, default=0.05, help="seconds of training for a batch")
    parser.add_argument("--lab", default="", help="the command that slows storage, such as 'python -m bench.lab'")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[Figures]] = {question: [] for question in given.question}
    for _ in range(given.repeat):
        for question, turns in found.items():
            turns.append(QUESTIONS[question](given))
            progress(f"{question}: {turns[-1]}")
    for question, turns in found.items():
        rows = [[name, f"{statistics.median(each[name] for each in turns):.3f}"] for name in turns[0]]
        show(f"\n{table([question, 'median'], rows)}")
    if given.out:
        given.out.write_text(json.dumps({"machine": machine(), "found": found}, indent=1))


if __name__ == "__main__":
    main()
