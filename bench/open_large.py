"""How long, and how much private memory, does opening a data set of 13 million samples take in each of four workers?

    python -m bench.open_large --work SCRATCH [--samples 13000000] [--out bench/results/open_large.json]

1. `brand.pack` writes the data set from a generator of `{"value": i}`, once. The data set is left in SCRATCH.
2. Each of four processes measures its private memory (USS), opens the data set, measures again, reads 1,000 random
   samples by index, checks them, and measures a third time. All four do so at the same time. There are three ways to
   get four processes:
   - `spawn`: fresh interpreters, each opens the data set itself;
   - `fork`: workers of a real `DataLoader`, each opens the data set itself;
   - `inherited`: workers of a real `DataLoader` over a data set that the training process opened, as in training.

The last three columns are the memory that the data set adds to a process: by opening, and with the reads. Reads map
pages of the index. These pages belong to the page cache, which the kernel reclaims when it needs memory, and count as
private only while no other process maps them; "no file" excludes them. Modules are imported before the first
measurement. The page cache is warm.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from torch.utils.data import DataLoader, Dataset

from bench import harness, system
from bench.harness import Outcome, Rival

WORKERS: Final = 4
READS: Final = 1_000
BATCH: Final = 250

COLUMNS: Final = (
    ("open ms", "open_s", 1e3),
    ("1,000 reads ms", "read_s", 1e3),
    ("opening: private MB", "opening_private_bytes", 1e-6),
    ("all: private, no file MB", "all_dirty_bytes", 1e-6),
    ("all: private MB", "all_private_bytes", 1e-6),
)
"""Title, figure, unit."""

Figures = dict[str, float]


def build_once(path: Path, samples: int) -> dict[str, Any]:
    """Write the data set."""
    import brand

    def values() -> Iterator[dict[str, int]]:
        return ({"value": i} for i in range(samples))

    started = time.perf_counter()
    brand.pack(values(), path, schema={"value": "int"}, jobs=2)
    return {"build_s": time.perf_counter() - started, "disk_bytes": system.disk_usage(path)[1]}


def figures(get: Callable[[], Any], seed: int) -> Figures:
    """Measure one process: `get` opens the data set, or returns an open one."""
    before = _memory()
    started = time.perf_counter()
    dataset = get()
    opened_s = time.perf_counter() - started
    after_open = _memory()
    started = time.perf_counter()
    read_some(dataset, seed)
    read_s = time.perf_counter() - started
    after_reads = _memory()
    return {
        "open_s": opened_s,
        "read_s": read_s,
        "opening_private_bytes": after_open.private_bytes - before.private_bytes,
        "all_dirty_bytes": after_reads.dirty_bytes - before.dirty_bytes,
        "all_private_bytes": after_reads.private_bytes - before.private_bytes,
    }


def read_some(dataset: Any, seed: int) -> None:
    """Read 1,000 samples by index, and check that each is the requested one."""
    rng = random.Random(seed)
    for _ in range(READS // BATCH):
        indices = [rng.randrange(len(dataset)) for _ in range(BATCH)]
        found = [int(sample["value"]) for sample in dataset.__getitems__(indices)]
        if found != indices:
            raise RuntimeError("a sample is not the requested one")


def import_first() -> None:
    """Import the modules, so that opening does not import them."""
    import_module("brand.torch")


def open_data_set(path: Path) -> Any:
    """Open the data set as training does."""
    from brand import BrandDataset

    return BrandDataset(path)


class Probes(Dataset[Figures]):
    """One item per worker of a `DataLoader`; fetching it measures that worker."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get

    def __len__(self) -> int:
        return WORKERS

    def __getitem__(self, index: int) -> Figures:
        return figures(self._get, index)


def spawned(path: Path) -> list[Figures]:
    """Measure four fresh interpreters."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(WORKERS)]
    processes = [
        context.Process(target=_spawned_worker, args=(path, seed, sender)) for seed, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    found: list[Figures] = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return found


def _spawned_worker(path: Path, seed: int, sender: Connection) -> None:
    import_first()
    sender.send(figures(lambda: open_data_set(path), seed))


def forked(path: Path) -> list[Figures]:
    """Measure the workers of a `DataLoader` that open the data set themselves."""
    import_first()
    return _through_loader(lambda: open_data_set(path))


def inherited(path: Path) -> list[Figures]:
    """Measure the workers of a `DataLoader` over an open data set."""
    dataset = open_data_set(path)
    return _through_loader(lambda: dataset)


def _through_loader(get: Callable[[], Any]) -> list[Figures]:
    loader = DataLoader(Probes(get), batch_size=None, num_workers=WORKERS, multiprocessing_context="fork")
    return list(loader)


WAYS: Final[dict[str, Callable[[Path], list[Figures]]]] = {"spawn": spawned, "fork": forked, "inherited": inherited}


def _memory() -> system.Memory:
    now = system.memory_of()
    if now is None:
        raise RuntimeError("this system has no /proc/self/smaps_rollup")
    return now


def table_of(outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """Tabulate the median worker and the worst worker of each way."""
    rows = []
    for rival in rivals:
        good = [o for o in outcomes if o.rival == rival.name and o.status == "ok"]
        workers: list[Figures] = [worker for outcome in good for worker in outcome.values["workers"]]
        cells = [_cell([worker[key] * unit for worker in workers]) for _, key, unit in COLUMNS]
        rows.append([rival.name, *cells])
    shown = harness.table(["workers", *(title for title, _, _ in COLUMNS)], rows)
    return f"median (worst) of {WORKERS} workers\n{shown}{harness.failures(outcomes)}"


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.2f} ({max(values):,.2f})" if values else "-"


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Start four workers in one way."""
    return harness.run_fresh(rival, "bench.open_large", [], arguments.limit)


def build_if_need_be(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Build the data set unless it exists; return the cost of building it."""
    done = path.with_name(path.name + ".json")
    if arguments.rebuild or not done.exists():
        harness.progress(f"building {arguments.samples:,} samples")
        shutil.rmtree(path, ignore_errors=True)
        build = measure(arguments, Rival("build", "brand", "brand-data"))
        if build.status != "ok":
            sys.exit(f"building: {build.status}: {build.reason}")
        harness.report(done, build.values)
    return dict(json.loads(done.read_text()))


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.open_large", __doc__, data=False)
    parser.add_argument("--samples", type=int, default=13_000_000)
    parser.add_argument("--rebuild", action="store_true", help="write the data set again")
    return parser.parse_args()


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    arguments = _parse()
    path = Path(arguments.work, f"large-{arguments.samples}")
    if arguments.rival:
        way = WAYS.get(arguments.rival)
        values = {"workers": way(path)} if way else build_once(path, arguments.samples)
        harness.report(arguments.report, values)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    built = build_if_need_be(arguments, path)
    system.warm(path)
    rivals = [Rival(way, "brand", "brand-data") for way in WAYS]
    outcomes = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments))
    harness.show(table_of(outcomes, rivals))
    if arguments.out:
        settings = {"samples": arguments.samples, "workers": WORKERS, "reads": READS, **built}
        harness.save(arguments.out, __doc__, settings, rivals, outcomes)


if __name__ == "__main__":
    main()
