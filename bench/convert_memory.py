"""How much memory does a conversion of 5 GB take at its peak, in the largest process and in all of them together?

    python -m bench.convert_memory --data DATA --work SCRATCH [--gigabytes 5] [--out bench/results/convert_memory.json]

Tasks, with two processes each: `images` gives `brand convert images` an image folder of hard links to the images of
DATA/images, in as many copies as make 5 GB. `records` gives `brand.pack` 5 GB of records from a generator, `volumes`
gives it arrays of 147 MB that do not compress. `baseline` packs ten records, which shows the memory of the interpreter,
the imports and the worker processes.

The conversion runs in a fresh process. Every 50 ms a watcher reads the memory of all processes of its tree: private
memory (USS), proportional memory (PSS, which divides a shared page among the processes that map it), and the kernel's
high-water mark of the resident size (VmHWM, which misses no peak, but also counts pages that a forked process only
shares). Columns give the largest process and, for PSS, the largest sum over the tree at one moment.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness, system
from bench.harness import Outcome, Rival
from bench.sources import list_images

EVERY_S: Final = 0.05
RECORD_BYTES: Final = 2_048
TEXT_BYTES: Final = 4_000_000
BASELINE_RECORDS: Final = 10
VOLUME_BYTES: Final = 147_000_000
TASKS: Final = ("baseline", "images", "records", "volumes")


@dataclass(slots=True)
class Peaks:
    """The highest values seen so far, in bytes."""

    private_of_one: int = 0
    proportional_of_one: int = 0
    resident_of_one: int = 0
    proportional_of_all: int = 0
    processes: int = 0
    looks: int = 0

    def look(self, root: int) -> None:
        """Take one sample of the whole tree."""
        tree = [(pid, memory) for pid in system.process_tree(root) if (memory := system.memory_of(pid))]
        for pid, memory in tree:
            self.private_of_one = max(self.private_of_one, memory.private_bytes)
            self.proportional_of_one = max(self.proportional_of_one, memory.proportional_bytes)
            self.resident_of_one = max(self.resident_of_one, system.peak_resident_bytes(pid))
        self.proportional_of_all = max(self.proportional_of_all, sum(memory.proportional_bytes for _, memory in tree))
        self.processes = max(self.processes, len(tree))
        self.looks += 1


def large_image_folder(source: Path, folder: Path, size_bytes: int) -> Path:
    """Make a folder of hard links to the images of `source`, in as many copies as `size_bytes` takes, and return it.

    It is made once; a marker file says that it is complete.
    """
    done = folder.with_name(folder.name + ".done")
    if done.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    pictures, written = list_images(source), 0
    for copy, picture in ((n, picture) for n in itertools.count() for picture in pictures):
        target = folder / f"{copy:03d}-{Path(picture.key).parts[0]}" / picture.key.replace("/", "-")
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(picture.path, target)
        written += picture.path.stat().st_size
        if written >= size_bytes:
            break
    done.touch()
    return folder


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def records(text: bytes, count: int) -> Iterator[dict[str, Any]]:
    """Yield records of about 2 KiB of real text, no two alike."""
    span = len(text) - RECORD_BYTES
    for i in range(count):
        start = i * 7_919 % span
        yield {"id": i, "text": text[start : start + RECORD_BYTES]}


def volumes(size_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield arrays of noise. No two are equal, and each costs one copy."""
    noise = np.random.default_rng(0).integers(-2048, 2048, VOLUME_BYTES // 2, np.int16)
    for number in range(size_bytes // VOLUME_BYTES):
        volume = noise.copy()
        volume[0] = number
        yield {"volume": volume}


def some_text(folder: Path) -> bytes:
    """Return a few megabytes of text, so that the benchmark's own memory does not count much."""
    with max(folder.glob("*.jsonl"), key=lambda file: file.stat().st_size).open("rb") as file:
        return file.read(TEXT_BYTES)


def convert(task: str, arguments: argparse.Namespace, out: Path) -> None:
    """Convert, in the watched process."""
    if task == "images":
        source = large_image_folder(arguments.data / "images", _folder_of(arguments), _size_bytes(arguments))
        subprocess.run([sys.executable, "-m", "brand", "convert", "images", source, out, "-j", "2"], check=True)
        return
    import brand

    if task == "volumes":
        brand.pack(volumes(_size_bytes(arguments)), out, schema={"volume": "ndarray"}, jobs=2)
        return
    text = some_text(arguments.data / "text")
    count = BASELINE_RECORDS if task == "baseline" else _size_bytes(arguments) // RECORD_BYTES
    brand.pack(records(text, count), out, schema={"id": "int", "text": "bytes"}, jobs=2)


def watch(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the conversion, and sample its memory until it ends. It runs in a fresh process of its own."""
    out = _output_of(arguments)
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "bench.convert_memory", *sys.argv[1:], "--convert", task]
    peaks, started = Peaks(), time.perf_counter()
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            peaks.look(process.pid)
            time.sleep(EVERY_S)
        ended = time.perf_counter()
    if process.returncode:
        raise RuntimeError(f"the conversion ended with status {process.returncode}")
    output_bytes = system.disk_usage(out)[0]
    shutil.rmtree(out)
    return {"call_s": ended - started, "output_bytes": output_bytes, **asdict(peaks)}


def table_of(outcomes: list[Outcome]) -> str:
    """Tabulate the medians over the repetitions, one line for each task."""
    columns = [
        "task",
        "VmHWM of one MB",
        "USS of one MB",
        "PSS of one MB",
        "PSS of all MB",
        "processes",
        "s",
        "output GB",
    ]
    rows = []
    for task in TASKS:

        def median(key: str, task: str = task) -> float:
            return harness.median_of(outcomes, task, lambda outcome: float(outcome.values[key])) or 0.0

        failure = harness.first_failure(outcomes, task)
        if failure:
            rows.append([task, failure.status, *[""] * (len(columns) - 2)])
            continue
        keys = ("resident_of_one", "private_of_one", "proportional_of_one", "proportional_of_all")
        megabytes = [f"{median(key) / 1e6:,.0f}" for key in keys]
        others = [f"{median('processes'):.0f}", f"{median('call_s'):.1f}", f"{median('output_bytes') / 1e9:.2f}"]
        rows.append([task, *megabytes, *others])
    return harness.table(columns, rows) + harness.failures(outcomes)


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Watch one task."""
    return harness.run_fresh(rival, "bench.convert_memory", [], arguments.limit)


def _output_of(arguments: argparse.Namespace) -> Path:
    return Path(arguments.work, "converted-large")


def _folder_of(arguments: argparse.Namespace) -> Path:
    return Path(arguments.work, f"images-{arguments.gigabytes:g}GB")


def _size_bytes(arguments: argparse.Namespace) -> int:
    return int(arguments.gigabytes * 1e9)


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.convert_memory", __doc__, repeat=1)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--convert", choices=TASKS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run as parent, watcher (`--rival TASK`) or watched process (`--convert TASK`)."""
    arguments = _parse()
    if arguments.convert:
        convert(arguments.convert, arguments, _output_of(arguments))
        return
    if arguments.rival:
        harness.report(arguments.report, watch(arguments.rival, arguments))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    large_image_folder(arguments.data / "images", _folder_of(arguments), _size_bytes(arguments))
    rivals = [Rival(task, "brand", "brand-data") for task in TASKS]
    outcomes = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments))
    harness.show(table_of(outcomes))
    if arguments.out:
        settings = {"gigabytes": arguments.gigabytes, "processes": 2, "looks_every_s": EVERY_S}
        harness.save(arguments.out, __doc__, settings, rivals, outcomes)


if __name__ == "__main__":
    main()
