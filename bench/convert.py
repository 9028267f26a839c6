"""How long does each library take to convert an image folder, and 400,000 records in memory, with two processes?

    python -m bench.convert --data DATA --work SCRATCH [--cold] [--out bench/results/convert.json]

Tasks: `images` (DATA/images) and `text` (DATA/text, a list of dicts in memory before the clock starts). Rivals: Brand,
mosaicml-streaming, litdata and webdataset, each in the configuration that converters.py explains, and `cp -r` of the
folder; for text also `cp -r` of the same records as one file each. With `--cold` the page cache is empty before each
run; then text is only copied, as records in memory cannot be cold.

Columns: "call" is the conversion itself without imports, the median run and the best run. "process" is the whole
process, with imports and the loading of the records. "durable" is "call" plus the time until everything is on the disk
(`sync -f`). CPU seconds are those of the whole process tree. A time counts only if the output holds all samples.

Only Brand shuffles, all samples over all chunks. The other libraries write in the order of the source.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import harness, system
from bench.converters import BRAND, BRAND_PLAIN, CONVERTERS, Job, copy
from bench.harness import Outcome, Rival
from bench.sources import list_images, load_lines, load_records, text_files

COPY: Final = Rival("cp -r")
COPY_EACH: Final = Rival("cp -r, one file each")
TASKS: Final = ("images", "text")
COLUMNS: Final = (
    "rival",
    "call s",
    "best s",
    "over Brand",
    "process s",
    "durable s",
    "CPU s",
    "output MB",
    "on disk MB",
)


@dataclass(frozen=True, slots=True)
class Work:
    """One job, ready to be timed."""

    job: Job
    samples: int
    """Samples that the output must hold."""
    count: Callable[[Path], int]
    """Counts the samples in an output."""


def rivals_of(task: str, *, cold: bool) -> list[Rival]:
    """Return the rivals that take part in a task."""
    libraries = [] if cold and task == "text" else [converter.rival for converter in CONVERTERS]
    if task == "images":  # images do not compress, so compression changes nothing
        libraries.remove(BRAND_PLAIN)
    return [*libraries, COPY] if task == "images" else [*libraries, COPY, COPY_EACH]


def prepare(task: str, name: str, data: Path, work: Path, out: Path) -> Work:
    """Load the source and import the library; neither is timed."""
    if name in (COPY.name, COPY_EACH.name):
        source = data / task if name == COPY.name else work / "text-files"
        return Work(copy(source, out), _count_files(source), _count_files)
    converter = next(c for c in CONVERTERS if c.rival.name == name)
    if task == "images":
        folder = data / "images"
        return Work(converter.images(folder, out), len(list_images(folder)), converter.count)
    records = load_records(data / "text")
    return Work(converter.records(records, out), len(records), converter.count)


def measure_once(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one conversion, in the fresh process."""
    out = _output_of(arguments)
    work = prepare(arguments.task, arguments.rival, arguments.data, arguments.work, out)
    prepared, prepared_cpu_s = time.perf_counter(), system.cpu_s()
    system.flush(arguments.work)
    if arguments.cold:
        system.drop_caches(_modules_of(arguments.rival))
    started, started_cpu_s = time.perf_counter(), system.cpu_s()
    work.job()
    ended, ended_cpu_s = time.perf_counter(), system.cpu_s()
    system.flush(arguments.work)
    durable = time.perf_counter()
    found = work.count(out)
    if found != work.samples:
        raise RuntimeError(f"{found:,} samples in the output, {work.samples:,} in the source")
    output_bytes, disk_bytes = system.disk_usage(out)
    return {
        "call_s": ended - started,
        "durable_s": durable - started,
        "samples": found,
        "output_bytes": output_bytes,
        "disk_bytes": disk_bytes,
        "untimed_s": (started - prepared) + (time.perf_counter() - ended),
        "untimed_cpu_s": (started_cpu_s - prepared_cpu_s) + (system.cpu_s() - ended_cpu_s),
    }


def measure(arguments: argparse.Namespace, task: str, rival: Rival) -> Outcome:
    """Run one rival once, into a folder that does not exist yet."""
    shutil.rmtree(_output_of(arguments), ignore_errors=True)
    try:
        return harness.run_fresh(rival, "bench.convert", ["--task", task], arguments.limit)
    finally:
        shutil.rmtree(_output_of(arguments), ignore_errors=True)


def table_of(task: str, outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """Tabulate the medians, then list the rivals that are faster than Brand, then failures."""

    def median(rival: Rival, key: str) -> float | None:
        return harness.median_of(outcomes, rival.name, lambda outcome: float(outcome.values[key]))

    calls = {rival.name: median(rival, "call_s") for rival in rivals}
    brand = calls.get(BRAND.name)
    rows = []
    for rival in rivals:
        call, failure = calls[rival.name], harness.first_failure(outcomes, rival.name)
        if call is None:
            rows.append([rival.name, failure.status if failure else "", *[""] * (len(COLUMNS) - 2)])
            continue
        wall = harness.median_of(outcomes, rival.name, lambda outcome: outcome.wall_s) or 0.0
        cpu = harness.median_of(outcomes, rival.name, lambda outcome: outcome.cpu_s) or 0.0
        ratio = f"x{call / brand:.2f}" if brand else ""
        best = min(o.values["call_s"] for o in outcomes if o.rival == rival.name and o.status == "ok")
        seconds = [
            f"{call:.2f}",
            f"{best:.2f}",
            ratio,
            f"{wall:.2f}",
            f"{median(rival, 'durable_s') or 0:.2f}",
            f"{cpu:.1f}",
        ]
        sizes = [f"{(median(rival, key) or 0) / 1e6:,.0f}" for key in ("output_bytes", "disk_bytes")]
        rows.append([rival.name, *seconds, *sizes])
    verdict = harness.faster_than(BRAND.name, {name: 1 / call if call else None for name, call in calls.items()})
    return f"\n{task}\n{harness.table(COLUMNS, rows)}{verdict}{harness.failures(outcomes)}"


def _modules_of(name: str) -> list[str]:
    """Return the modules that stay warm when the caches are dropped (torch and numpy are imported with them)."""
    return [c.rival.module for c in CONVERTERS if c.rival.name == name and c.rival.module != "streaming"]


def _output_of(arguments: argparse.Namespace) -> Path:
    return Path(arguments.work, "converted")


def _count_files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file())


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.convert", __doc__, repeat=5)
    parser.add_argument("--cold", action="store_true", help="drop the page cache before each run (root)")
    parser.add_argument("--only", nargs="+", metavar="RIVAL")
    parser.add_argument("--task", choices=TASKS, help="only this task")
    return parser.parse_args()


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    arguments = _parse()
    if arguments.rival:
        harness.report(arguments.report, measure_once(arguments))
        return
    if arguments.cold and not system.can_drop_caches():
        sys.exit("--cold needs the right to write /proc/sys/vm/drop_caches")
    arguments.work.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Outcome]] = {}
    everybody: list[Rival] = []
    for task in [arguments.task] if arguments.task else TASKS:
        if task == "text":
            text_files(load_lines(arguments.data / "text"), arguments.work / "text-files")
        rivals = [r for r in rivals_of(task, cold=arguments.cold) if not arguments.only or r.name in arguments.only]
        results[task] = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments, task))
        harness.show(table_of(task, results[task], rivals))
        everybody += rivals
    if arguments.out:
        settings = {"processes": 2, "repeat": arguments.repeat, "cold": arguments.cold}
        harness.save(arguments.out, __doc__, settings, everybody, results)


if __name__ == "__main__":
    main()
