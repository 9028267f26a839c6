"""How many shuffled samples a second reach a training loop from an object store 30 ms away, behind 1 Gbit/s?

    python -m bench.training_data --data DATA --work SCRATCH
    python -m bench.stores --work SCRATCH --task images --repeat 3 [--only NAME ...] [--out FILE]

Tasks: `images` (14,336 of 105 KB) and `records` (1,000,000 of 500 bytes) of training_data.py; store_ways.py explains
how each library is used.

1. Two network namespaces are joined by links of 1 Gbit/s (`tc ... tbf`). In one of them `python -m
   tests.tools.objects` serves SCRATCH as an S3 store that waits 30 ms before each answer. The wait is the store's,
   not the link's: a connection opens at once, and its window grows quickly. The objects are in the page cache.
2. In the other one a fresh process imports, opens, and takes batches for two epochs, with an empty cache folder at the
   start. Between the epochs it drops the pages of its cache folder, so the second epoch reads that folder's disk.
3. After each epoch it asks the store for an object that does not exist. So the store's list of requests separates the
   epochs. Read-ahead counts in the epoch in which it is read.
4. Rivals take turns. A run is stopped `--seconds` after its first batch.

Memory is not limited. Both sides of the link, and the shaping, share the machine's cores.

Columns. Figures are medians of the runs, with the lowest and the highest run in brackets.

- epoch 1, epoch 2: samples/s; the first from `iter()` on, so with the wait for the first batch, the second from the
  last batch of the first on. of link: the first over that of `link`, medians.
- MB/s: bytes that the store sent for the first epoch, over its time.
- first s: from the end of the imports to the first batch, with the opening of the data set and the fetch of its index.
- x 1, x 2: bytes that the store sent for an epoch over the bytes of its samples. GET 1, GET 2: requests. other: HEAD
  and LIST.
- apart: adjacent distance: the mean distance within the first epoch of two samples that are adjacent in the store, as
  a fraction of the epoch; 0.333 for a uniform shuffle.
- others: cores that other processes took meanwhile: the store, the kernel's threads, and any disturbance of the run.
  stolen: cores that the machine's host gave to other machines while work waited here.
- notes: ~: stopped early; samples that were missing or delivered twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench import harness, system
from bench.harness import Outcome
from bench.store_ways import LINK, WAYS, Job, Way, drop_cached, environment, load
from bench.training_data import KINDS, Store
from bench.training_loaders import BATCH, WORKERS, Feed
from bench.training_loop import rates, save_labels, shuffles, take
from brand.cluster.namespaces import Namespace, namespaces

LATENCY_S: Final = 0.03
RATE: Final = "1gbit"
EPOCHS: Final = 2
MARK: Final = "mark"
"""Bucket of the objects that do not exist."""
END_LIMIT_S: Final = 60.0
COLUMNS: Final[dict[str, tuple[str, float, str]]] = {
    "epoch 1": ("first_rate", 1, ",.0f"),
    "epoch 2": ("later_rate", 1, ",.0f"),
    "MB/s": ("first_sent_per_s", 1e-6, ".0f"),
    "first s": ("opened_s", 1, ".2f"),
    "x 1": ("first_x", 1, ".2f"),
    "x 2": ("later_x", 1, ".2f"),
    "GET 1": ("first_gets", 1, ",.0f"),
    "GET 2": ("later_gets", 1, ",.0f"),
    "other": ("others", 1, ",.0f"),
    "others": ("other_cores", 1, ".2f"),
    "stolen": ("stolen_cores", 1, ".2f"),
}


def feed_once(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Take all epochs, in the measured process, at the same time as the store."""
    load(way)
    imported = time.perf_counter()
    job = Job(Store(arguments.work, arguments.task), arguments.endpoint, arguments.scratch / "cache")
    job.cache.mkdir()
    disturbance, feed = system.Disturbance(), way.open(job)

    def epoch(number: int) -> Iterator[Any]:
        yield from feed.epoch(number)
        mark(arguments.endpoint, number)
        drop_cached(job.cache)

    taken = take(Feed(epoch), EPOCHS, arguments.seconds)
    stats = dict(feed.stats())
    others = disturbance.cores([stats["process"]] if "process" in stats else [])
    save_labels(arguments.report.parent, taken)
    return {
        **others,
        **rates(taken),
        "complete": [each.complete for each in taken],
        "opened_s": taken[0].stamps[0] - imported,
        "stats": stats,
    }


def mark(endpoint: str, number: int) -> None:
    """Tell the store that an epoch has ended."""
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(f"{endpoint}/{MARK}/{number}").close()


def launch(arguments: argparse.Namespace, way: Way) -> dict[str, Any]:
    """Start the store and the measured process, and join their figures, in the child."""
    store, scratch = Store(arguments.work, arguments.task), arguments.work / "stores"
    system.warm(store.folder / way.form)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    with namespaces(2, rate=RATE) as (far, near), serving(far, arguments.work) as (endpoint, requests):
        more = ["--step", "feed", "--endpoint", endpoint, "--scratch", str(scratch)]
        command = near.command([sys.executable, "-m", "bench.stores", *sys.argv[1:], *more])
        code = subprocess.run(command, env=os.environ | environment(endpoint, scratch), check=False).returncode
    shutil.rmtree(scratch)
    if code:
        sys.exit(code)
    values: dict[str, Any] = json.loads(arguments.report.read_text())
    values |= requested(requests, values, store) | shuffles(arguments.report.parent, store, way.form)
    return values


@contextmanager
def serving(space: Namespace, folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run a store in a namespace; yield its address, and the list of its requests, which is filled at the end."""
    command = [sys.executable, "-m", "tests.tools.objects", str(folder), "--latency", str(LATENCY_S)]
    command = space.command([*command, "--address", space.address])
    requests: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), requests
        said, _ = process.communicate(timeout=END_LIMIT_S)
        requests += map(json.loads, said.splitlines())


def requested(requests: Sequence[Mapping[str, Any]], values: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Return the requests to the store, by epoch."""
    marks = [place for place, request in enumerate(requests) if request["key"].startswith(f"{MARK}/")]
    bounds = [0, *marks, len(requests)]
    parts = [
        [request for request in requests[start:end] if not request["key"].startswith(f"{MARK}/")]
        for start, end in pairwise(bounds)
    ]
    mean = store.payload_bytes / store.samples
    sent = [sum(request["sent"] for request in part) for part in parts]
    gets = [sum(request["operation"] == "GET" for request in part) for part in parts]
    shares = [size / (samples * mean) for size, samples in zip(sent, values["delivered"], strict=False)]
    found = {
        "first_x": shares[0],
        "first_gets": gets[0],
        "first_sent_per_s": sent[0] / values["seconds"][0],
        "others": sum(request["operation"] != "GET" for part in parts for request in part),
        "errors": sum(request["status"] >= 400 for part in parts for request in part),
    }
    return found if len(shares) < EPOCHS else {**found, "later_x": shares[1], "later_gets": gets[1]}


def table_of(outcomes: Sequence[Outcome], ways: Sequence[Way]) -> str:
    """Tabulate the medians with the lowest and the highest run."""
    rows = []
    limit = harness.median_of(outcomes, LINK.rival.name, lambda outcome: float(outcome.values["first_rate"]))
    for way in ways:
        good = [outcome.values for outcome in outcomes if outcome.rival == way.rival.name and outcome.status == "ok"]
        cells = [harness.spread(good, key, scale, form) for key, scale, form in COLUMNS.values()]
        median = statistics.median(values["first_rate"] for values in good) if good else None
        share = f"{median / limit:.0%}" if median and limit else ""
        rows.append([way.rival.name, share, *cells, *_judged(good)])
    table = harness.table(["rival", "of link", *COLUMNS, "apart", "notes"], rows)
    return table + harness.failures(outcomes)


def _judged(good: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return how well the samples were mixed, and notes that a reader must know."""
    if not good:
        return "", ""
    notes = ["~"] if not all(all(values["complete"]) for values in good) else []
    for kind in ("missing", "repeated"):
        most = max((max(values.get(kind, [0])) for values in good), default=0)
        notes += [f"{kind} {most:,}"] if most else []
    apart = good[-1].get("apart")
    return f"{apart[0]:.3f}" if apart else "", ", ".join(notes)


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.stores", __doc__, data=False, repeat=3)
    parser.add_argument("--task", choices=KINDS, required=True)
    parser.add_argument("--only", nargs="+", metavar="RIVAL", help=f"with {LINK.rival.name!r}, which `of link` needs")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="stop this long after the first batch (%(default)s)"
    )
    parser.add_argument("--step", default="launch", help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run as parent, child, or measured process, as `--rival` and `--step` say."""
    arguments = _parse()
    if arguments.rival:
        way = next(way for way in WAYS if way.rival.name == arguments.rival)
        step = {"launch": launch, "feed": feed_once}[arguments.step]
        harness.report(arguments.report, step(arguments, way))
        return
    ways = [way for way in WAYS if arguments.task in way.kinds]
    ways = [way for way in ways if not arguments.only or way.rival.name in arguments.only]
    rivals = [way.rival for way in ways]
    measure = partial(harness.run_fresh, module="bench.stores", arguments=[], limit_s=arguments.limit)
    outcomes = harness.round_robin(rivals, arguments.repeat, harness.calmly(measure, arguments.calm))
    harness.show(f"{arguments.task}\n{table_of(outcomes, ways)}")
    if arguments.out:
        settings = {"batch": BATCH, "workers": WORKERS, "latency_s": LATENCY_S, "rate": RATE, "task": arguments.task}
        settings |= {"seconds": arguments.seconds, "repeat": arguments.repeat}
        harness.save(arguments.out, __doc__, settings, rivals, outcomes)


if __name__ == "__main__":
    main()
