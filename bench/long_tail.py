"""How much does a class-balanced epoch of a long-tailed data set read, and how accurate is a model trained with it?

    python -m bench.long_tail reads --work SCRATCH --out bench/results/long-tail-reads.json
    python -m bench.long_tail accuracy --train train.brand --test test.brand --out bench/results/long-tail-accuracy.json

`reads`: 200,000 samples of 20 kB in 1,000 classes, whose sizes follow Zipf's law with the exponent 1. Each epoch draws
200,000 samples by `BrandSampler(ds, weights="balanced")`, so each class 200 times, for two sizes of memory. Columns:
memory, as a part of the data, and epoch; different samples in the epoch; bytes read over the bytes of these samples,
then the same without bytes that were read because skipping them would have taken longer; samples that were read
directly; samples/s. `WeightedRandomSampler` reads each of the 200,000 samples on its own: its ratio is computed.

`accuracy`: Fashion-MNIST, of which class `c` keeps a fraction `100 ** (-c / 9)` of its images, so that the largest
class has 100 times the images of the smallest. Epochs of as many images as are left, in the order of a `RandomSampler`
(each image once), of a `WeightedRandomSampler`, and of `BrandSampler(weights="balanced")` with memory for a tenth.
Model and batches are those of `bench.accuracy`. Test accuracy after the last epoch, 95 % confidence intervals.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import RandomSampler, WeightedRandomSampler

from bench import harness
from bench.accuracy import BATCH, MEMORY, Epochs, Images, read_images, table_of, train_in
from brand import BrandDataset, BrandLoader, BrandSampler, pack

CLASSES: Final = 1_000
TAIL: Final = 100
"""Images of the largest class for each of the smallest."""
NAMES: Final = ("RandomSampler", "WeightedRandomSampler", "weights, 1/10")


def zipf_sizes(samples: int) -> NDArray[np.int64]:
    """Return the samples of each class: class `c` has one for each `c` of the first class, about."""
    share = 1 / np.arange(1, CLASSES + 1)
    sizes: NDArray[np.int64] = np.maximum(1, (share / share.sum() * samples).astype(np.int64))
    sizes[0] += samples - sizes.sum()
    return sizes


def make(folder: Path, samples: int, size: int) -> None:
    """Pack the data set."""
    labels = np.repeat(np.arange(CLASSES), zipf_sizes(samples)).tolist()
    rows = ({"label": label, "data": os.urandom(size)} for label in labels)
    pack(rows, folder, {"label": "int", "data": "bytes"}, compression="none")


def epochs_of(folder: Path, memory: float, epochs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each epoch."""
    data = BrandDataset(folder, memory=memory, fields=("index", "data"))
    loader = BrandLoader(data, 256, sampler=BrandSampler(data, weights="balanced"))
    read = loaded = direct = 0.0
    for epoch in range(epochs):
        started = time.perf_counter()
        found = np.concatenate([indices.numpy() for indices, _ in loader])
        seconds = time.perf_counter() - started
        said, different = data.stats(), len(np.unique(found))
        mean = said["data_bytes"] / len(data)
        kept = (said["read_utilisation"] or 0.0) * said["read_bytes"]
        yield {
            "memory": memory,
            "epoch": epoch,
            "different": different,
            "read": (said["read_bytes"] - read) / mean / different,
            "needed": (kept - loaded) / mean / different,
            "direct": said["direct"] - direct,
            "rate": len(found) / seconds,
            "separate": len(found) / different,
        }
        read, loaded, direct = said["read_bytes"], kept, said["direct"]


def measure_reads(options: argparse.Namespace) -> None:
    """Run `reads`."""
    folder = options.work / f"long-tail-{options.samples}-{options.bytes}.brand"
    if not folder.exists():
        make(folder, options.samples, options.bytes)
    found = [row for memory in options.memory for row in epochs_of(folder, memory, options.epochs)]
    columns = ["memory, epoch", "different samples", "read", "needed", "direct", "samples/s", "WeightedRandomSampler"]
    rows = [
        [
            f"{row['memory']:.0%}, epoch {row['epoch']}",
            f"{row['different']:,}",
            f"{row['read']:.3f}",
            f"{row['needed']:.3f}",
            f"{row['direct']:.0f}",
            f"{row['rate']:,.0f}",
            f"{row['separate']:.2f}",
        ]
        for row in found
    ]
    harness.show(harness.table(columns, rows))
    if options.out:
        settings = {name: getattr(options, name) for name in ("samples", "bytes", "epochs", "memory")}
        harness.save(options.out, __doc__, settings, [], found)


def long_tail(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which images are left of a set whose classes are equally large, shape (images,)."""
    classes = int(labels.max()) + 1
    left = np.zeros(len(labels), np.bool_)
    for number in range(classes):
        of = np.flatnonzero(labels == number)
        left[of[: round(len(of) * TAIL ** (-number / (classes - 1)))]] = True
    return left


def draw(path: Path, name: str, seed: int, epochs: int) -> Epochs:
    """Return the indices in the order in which each epoch draws them, shape (epochs, images that are left)."""
    data = BrandDataset(path, fields=("index",), memory=MEMORY)
    labels = data.column("label")
    left = long_tail(labels)
    indices, random = np.flatnonzero(left), torch.Generator().manual_seed(seed)
    if name == "RandomSampler":
        return np.array([indices[list(RandomSampler(range(len(indices)), generator=random))] for _ in range(epochs)])
    if name == "WeightedRandomSampler":
        weights = (1 / np.bincount(labels[left]))[labels[left]]
        sampler = WeightedRandomSampler(weights.tolist(), len(indices), generator=random)
        return np.array([indices[list(sampler)] for _ in range(epochs)])
    loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=seed, subset=left, weights="balanced"))
    return np.stack([np.concatenate([batch[0].numpy() for batch in loader]) for _ in range(epochs)])


def measure_accuracy(options: argparse.Namespace) -> None:
    """Run `accuracy`."""
    train, test = read_images(options.train), read_images(options.test)
    turns = [(seed, name) for seed in range(options.seeds) for name in NAMES]

    def jobs() -> Iterator[tuple[int, Epochs, Images, Images]]:
        for seed, name in turns:
            yield seed, draw(options.train, name, seed, options.epochs), train, test

    found: dict[str, list[list[float]]] = {name: [] for name in NAMES}
    for (seed, name), accuracies in zip(turns, harness.in_processes(train_in, jobs(), options.processes), strict=True):
        found[name].append(accuracies)
        harness.progress(f"seed {seed}  {name:24} {' '.join(f'{a:.4f}' for a in accuracies)}")
    harness.show(table_of(found, NAMES[:2]))
    if options.out:
        settings = {name: getattr(options, name) for name in ("seeds", "epochs", "processes")}
        harness.save(options.out, __doc__, settings | {"batch": BATCH, "memory": MEMORY}, [], found)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    reads = parts.add_parser("reads")
    reads.add_argument("--work", type=Path, required=True)
    reads.add_argument("--samples", type=int, default=200_000)
    reads.add_argument("--bytes", type=int, default=20_000)
    reads.add_argument("--memory", type=float, nargs="+", default=[0.4, 0.25])
    reads.add_argument("--epochs", type=int, default=4)
    reads.set_defaults(run=measure_reads)
    accuracy = parts.add_parser("accuracy")
    accuracy.add_argument("--train", type=Path, required=True)
    accuracy.add_argument("--test", type=Path, required=True)
    accuracy.add_argument("--seeds", type=int, default=5)
    accuracy.add_argument("--epochs", type=int, default=5)
    accuracy.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    accuracy.set_defaults(run=measure_accuracy)
    for part in (reads, accuracy):
        part.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
