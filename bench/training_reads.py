"""How many shuffled samples a second reach a training loop, in batches of 256, from storage and memory of a given size?

    python -m bench.training_data  --data DATA --work SCRATCH
    python -m bench.training_reads --work SCRATCH --task images --regime nvme-4 [--out FILE]

Tasks: `images` (105 KB each) and `records` (500 bytes each); `--pixels` decodes the images to 224 x 224.
training_data.py makes them, training_loaders.py explains how each library is used.

Regimes: `warm` (everything is in the page cache, and memory is plenty); `nvme-4` and `nvme-10` (the machine's own disk,
nothing cached, memory for the needs of the idle process and for a quarter or a tenth of the data); `nas-4` and `nas-10`
(the same at 120 MB/s and 400 operations a second). The sequential limit takes part if data are cold, `no I/O` in
`warm`.

1. A run on a small data set checks every sample against the source. For the cold regimes, a run on the whole data set
   measures the memory that the processes of a rival need without data: the peak of their memory while the page cache of
   another control group holds the data, less a small buffer if the rival takes one.
2. lab.py drops the caches, loads the libraries' files by one more small run, and starts a fresh process in
   control groups of its own, which limit storage and memory, page cache included. A process that is killed for memory
   runs again with 1.5, 2 and 3 times that fraction of the data, but with buffers of the same size.
3. The process imports, opens, and takes batches for two epochs. It only notes when each batch arrived and which samples
   were in it. It is stopped `--seconds` after the first batch, except Brand (`stripes`) and the sequential limit.

Columns:

- samples/s: first epoch, after the first batch. of limit: over the sequential limit of the same run. with start: first
  epoch, from the end of the imports on. 2nd epoch: from the last batch of the first epoch on.
- first s: from the start of the process to the first batch. opened s: from the end of the imports to the first batch.
- batch ms: median time between two batches. gap ms: from the last batch of the first epoch to the first of the second.
- read x: bytes read from storage over bytes delivered. KB/op: size of a read, as the block layer counts.
- peak MB: memory of the processes, without page cache. room MB: the limit, page cache included.
- apart: adjacent distance: the mean distance within the first epoch of two samples that are adjacent in storage, as a
  fraction of the epoch; 0.333 for a uniform shuffle.
- Notes: ~: stopped early, +: more memory than the other rivals.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness, system
from bench.harness import Outcome
from bench.training_data import KINDS, Store
from bench.training_loaders import BATCH, BRAND, FFCV, LIMIT, NO_IO, WAYS, WORKERS, Job, Way, load
from bench.training_loop import age_s, save_labels, shuffles, speeds, take

IDLE_MEMORY: Final = 32_000_000
"""Bytes that buffers get while the needs of the idle process are measured."""
SLACK: Final = 1.05
"""Factor on the memory of an idle process, because its runs vary."""
MORE: Final = (1.0, 1.5, 2.0, 3.0)
"""Factors on the fraction of the data, for rivals that are killed for memory."""
OUT_OF_MEMORY: Final = "out of memory"
LAB_FACTS: Final = ("read_bytes", "read_ops", "max_memory_bytes", "memory_failcnt", "cpu_s", "leftover_processes")
COLUMNS: Final = (
    "rival",
    "samples/s",
    "of limit",
    "over Brand",
    "with start",
    "2nd epoch",
    "first s",
    "opened s",
    "batch ms",
    "gap ms",
    "read x",
    "KB/op",
    "peak MB",
    "room MB",
    "apart",
    "notes",
)


@dataclass(frozen=True, slots=True)
class Regime:
    """Storage and memory."""

    profile: str
    """The lab's name for the storage."""
    share: float
    """Fraction of the data that fits in memory; above 1 nothing is cold."""

    @property
    def cold(self) -> bool:
        """Whether the data are read from storage."""
        return self.share < 1


REGIMES: Final = {
    "warm": Regime("nvme", 1.5),
    "nvme-4": Regime("nvme", 1 / 4),
    "nvme-10": Regime("nvme", 1 / 10),
    "nas-4": Regime("nas", 1 / 4),
    "nas-10": Regime("nas", 1 / 10),
}


def feed_once(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Take batches for two epochs, in the measured process."""
    started = time.perf_counter() - age_s()
    load(way)
    imported = time.perf_counter()
    feed = way.open(job_of(arguments))
    taken = take(feed, arguments.epochs, math.inf if way.whole else arguments.seconds)
    save_labels(arguments.report.parent, taken)
    return {
        "first_batch_s": taken[0].stamps[0] - started,
        "first_batch_after_import_s": taken[0].stamps[0] - imported,
        "samples_per_s_with_start": sum(taken[0].counts) / (taken[0].stamps[-1] - imported),
        "stats": dict(feed.stats()),
        **speeds(taken),
    }


def check_once(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Compare one epoch of the small data set with its source."""
    load(way)
    job = job_of(arguments)
    feed, source, seen = way.open(job), job.store.source(), []
    for payloads, labels in feed.epoch(0):
        if labels is not None:
            seen += labels.tolist()
            if way.exact and not job.decode:
                for i, found in zip(labels.tolist(), payloads, strict=True):
                    if _plain(found) != source[i][job.payload]:
                        raise RuntimeError(f"sample {i} differs from the stored sample")
    return {"samples_checked": len(seen), "each_once": sorted(seen) == list(range(len(source)))}


def idle_once(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Take some batches of the whole data set, for the peak of the memory."""
    load(way)
    taken = take(way.open(job_of(arguments)), arguments.epochs, arguments.seconds)
    return {"batches": sum(len(epoch.counts) for epoch in taken)}


def _plain(payload: Any) -> str | bytes:
    """Return a payload as str or bytes; it may be an array or a tensor of bytes."""
    return payload if isinstance(payload, str | bytes) else np.asarray(payload).tobytes()


def job_of(arguments: argparse.Namespace) -> Job:
    """Return the job that the command line describes."""
    store, regime = Store(arguments.work, arguments.task), REGIMES[arguments.regime[0]]
    store = store.small if arguments.step in ("check", "preload") else store
    memory = int(regime.share * store.payload_bytes) if arguments.step == "feed" else IDLE_MEMORY
    return Job(store, memory, arguments.pixels, regime.cold)


def launch(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Start the measured process in the lab, and join the measurements of both, in the child."""
    regime, store, python = (
        REGIMES[arguments.regime[0]],
        Store(arguments.work, arguments.task),
        python_of(arguments, way),
    )
    seen, step = arguments.report.with_suffix(".lab.json"), arguments.launch
    inner = [python, "-m", "bench.training_reads", *sys.argv[1:]]
    lab = [
        *shlex.split(arguments.lab),
        "--path",
        str(store.folder),
        "--json",
        str(seen),
        "--timeout",
        str(arguments.limit - 60),
    ]
    if step == "feed" and regime.cold:
        lab += ["--cold", "--profile", regime.profile, "--memory", str(arguments.room)]
        lab += ["--inode-readahead-blks", "1"] if regime.profile == "nas" else []
        lab += shlex.split(arguments.lab_options)
    elif step != "check":
        inner += ["--warm"]
    lab += ["--preload", shlex.join([*inner, "--step", "preload"])]
    code = subprocess.run([*lab, "--", *inner, "--step", step], check=False).returncode
    facts = json.loads(seen.read_text()) if seen.exists() else {}
    if facts.get("oom_kills"):
        sys.exit(OUT_OF_MEMORY)
    if facts.get("timed_out"):
        sys.exit(f"no end after {arguments.limit - 60:.0f} s")
    if code:
        sys.exit(code)
    values: dict[str, Any] = json.loads(arguments.report.read_text())
    values |= {f"lab_{name}": facts[name] for name in LAB_FACTS}
    if step != "feed":
        return values
    mean = store.payload_bytes / store.samples
    return {
        **values,
        **shuffles(arguments.report.parent, store, way.form),
        "read_over_delivered": facts["read_bytes"] / (sum(values["delivered"]) * mean),
        "peak_bytes": facts["peak_rss_bytes"] + facts["peak_shmem_bytes"],
        "room_bytes": arguments.room,
        "more": arguments.more,
    }


def preload(arguments: argparse.Namespace, way: Way) -> None:
    """Read the libraries' files into the page cache, and in the warm regime the data, too."""
    load(way)
    for _ in way.open(job_of(arguments)).epoch(0):
        pass
    if arguments.warm:
        system.warm(Store(arguments.work, arguments.task).folder / way.form)


def python_of(arguments: argparse.Namespace, way: Way) -> str:
    """Return the interpreter that has the library."""
    return str(arguments.ffcv) if way is FFCV else sys.executable


def _version_of_ffcv(python: Path | None) -> str:
    """Return the version of FFCV, which is installed in another environment."""
    if python is None:
        return "not installed"
    ask = "from importlib.metadata import version; print(version('ffcv'), 'with numba', version('numba'))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


class Measurements:
    """All rivals in one regime."""

    def __init__(
        self, arguments: argparse.Namespace, regime: str, ways: Sequence[Way], before: dict[str, list[Outcome]]
    ) -> None:
        self.arguments, self.name, self.regime, self.before = arguments, regime, REGIMES[regime], before
        self.ways = {way.rival.name: way for way in ways}
        self.store = Store(arguments.work, arguments.task)
        self.more: dict[str, float] = {}

    def measure(self, rival: harness.Rival) -> Outcome:
        """Measure one rival once, and again with more memory if it was killed for memory."""
        way, name = self.ways[rival.name], rival.name
        if name not in self.before:
            self.before[name] = [self._run(way, "check")]
            if self.regime.cold:
                self.before[name].append(self._run(way, "idle"))
        outcome = next((before for before in self.before[name] if before.status != "ok"), None)
        if outcome is not None:
            return outcome
        for more in [more for more in MORE if more >= self.more.get(name, 1.0)]:
            self.more[name] = more
            room = self.idle_bytes(way) + self.regime.share * more * self.store.payload_bytes
            outcome = self._run(way, "feed", "--more", str(more), "--room", str(int(room) if self.regime.cold else 0))
            if OUT_OF_MEMORY not in outcome.reason or not self.regime.cold:
                break
        assert outcome is not None
        return outcome

    def idle_bytes(self, way: Way) -> int:
        """Return the bytes that the processes of this rival need without data."""
        peak: int = self.before[way.rival.name][-1].values["lab_max_memory_bytes"]
        return int(SLACK * peak) - (IDLE_MEMORY if way.buffer else 0)

    def _run(self, way: Way, step: str, *options: str) -> Outcome:
        arguments = ["--task", self.arguments.task, "--regime", self.name, "--launch", step, *options]
        return harness.run_fresh(way.rival, "bench.training_reads", arguments, self.arguments.limit)


def table_of(title: str, outcomes: list[Outcome], ways: Sequence[Way]) -> str:
    """Tabulate the medians, then list the rivals that are faster than Brand, then failures."""

    def median(way: Way, key: str) -> float | None:
        good = [o for o in outcomes if o.values.get(key) is not None]
        return harness.median_of(good, way.rival.name, lambda outcome: float(outcome.values[key]))

    rates = {way.rival.name: median(way, "samples_per_s") for way in ways}
    rows = [_row(way, outcomes, rates, median) for way in ways]
    rivals = {_with_memory(way, outcomes): rates[way.rival.name] for way in ways if not way.yardstick}
    shown, verdict = harness.table(COLUMNS, rows), harness.faster_than(BRAND.rival.name, rivals)
    return f"\n{title}\n{shown}{verdict}{harness.failures(outcomes)}"


def _with_memory(way: Way, outcomes: list[Outcome]) -> str:
    """Return the name, and how much more memory the rival needed."""
    more = max([o.values.get("more", 1.0) for o in outcomes if o.rival == way.rival.name and o.status == "ok"] or [1.0])
    return way.rival.name if more == 1 else f"{way.rival.name} with x{more} the memory"


def _row(way: Way, outcomes: list[Outcome], rates: dict[str, float | None], median: Any) -> list[str]:
    name, rate = way.rival.name, rates[way.rival.name]
    if rate is None:
        failure = harness.first_failure(outcomes, name)
        return [name, failure.status if failure else "", *[""] * (len(COLUMNS) - 2)]

    def cell(key: str, scale: float = 1.0, form: str = ",.2f") -> str:
        value = median(way, key)
        return "" if value is None else format(value * scale, form)

    good = [outcome.values for outcome in outcomes if outcome.rival == name and outcome.status == "ok"]
    ops = max(1.0, median(way, "lab_read_ops") or 0)
    limit, brand = rates.get(LIMIT.rival.name), rates.get(BRAND.rival.name)
    distances = good[-1].get("apart")
    return [
        name,
        f"{rate:,.0f}",
        f"{rate / limit:.0%}" if limit else "",
        f"x{rate / brand:.2f}" if brand else "",
        cell("samples_per_s_with_start", form=",.0f"),
        cell("second_samples_per_s", form=",.0f"),
        cell("first_batch_s"),
        cell("first_batch_after_import_s"),
        cell("batch_s", 1e3),
        cell("second_first_batch_s", 1e3, ",.0f"),
        cell("read_over_delivered"),
        f"{(median(way, 'lab_read_bytes') or 0) / ops / 1e3:,.0f}",
        cell("peak_bytes", 1e-6, ",.0f"),
        cell("room_bytes", 1e-6, ",.0f"),
        f"{distances[0]:.3f}" if distances else "",
        notes_of(good[-1]),
    ]


def notes_of(values: dict[str, Any]) -> str:
    """Return notes about a run that a reader must know."""
    notes = ["~"] if not all(values["complete"]) else []
    notes += [f"+ x{values['more']}"] if values["more"] > 1 else []
    notes += [f"{kind} {max(values[kind]):,}" for kind in ("missing", "repeated") if max(values.get(kind, [0]))]
    return ", ".join(notes + (["same order in both epochs"] if values.get("same_order") else []))


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.training_reads", __doc__, data=False, repeat=3)
    parser.add_argument("--lab", default=harness.LAB, help="the command that limits storage and memory (bench.lab)")
    parser.add_argument(
        "--lab-options", default="--readahead-kb 128", help="options of the lab for the cold regimes (%(default)r)"
    )
    parser.add_argument("--ffcv", type=Path, help="the interpreter of an environment with FFCV")
    parser.add_argument("--task", choices=KINDS, required=True)
    parser.add_argument("--pixels", action="store_true", help="decode the images")
    parser.add_argument("--regime", choices=tuple(REGIMES), nargs="+", default=list(REGIMES))
    parser.add_argument("--only", nargs="+", choices=[way.rival.name for way in WAYS], metavar="RIVAL")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="stop this long after the first batch (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=2, help="epochs to take (%(default)s)")
    parser.add_argument("--step", default="launch", help=argparse.SUPPRESS)
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--more", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--room", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run as parent, child, or measured process, as `--rival` and `--step` say."""
    arguments = _parse()
    if arguments.rival:
        way = next(way for way in WAYS if way.rival.name == arguments.rival)
        if arguments.step == "preload":
            preload(arguments, way)
        else:
            step = {"launch": launch, "feed": feed_once, "check": check_once, "idle": idle_once}[arguments.step]
            harness.report(arguments.report, step(arguments, way))
        return
    ways = [way for way in WAYS if not arguments.only or way.rival.name in arguments.only]
    ways = [way for way in ways if way is not FFCV or arguments.ffcv]
    if arguments.pixels:
        ways = [way for way in ways if way.pixels]
    if arguments.task == "images":
        ways = [way for way in ways if way.images]
    results = {}
    before: dict[bool, dict[str, list[Outcome]]] = {True: {}, False: {}}
    for regime in arguments.regime:
        cold = REGIMES[regime].cold
        here = [way for way in ways if way is not (NO_IO if cold else LIMIT)]
        measurements = Measurements(arguments, regime, here, before[cold])
        outcomes = harness.round_robin([way.rival for way in here], arguments.repeat, measurements.measure)
        shape = "decoded to 224 x 224, " if arguments.pixels else ""
        harness.show(table_of(f"{arguments.task}, {shape}{regime}", outcomes, here))
        results[regime] = {"runs": outcomes, "before": measurements.before}
    if arguments.out:
        settings = {"batch": BATCH, "workers": WORKERS, "seconds": arguments.seconds, "epochs": arguments.epochs}
        settings |= {"task": arguments.task, "pixels": arguments.pixels, "repeat": arguments.repeat}
        settings |= {"lab_options": arguments.lab_options, "ffcv": _version_of_ffcv(arguments.ffcv)}
        harness.save(arguments.out, __doc__, settings, [way.rival for way in ways], results)


if __name__ == "__main__":
    main()
