"""Is a plain training of this checkout as fast as one of another checkout, such as that of an earlier version?

    python -m bench.two_versions OTHER --work SCRATCH [--turns 15] [--out bench/results/two_versions.json]

OTHER is a checkout of Brand whose compiled core is built. Each turn runs each kind once in both checkouts, in turn the
other one first: a fresh process starts `brand serve`, fetches two epochs through it, and ends it.

    records   30,000 records of 600 bytes, memory for half of them, `BrandLoader`
    uniform   the same with `order="uniform"`
    workers   the same as `records`, by a DataLoader with two workers
    large     2,000 samples of 100 kB, memory for half of them

The columns: samples a second of this checkout over those of the other one, of the turn in the middle, with the first
and third quartile; and the same for samples a second of processor time, of training and server together, which other
work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness
from brand import pack

KINDS: Final = {"records": "small", "uniform": "small", "workers": "small", "large": "large"}
SIZES: Final = {"small": (30_000, 600), "large": (2_000, 100_000)}
"""Samples, and bytes of each."""
CHILD: Final = """
import json, os, resource, signal, subprocess, sys, time
from torch.utils.data import DataLoader
from brand import BrandDataset, BrandLoader, BrandSampler

def cpu_s():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)

def main():
    kind, data = sys.argv[1:]
    address = f"unix:@brand-two-versions-{os.getpid()}"
    command = [sys.executable, "-m", "brand", "serve", data, "--memory", "0.5", "--address", address]
    began_s = cpu_s()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    server.stdout.readline()
    order = {"order": "uniform"} if kind == "uniform" else {}
    set_ = BrandDataset(data, fields=("index", "data"), server=address, **order)
    sampler = BrandSampler(set_, seed=1, num_replicas=1, rank=0)
    Loader, more = (DataLoader, {"num_workers": 2}) if kind == "workers" else (BrandLoader, {})
    loader = Loader(set_, 250, sampler=sampler, **more)
    count, since = 0, time.perf_counter()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        count += sum(len(index) for index, _ in loader)
    seconds = time.perf_counter() - since
    assert count == 2 * len(set_)
    server.send_signal(signal.SIGINT)  # with SIGTERM it would wait for this client
    del loader, sampler, set_
    server.wait(60)
    print(json.dumps({"wall": count / seconds, "cpu": count / (cpu_s() - began_s)}))

if __name__ == "__main__":
    main()
"""
Rates = dict[str, float]


def rates(checkout: Path, kind: str, data: Path, work: Path) -> Rates:
    """Return the samples a second of one run in a checkout: of `wall` time, and of `cpu` time."""
    script = work / "child.py"
    script.write_text(CHILD)
    command = [sys.executable, str(script), kind, str(data)]
    variables = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=work, env=variables, stdout=subprocess.PIPE, timeout=600, check=True)
    found: Rates = json.loads(done.stdout)
    return found


def turns(checkouts: list[Path], work: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield the rates of each run. `checkouts`: this one and the other one."""
    for size, (samples, nbytes) in SIZES.items():
        rng = np.random.default_rng(0)
        records = ({"data": rng.bytes(nbytes)} for _ in range(samples))
        pack(records, work / size, {"data": "bytes"})
    for turn in range(count):
        for kind, size in KINDS.items():
            for number in (0, 1) if turn % 2 else (1, 0):
                found = rates(checkouts[number], kind, work / size, work)
                yield {"turn": turn, "kind": kind, "checkout": ("this", "other")[number], **found}
        harness.progress(f"turn {turn + 1} of {count}")


def row(kind: str, results: list[dict[str, Any]]) -> list[str]:
    """Return the row of a kind: the ratios of the turn in the middle, and their quartiles."""
    cells = [kind]
    for clock in ("wall", "cpu"):
        mine, other = (
            [each[clock] for each in results if (each["kind"], each["checkout"]) == (kind, name)]
            for name in ("this", "other")
        )
        ratios = [one / two for one, two in zip(mine, other, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
    return cells


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    checkouts = [Path(__file__).resolve().parents[1], given.other.resolve()]
    results = list(turns(checkouts, given.work.resolve(), given.turns))
    rows = (row(kind, results) for kind in KINDS)
    harness.show(harness.table(["kind", "samples a second", "samples a second of processor time"], rows))
    if given.out is not None:
        settings = {"turns": given.turns, "other": _commit(checkouts[1])}
        harness.save(given.out, __doc__, settings, [], results)


def _commit(checkout: Path) -> str:
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=checkout, capture_output=True, text=True)
    return found.stdout.strip()


if __name__ == "__main__":
    main()
