"""What could a data server gain by moving threads between loading and decoding, as Lobster does?

    python -m bench.moving_threads --work SCRATCH [--rounds N] [--out FILE]

One server decodes JPEG images for one rank, which fetches an epoch in the order `uniform` as fast as it can: each read
is one sample, so the number of reading threads matters as much as it can. The storage is emulated: each read waits
`LATENCY_S`, and all reads share a bandwidth. Three bandwidths: the storage gives half as many images a second as the
processors decode, as many, or many more. All pairs of reading threads and decode workers take turns, in one process.

The columns: images a second over those of the best pair of the same storage and round, the median of the rounds, with
the smallest and the largest; the reading threads' processor time of an image, and that of the decode workers. The pair
that a server takes by itself is marked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any, Final

from bench.harness import progress, save, show, table
from bench.system import cpu_s_of, process_tree
from bench.uneven_servers import DECODE, pictures
from brand import BrandDataset, BrandLoader, BrandSampler, pack
from brand.node.setup.choose import DEFAULT_DEPTH
from brand.node.setup.decoding import Prepared
from brand.testing.node import running_server
from brand.testing.storage import Habit

SAMPLES: Final = 1_536
BATCH: Final = 32
WARM: Final = 8
"""Batches that are not counted."""
LATENCY_S: Final = 0.004
CORES: Final = len(os.sched_getaffinity(0))
DEPTHS: Final = (2, DEFAULT_DEPTH, 16)
WORKERS: Final = tuple(sorted({1, CORES, 2 * CORES}))
USUAL: Final = DEFAULT_DEPTH, CORES
"""The reading threads for an unknown storage, and the decode workers of a server."""
STORAGES: Final = {"the storage is the limit": 0.5, "both are": 1.0, "decoding is the limit": 8.0}
"""Images a second of the storage over those that the processors decode."""


class SharedStorage(Habit):
    """A storage that answers each read after a while; all reads share its bandwidth."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(None)
        self._bytes_per_s, self._lock, self._free_s = bytes_per_s, threading.Lock(), 0.0

    def _read(self, pending: Any) -> None:
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + pending.call.size / self._bytes_per_s
            end_s = self._free_s
        time.sleep(max(0.0, end_s - time.monotonic()) + LATENCY_S)
        pending.do()


def make_data(work: Path) -> tuple[Path, float, float]:
    """Make the data set, unless it is there. Return it, its bytes an image, and the decode seconds of an image."""
    images = pictures()[16:48]  # neither the smallest nor the largest
    target = work / f"moving-{SAMPLES}.brand"
    if not target.exists():
        pack(({"image": images[number % len(images)]} for number in range(SAMPLES)), target, {"image": "image"}, seed=0)
    start_s = time.process_time()
    for image in images * 4:
        DECODE(image)
    decode_s = (time.process_time() - start_s) / len(images) / 4
    return target, statistics.mean(map(len, images)), decode_s


def reading_s() -> float:
    """Return the processor seconds of all living reading threads."""
    found = 0
    for thread in threading.enumerate():
        if thread.name.startswith("read-"):
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
            found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


def measure(data: Path, bytes_per_s: float, depth: int, workers: int) -> dict[str, float]:
    """Fetch an epoch from a server of its own. Return images a second, and processor milliseconds of an image."""
    decoding = Prepared("20MB", workers)
    with running_server(
        data, memory=0.1, depth=depth, storage=SharedStorage(bytes_per_s), page_cache=False, prepared=decoding
    ) as server:
        data_set = BrandDataset(
            data, server=server.address, order="uniform", fields=("image",), decode={"image": DECODE}
        )
        batches = iter(BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set, num_replicas=1, rank=0)))
        for _ in range(WARM):
            next(batches)
        children = [pid for pid in process_tree(os.getpid()) if pid != os.getpid()]
        start_s, read_s, work_s = time.monotonic(), reading_s(), cpu_s_of(children)
        images = sum(len(images) for (images,) in batches)
        took_s, read_s, work_s = time.monotonic() - start_s, reading_s() - read_s, cpu_s_of(children) - work_s
        decoded = data_set.stats()["decoding"]["fetched_decoded"]
    return {
        "per_s": images / took_s,
        "reading_ms": 1e3 * read_s / images,
        "decoding_ms": 1e3 * work_s / images,
        "by_workers": decoded / SAMPLES,
        "load_average": os.getloadavg()[0],
    }


def rows_of(runs: dict[tuple[int, int], list[dict[str, float]]]) -> list[list[str]]:
    """Return the rows of one storage."""
    best = [max(run["per_s"] for run in turn) for turn in zip(*runs.values(), strict=True)]
    rows = []
    for pair, found in runs.items():
        share = sorted(run["per_s"] / most for run, most in zip(found, best, strict=True))
        middle = {name: statistics.median(run[name] for run in found) for name in found[0]}
        rows.append(
            [
                f"{pair[0]}, {pair[1]}{', usual' if pair == USUAL else ''}",
                f"{statistics.median(share):.2f} ({share[0]:.2f} to {share[-1]:.2f})",
                f"{middle['per_s']:.0f}",
                f"{middle['reading_ms']:.2f}",
                f"{middle['decoding_ms']:.2f}",
            ]
        )
    return rows


def main() -> None:
    """Measure each pair with each storage in each round, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the data set, which is made once")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each pair (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    data, image_bytes, decode_s = make_data(options.work)
    rate = CORES / decode_s * image_bytes
    pairs = list(product(DEPTHS, WORKERS))
    runs: dict[str, dict[tuple[int, int], list[dict[str, float]]]] = {
        name: {pair: [] for pair in pairs} for name in STORAGES
    }
    for _ in range(options.rounds):
        for name, share in STORAGES.items():
            for pair in pairs:
                runs[name][pair].append(measure(data, share * rate, *pair))
                progress(f"{name}, {pair}: {runs[name][pair][-1]}")
    show(f"{1e3 * decode_s:.2f} ms and {image_bytes / 1000:.0f} kB an image, {CORES} cores\n")
    head = ["reading threads, decode workers", "images/s over the best", "images/s", "reading ms", "decoding ms"]
    for name, found in runs.items():
        show(f"{name}\n\n{table(head, rows_of(found))}")
    if options.out is not None:
        settings = {"rounds": options.rounds, "samples": SAMPLES, "latency_s": LATENCY_S, "decode_s": decode_s}
        flat = [
            {"storage": name, "reading": depth, "workers": workers, "runs": each}
            for name, found in runs.items()
            for (depth, workers), each in found.items()
        ]
        save(options.out, __doc__, settings, [], flat)


if __name__ == "__main__":
    main()
