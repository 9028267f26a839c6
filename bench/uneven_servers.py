"""How far apart are four ranks of which one has the largest images, if their server divides its decode workers so?

    python -m bench.uneven_servers --work SCRATCH [--load SHARE] [--rounds N] [--out FILE]

`uneven_ranks` computes the clock; here servers, decode workers and ranks are processes. The order of the ranks is that
of a uniform shuffle. It is known before the images are chosen, so each sample of rank 0 is one of the quarter of the
images with most pixels, and each other sample is one of the rest.

Each iteration, each rank takes a batch, sleeps as long as a step of training takes, and waits for the other ranks, as
with an all-reduce. A step takes so long that all images together keep the cores busy for LOAD of the time; the decode
seconds of an image are measured before, as processor time. There are four times as many decode workers as cores, so
that each rank can have several: the cores divide their time among the busy workers.

`gap` is the fraction of iterations in which ranks begin more than 10 % of a step apart (`bench.papers.threads`),
`time` the mean iteration over a step, `CPU ms` the processor time of an image in all processes. The allotments take
turns. The first `WARM` and the last `END` iterations are not counted.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from bench.harness import progress, save, show, table
from bench.papers.threads import imbalance
from bench.system import cpu_s_of, process_tree
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage, pack
from brand.node.setup.decoding import ALLOTMENTS

RANKS: Final = 4
PICTURES: Final = 64
"""Different images; each is stored for many samples."""
WARM: Final = 6
END: Final = 2
SEED: Final = 3
DECODE: Final = DecodeImage(size=(224, 224))
LIMIT_S: Final = 120.0


def pictures() -> list[bytes]:
    """Return JPEG files, those with the fewest pixels first: 128 to 1,600 pixels a side, half of them below 450."""
    random = np.random.default_rng(0)
    found = []
    for side in np.geomspace(128, 1600, PICTURES).astype(int).tolist():
        coarse = Image.fromarray(random.integers(0, 255, (side // 16, side // 16, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        found.append(file.getvalue())
    return found


def ranks_of(data: Path) -> list[list[int]]:
    """Return the indices of the samples of each rank, in the order of its first epoch."""
    found = []
    for rank in range(RANKS):
        data_set = BrandDataset(data, fields=("index",), server="none", order="uniform")
        sampler = BrandSampler(data_set, num_replicas=RANKS, rank=rank, seed=SEED)
        found.append([int(index) for (indices,) in BrandLoader(data_set, 64, sampler=sampler) for index in indices])
    return found


def make_data(folder: Path, samples: int) -> tuple[Path, float]:
    """Make the data set, unless it is there. Return it, and the decode seconds of a mean sample."""
    images = pictures()
    large = PICTURES - PICTURES // RANKS
    seconds = []
    for image in images:
        start = time.thread_time()
        for _ in range(4):
            DECODE(image)
        seconds.append((time.thread_time() - start) / 4)
    target, field = folder / f"uneven-{samples}.brand", {"image": "image"}
    if not target.exists():
        small = folder / f"small-{samples}.brand"
        pack(({"image": images[0]} for _ in range(samples)), small, field, seed=0)
        random, content = np.random.default_rng(1), np.zeros(samples, np.int64)
        for rank, indices in enumerate(ranks_of(small)):
            low, high = (0, large) if rank else (large, PICTURES)
            content[indices] = random.integers(low, high, len(indices))
        pack(({"image": images[which]} for which in content.tolist()), target, field, seed=0)
    first = statistics.mean(seconds[large:])
    mean = (first + (RANKS - 1) * statistics.mean(seconds[:large])) / RANKS
    show(f"{1e3 * mean:.2f} ms an image; rank 0 has {100 * first / RANKS / mean:.0f} % of the work\n")
    return target, mean


def train(rank: int, data: Path, server: str, batch: int, train_s: float, together: Barrier, found: Queue[Any]) -> None:
    """Train an epoch as one rank. Send the rank, and the seconds that it waited for each batch."""
    data_set = BrandDataset(
        data, server=server, order="uniform", job="uneven", fields=("image",), decode={"image": DECODE}
    )
    sampler = BrandSampler(data_set, num_replicas=RANKS, rank=rank, seed=SEED)
    batches = iter(BrandLoader(data_set, batch, sampler=sampler, num_workers=1, prefetch_batches=1))
    waits = []
    for _ in range(len(sampler) // batch):
        together.wait(LIMIT_S)
        start_s = time.monotonic()
        next(batches)
        waits.append(time.monotonic() - start_s)
        time.sleep(train_s)
    together.wait(LIMIT_S)
    found.put((rank, waits, data_set.stats()["decoding"]))


def measure(data: Path, allotment: str, options: argparse.Namespace, train_s: float) -> dict[str, Any]:
    """Measure one epoch with a server of its own."""
    address = f"unix:@bench-uneven-{os.getpid()}"
    command = [sys.executable, "-m", "brand", "serve", str(data), "--memory", "1.0", "--address", address]
    command += ["--decoded-memory", options.decoded_memory, "--decode-workers", str(options.workers)]
    command += ["--decode-allotment", allotment, "--until-eof"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdout.readline()
        context = multiprocessing.get_context("spawn")
        together, told = context.Barrier(RANKS + 1), context.Queue()
        arguments = (data, address, options.batch, train_s, together, told)
        processes = [context.Process(target=train, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        begins, cpus = [], []
        for _ in range(options.iterations):
            together.wait(LIMIT_S)
            begins.append(time.monotonic())
            if len(begins) in (WARM + 1, options.iterations - END):
                everyone = [*process_tree(server.pid), *(int(process.pid or 0) for process in processes)]
                cpus.append(cpu_s_of(everyone))
        together.wait(LIMIT_S)
        ranks, waited, (facts, *_) = zip(*(told.get(timeout=LIMIT_S) for _ in processes), strict=True)
        for process in processes:
            process.join()
        server.stdin.close()
        server.wait()
    counted = slice(WARM, options.iterations - END - 1)
    ready_s = train_s + np.array(waited)[np.argsort(ranks)].T[counted]
    lasted_s = np.diff(begins)[counted]
    images = RANKS * options.batch * len(lasted_s)
    return {
        "gap": imbalance(ready_s, train_s),
        "time": float(lasted_s.mean() / train_s),
        "cpu_ms": 1e3 * (cpus[1] - cpus[0]) / images,
        "decoded": facts["decoded"],
        "fetched_encoded": facts["fetched_encoded"],
        "worker_s": [rank["worker_s"] for rank in facts["ranks"]],
        "waits_s": (ready_s.mean(axis=0) - train_s).tolist(),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure each allotment in each round, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the data set, which is made once")
    parser.add_argument("--batch", type=int, default=32, help="images of a rank in an iteration (%(default)s)")
    parser.add_argument("--iterations", type=int, default=60, help="iterations of a run (%(default)s)")
    parser.add_argument("--load", type=float, default=0.65, help="load of the cores (%(default)s)")
    parser.add_argument("--only", nargs="+", default=list(ALLOTMENTS), choices=ALLOTMENTS, help="allotments (all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each allotment (%(default)s)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=4 * cores, help="decode workers (%(default)s)")
    parser.add_argument("--decoded-memory", default="100MB", help="memory for decoded images (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    data, decode_s = make_data(options.work, RANKS * options.batch * options.iterations)
    train_s = RANKS * options.batch * decode_s / cores / options.load
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
    for _ in range(options.rounds):
        for name in options.only:
            runs[name].append(measure(data, name, options, train_s))
            progress(f"{name}: {runs[name][-1]}")

    def middle(name: str, key: str) -> float:
        return float(statistics.median(run[key] for run in runs[name]))

    rows = [
        [
            name,
            f"{100 * middle(name, 'gap'):.0f} %",
            " ".join(f"{100 * run['gap']:.0f}" for run in found),
            f"{middle(name, 'time'):.2f}",
            f"{middle(name, 'cpu_ms'):.2f}",
        ]
        for name, found in runs.items()
    ]
    show(f"{options.workers} decode workers on {cores} cores, a step of {1e3 * train_s:.0f} ms\n")
    show(table(["decode workers", "gap", "each run, %", "time", "CPU ms"], rows))
    if options.out is not None:
        settings = {name: value for name, value in vars(options).items() if name not in ("work", "out")}
        save(options.out, __doc__, settings | {"train_s": train_s}, [], runs)


if __name__ == "__main__":
    main()
