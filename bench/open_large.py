"""How long and how much private memory does it take each of four worker processes to open a data set of 13 million samples?

    python -m bench.open_large --work SCRATCH [--samples 13000000] [--out bench/results/open_large.json]

1. `brand.pack` writes the data set from a generator of `{"value": i}`, once; it stays in SCRATCH.
2. Four processes at the same time each read their private memory (USS), open the data set, read it again, get 1,000 random samples
   exactly, check them, and read it a third time. Three ways of getting four processes:
   - `spawn`: fresh interpreters, each opens the data set itself;
   - `fork`: workers of a real `DataLoader`, each opens the data set itself;
   - `inherited`: workers of a real `DataLoader` over a data set that the training process has opened, as training scripts do.

Only Brand: the rivals that shuffle as a whole keep their order in memory per process, and their figures are in the design notes.
Read with it: "private after" contains the interpreter and PyTorch; "grown" is what the data set costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from torch.utils.data import DataLoader, Dataset

from bench import harness, system
from bench.harness import Outcome, Rival

WORKERS: Final = 4
READS: Final = 1_000
BATCH: Final = 250

Figures = dict[str, float]


def build_child(path: Path, samples: int) -> dict[str, Any]:
    """Write the data set."""
    import brand

    def values() -> Iterator[dict[str, int]]:
        return ({"value": i} for i in range(samples))

    started = time.perf_counter()
    brand.pack(values(), path, schema={"value": "int"}, jobs=2)
    return {"build_s": time.perf_counter() - started, "disk_bytes": system.disk_usage(path)[1]}


def figures(get: Callable[[], Any], seed: int) -> Figures:
    """What one process measures: `get` opens the data set, or hands over one that is open."""
    before = _private_bytes()
    started = time.perf_counter()
    dataset = get()
    opened_s = time.perf_counter() - started
    after_open = _private_bytes()
    started = time.perf_counter()
    read_some(dataset, seed)
    read_s = time.perf_counter() - started
    after_reads = _private_bytes()
    return {
        "open_s": opened_s,
        "read_s": read_s,
        "private_before_bytes": before,
        "private_after_bytes": after_reads,
        "grown_by_opening_bytes": after_open - before,
        "grown_bytes": after_reads - before,
    }


def read_some(dataset: Any, seed: int) -> None:
    """1,000 exact reads; each must be the sample that was asked for."""
    rng = random.Random(seed)
    for _ in range(READS // BATCH):
        indices = [rng.randrange(len(dataset)) for _ in range(BATCH)]
        found = [int(sample["value"]) for sample in dataset.__getitems__(indices)]
        if found != indices:
            raise RuntimeError("a sample is not the one that was asked for")


def open_data_set(path: Path) -> Any:
    """Map-style, as for training."""
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
    """Four fresh interpreters."""
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
    import brand  # noqa: F401  (importing is not opening)

    sender.send(figures(lambda: open_data_set(path), seed))


def forked(path: Path) -> list[Figures]:
    """Workers of a `DataLoader` that open the data set themselves."""
    import brand  # noqa: F401

    return _through_loader(lambda: open_data_set(path))


def inherited(path: Path) -> list[Figures]:
    """Workers of a `DataLoader` over an open data set."""
    dataset = open_data_set(path)
    return _through_loader(lambda: dataset)


def _through_loader(get: Callable[[], Any]) -> list[Figures]:
    loader = DataLoader(Probes(get), batch_size=None, num_workers=WORKERS, multiprocessing_context="fork")
    return list(loader)


WAYS: Final[dict[str, Callable[[Path], list[Figures]]]] = {"spawn": spawned, "fork": forked, "inherited": inherited}


def _private_bytes() -> int:
    now = system.memory_of()
    return now.private_bytes if now else 0


def table_of(outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """For each way, the median worker and the worst."""
    columns = ["workers", "open ms", "worst", "1,000 reads ms", "grown by opening MB", "grown MB", "worst", "private after MB"]
    rows, failures = [], []
    for rival in rivals:
        workers = [worker for o in outcomes if o.rival == rival.name and o.status == "ok" for worker in o.values["workers"]]
        if not workers:
            failures.append(f"\n{rival.name}: {harness.failure_of(outcomes, rival.name)}")
            continue
        cells = [("open_s", 1e3), ("read_s", 1e3), ("grown_by_opening_bytes", 1e-6), ("grown_bytes", 1e-6), ("private_after_bytes", 1e-6)]
        medians = [f"{statistics.median(w[key] for w in workers) * unit:,.1f}" for key, unit in cells]
        worst = [f"{max(w[key] for w in workers) * unit:,.1f}" for key, unit in (cells[0], cells[3])]
        rows.append([rival.name, medians[0], worst[0], medians[1], medians[2], medians[3], worst[1], medians[4]])
    return harness.table(columns, rows) + "".join(failures)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.open_large", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="scratch folder; the data set stays there")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--samples", type=int, default=13_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for one process")
    parser.add_argument("--rebuild", action="store_true", help="write the data set again")
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Parent or child, by `--rival`."""
    arguments = _parse()
    path = arguments.work / f"large-{arguments.samples}"
    if arguments.rival:
        way = WAYS.get(arguments.rival)
        harness.report(arguments.report, {"workers": way(path)} if way else build_child(path, arguments.samples))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    done = path.with_name(path.name + ".json")
    options = ["--work", str(arguments.work), "--samples", str(arguments.samples)]
    if arguments.rebuild or not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        build = harness.run_fresh(Rival("build", "brand", "brand"), "bench.open_large", options, arguments.limit)
        if build.status != "ok":
            raise SystemExit(f"building: {build.status}: {build.reason}")
        harness.report(done, build.values)
    system.warm(path)
    rivals = [Rival(way, "brand", "brand") for way in WAYS]
    measure = lambda rival: harness.run_fresh(rival, "bench.open_large", options, arguments.limit)  # noqa: E731
    outcomes = harness.round_robin(rivals, arguments.repeat, measure)
    harness.show(table_of(outcomes, rivals))
    if arguments.out:
        settings = {"samples": arguments.samples, "workers": WORKERS, "reads": READS, "build": done.read_text()}
        harness.save(arguments.out, "What does opening 13 million samples cost a worker?", settings, rivals, outcomes)


if __name__ == "__main__":
    main()
