"""How many images a second does each library decode, crop and resize, and how much processor time does an image take?

    python -m bench.pictures --work SCRATCH [--threads 1 2] [--kinds imagenet large] [--out bench/results/pictures.json]

Each measurement is a fresh process. It may use as many cores as it has threads or workers that decode, takes batches of
128 (`picture_loaders.py`) in a loop that does nothing else, and counts for some seconds after the first batches. The
files are in the page cache. `CPU ms` is the processor time of the process and its descendants (workers, data server)
for an image. `entropy decoding alone` is the least that any decoder of JPEG on a CPU takes.

`--spread` leaves the processes on all cores, as in a training.

With py-spy installed, `--gil` samples the processes once more: the share of the time in which a thread holds Python's
interpreter lock, for each core that decodes. If a fraction g of the work of a thread holds the lock, at most 1 / g
threads of a process are busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench import harness
from bench.harness import Outcome, Rival
from bench.picture_data import KINDS, Pictures, make
from bench.picture_loaders import FEEDS, Batch, Job, processor_s

BATCH: Final = 128
_WARM: Final = 8
"""Batches before the measurement."""
_SAMPLES_A_SECOND: Final = 200


def measure(job: Job, batches: Iterator[Batch], seconds: float) -> dict[str, Any]:
    """Take batches for some seconds, and return the images and the processor time of a second."""
    for _ in islice(batches, _WARM):
        pass
    start_s, spent_s, images = time.perf_counter(), processor_s(), 0
    for pixels, _ in batches:
        images += len(pixels)
        if time.perf_counter() - start_s >= seconds:
            break
    wall_s, cpu_s = time.perf_counter() - start_s, processor_s() - spent_s
    return {"images_per_s": images / wall_s, "cpu_ms": 1e3 * cpu_s / images, "threads": job.threads}


def gil_share(seconds: float) -> subprocess.Popen[bytes]:
    """Start py-spy on this process: it samples the threads that hold the lock."""
    file = Path(tempfile.gettempdir(), f"gil-{os.getpid()}.txt")
    options = ["--gil", "--nonblocking", "--format", "raw", "--rate", str(_SAMPLES_A_SECOND), "--duration"]
    command = ["py-spy", "record", *options, str(round(seconds)), "--pid", str(os.getpid()), "--output", str(file)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def child(arguments: argparse.Namespace) -> None:
    """Measure one feed."""
    threads, kind = arguments.threads[0], arguments.kinds[0]
    if not arguments.spread:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    job = Job(Pictures(arguments.work, kind, arguments.count), threads, BATCH)
    batches = FEEDS[arguments.rival].batches(job)
    values = measure(job, batches, arguments.seconds)
    if arguments.gil:
        spy = gil_share(arguments.seconds)
        end_s = time.perf_counter() + arguments.seconds + 1
        while time.perf_counter() < end_s and spy.poll() is None:
            next(batches)
        spy.wait()
        lines = Path(tempfile.gettempdir(), f"gil-{os.getpid()}.txt").read_text().splitlines()
        held = sum(int(line.rpartition(" ")[2]) for line in lines) / (_SAMPLES_A_SECOND * round(arguments.seconds))
        values["gil"] = held / threads
    harness.report(arguments.report, values)
    os._exit(0)  # some libraries wait at the end for workers that wait for them


def show(kind: str, threads: int, rivals: Sequence[Rival], outcomes: Sequence[Outcome], mean_bytes: float) -> None:
    """Print the table of one kind and number of threads."""
    runs = {r.name: [o.values for o in outcomes if o.rival == r.name and o.status == "ok"] for r in rivals}
    own = [values["images_per_s"] for values in runs.get("brand", [])]
    rows = []
    for rival in rivals:
        found = runs[rival.name]
        if not found:
            failed = harness.first_failure(outcomes, rival.name)
            rows.append([rival.name, "" if failed is None else failed.status, "", "", ""])
            continue
        rate = statistics.median(values["images_per_s"] for values in found)
        times = f"x{statistics.median(own) / rate:.2f}" if own else ""
        gil = harness.spread(found, "gil", 100, ".1f")
        each = [harness.spread(found, "images_per_s", 1, ",.0f"), harness.spread(found, "cpu_ms", 1, ".2f")]
        rows.append([rival.name, *each, times, f"{gil}%" if gil else ""])
    size = KINDS[kind]
    title = f"{kind}: {size.width} x {size.height}, {mean_bytes / 1e3:.0f} KB, {threads} threads"
    columns = ["", "images/s", "CPU ms", "brand is", "lock held"]
    harness.show(f"\n{title}\n\n{harness.table(columns, rows)}{harness.failures(outcomes)}\n")


def main() -> None:
    """Measure all feeds, in turns."""
    parser = harness.parser("bench.pictures", __doc__, data=False, repeat=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads, or worker processes")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--count", type=int, default=2048, help="files (%(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a measurement (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=tuple(FEEDS), default=tuple(FEEDS), help="only these")
    parser.add_argument("--spread", action="store_true", help="leave the processes on all cores")
    parser.add_argument("--gil", action="store_true", help="sample the interpreter lock with py-spy")
    arguments = parser.parse_args()
    if arguments.rival is not None:
        child(arguments)
        return
    rivals, results = [FEEDS[name].rival for name in arguments.only], list[Outcome]()
    for kind in arguments.kinds:
        pictures = Pictures(arguments.work, kind, arguments.count)
        make(pictures)
        for threads in arguments.threads:

            def once(rival: Rival, kind: str = kind, threads: int = threads) -> Outcome:
                chosen = ["--kinds", kind, "--threads", str(threads)]
                return harness.run_fresh(rival, "bench.pictures", chosen, arguments.limit)

            found = harness.round_robin(rivals, arguments.repeat, once)
            for outcome in found:
                outcome.values.update({"kind": kind, "threads": threads})
            results += found
            show(kind, threads, rivals, found, pictures.mean_bytes)
    if arguments.out:
        settings = {"batch": BATCH, "count": arguments.count, "seconds": arguments.seconds, "spread": arguments.spread}
        harness.save(arguments.out, __doc__, settings, rivals, results)


if __name__ == "__main__":
    main()
