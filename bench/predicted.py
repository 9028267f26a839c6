"""Does a run take as long, and read as much, as `brand simulate` predicts?

    python -m bench.predicted --data images.brand [--decode] [--out FILE]

For memory for a tenth, a quarter and a half of the data: three epochs of a `BrandLoader` on storage that lab.py
limits to 120 MB/s and 400 operations a second, and the answer of the simulation for the same order. With
`--decode`, one thread decodes; its seconds per sample are measured first, in memory, over all samples. Give a smaller
data set then: a core decodes a tenth of the bytes that the storage delivers. Seconds are those of an epoch from the end
of the epoch before; the first epoch begins at the first batch. Reads and bytes are those of all epochs and of the
read-ahead for the next epoch until the server is idle.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import LAB, progress, show, table
from brand import BrandDataset, BrandLoader
from brand.node.setup.measure import measure_pages
from brand.orders.order import Order
from brand.simulate.pace import Machine, pace
from brand.simulate.running import EpochWork, SimulatedRun, work_of
from brand.simulate.storages import BUILT_IN
from brand.simulate.whatif import data_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server

EPOCHS = 3
BATCH = 256
MEMORIES = (0.1, 0.25, 0.5)
QUIET_S = 3.0


def run(folder: Path, memory: float, *, decode: bool) -> dict[str, Any]:
    """Draw the epochs, in the limited process, from a data server that reads past the page cache."""
    with running_server(folder, memory=memory, page_cache=False) as server:
        data = BrandDataset(folder, fields=("image",), decode=decode, memory=memory, server=server.address)
        loader = BrandLoader(data, BATCH, collate_fn=len, num_workers=1)
        seconds, end = [], 0.0
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            for _ in loader:
                end = end or time.perf_counter()
            seconds.append(time.perf_counter() - end)
            end = time.perf_counter()
        stats = data.stats()
        while True:
            time.sleep(QUIET_S)
            before, stats = stats, data.stats()
            if stats["reads"] == before["reads"] and not stats["reading"]:
                counts = {name: stats[name] for name in ("reads", "read_bytes", "direct")}
                return {"seconds": seconds, "order": data._source.port.order(0).to_json(), **counts}


def decode_seconds(folder: Path) -> float:
    """Return the seconds that one thread takes to decode a sample in memory: the mean over all samples."""
    times = []
    for decode in (False, False, True):  # the first run reads the files into the page cache
        data = BrandDataset(folder, fields=("image",), memory=1.0, decode=decode)
        parts = np.array_split(np.random.default_rng(0).permutation(len(data)), -(-len(data) // BATCH))
        started = time.perf_counter()
        for part in parts:
            data.__getitems__(part.tolist())
        times.append(time.perf_counter() - started)
    return (times[2] - times[1]) / len(data)


def limited(options: argparse.Namespace, memory: float, *, decode: bool) -> dict[str, Any]:
    """Call `run` in a process of its own, on storage that is limited."""
    lab = [*shlex.split(options.lab), "--profile", "nas", "--cold", "--path", str(options.data), "--preload"]
    loads = f"{sys.executable} -c 'import brand.torch'"
    child = [sys.executable, "-m", "bench.predicted", "--data", str(options.data), "--child", str(memory)]
    found = subprocess.run(
        [*lab, loads, "--", *child, *(["--decode"] if decode else [])], capture_output=True, text=True, check=False
    )
    lines = [line for line in found.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        raise SystemExit(f"the run failed:\n{found.stdout}\n{found.stderr}")
    answer: dict[str, Any] = json.loads(lines[0])
    return answer


def predicted(folder: Path, memory: float, order: Order, decode_s: float) -> tuple[list[float], int, int]:
    """Return the seconds of each epoch; reads and bytes of all epochs, and of the read-ahead that fits in memory."""
    data = data_of(StoredDataSet(folder))
    one = SimulatedRun(data.sizes, order, memory, batch=BATCH)
    works = list(work_of(one, range(EPOCHS + 1)))
    machine = Machine(BUILT_IN["nas"], train_per_s=math.inf, decode_s=decode_s)
    ahead = _ahead(works[-1][0], measure_pages(data.sizes)[0])
    done = [work for (work,) in works[:-1]]
    reads = sum(work.reads for work in done) + ahead
    size = sum(work.read_bytes for work in done) + int(works[-1][0].read_sizes[:ahead].sum())
    return [each.seconds for each in pace(one, works[:-1], machine)], reads, size


def _ahead(work: EpochWork, page: int) -> int:
    """Return the reads of an epoch that fit in memory before its first draw."""
    return int(np.searchsorted(np.cumsum(work.read_pages), work.room_pages - work.kept_bytes // page, "right"))


def main() -> None:
    """Compare all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a data set with a field `image`")
    parser.add_argument("--lab", default=LAB, help="the command that limits storage (bench.lab)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--decode", action="store_true", help="decode the images")
    options = parser.parse_args()
    if options.child is not None:
        show(json.dumps(run(options.data, options.child, decode=options.decode)))
        return
    rows, facts = [], []
    decode_s = decode_seconds(options.data) if options.decode else 0.0
    for memory in MEMORIES:
        progress(f"memory {memory}")
        found = limited(options, memory, decode=options.decode)
        order = Order.from_json(found["order"])
        seconds, reads, size = predicted(options.data, memory, order, decode_s)
        facts.append({"memory": memory, "run": found, "seconds": seconds, "reads": reads})
        times = [f"{mine:.1f} / {theirs:.1f}" for mine, theirs in zip(seconds, found["seconds"], strict=True)]
        ratio = sum(seconds) / sum(found["seconds"])
        counts = [f"{reads:,} / {found['reads']:,}", f"{size:,} / {found['read_bytes']:,}"]
        rows.append([f"{memory}", *times, f"{ratio:.3f}", *counts])
    names = ["memory", *(f"epoch {n + 1}, s" for n in range(EPOCHS)), "ratio", "reads", "bytes"]
    decoded = f" Decoding takes {1000 * decode_s:.2f} ms a sample." if options.decode else ""
    show(f"Predicted / measured.{decoded}\n")
    show(table(names, rows))
    if options.out is not None:
        options.out.write_text(json.dumps({"decode_s": decode_s, "cases": facts}, indent=1))


if __name__ == "__main__":
    main()
