"""Does it matter for training that memory holds a tenth of the data? Test accuracy of a small CNN on Fashion-MNIST.

    python -m bench.accuracy --train train.brand --test test.brand --out bench/results/accuracy.json --plot accuracy.svg

Convert the training set with `--chunk-size 64`: the orders are made for chunks of that size.
Each order has the same seeds, models and batches: PyTorch's `RandomSampler`; Brand's default with memory for a tenth of
the samples; `stripes` and `slots` with all of that memory as shuffle buffer; and `stripes` of 32 samples with a
shuffle buffer of a thirty-second of the data, to see when the order begins to matter. Images are decoded once and held
as tensors. Only the *order* of each epoch is from a `BrandLoader`, so the runs compare the shuffling and nothing else.
Each run has a thread of its own, so its result is the same with any number of processes.

Two more orders are those of jobs that follow another job (`order="shared"`):

    shared, half late     the other job is in the middle of an epoch when this one begins, and both draw equally fast
    shared, half speed    the other job draws twice as fast

They are the plans that a server makes for such jobs, at constant speeds (`brand.simulate.following`), so they are the
same on any machine. `tests/torch/test_shared.py` shows that a job gets the samples that are planned. `--only
"RandomSampler" "default, 1/10" "shared, half late" "shared, half speed"` runs these orders alone.

Columns: mean test accuracy after the last epoch; its difference to `RandomSampler`, paired by seed (a seed starts all
orders with the same model), both with 95 % confidence intervals (Student's t over the seeds); and the p-values of
paired t-tests against `RandomSampler` and against the default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import RandomSampler

from bench import harness
from brand import BrandDataset, BrandLoader, BrandSampler
from brand.orders import Slots, Stripes
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.orders.policies.shared_policy import SharedPolicy
from brand.simulate.following import Runner, draws_together
from brand.storage.dataset.dataset import StoredDataSet

BATCH = 128
MEMORY: Final = 0.1
READ: Final = 1_000
"""Images that one call reads."""

Images = tuple[torch.Tensor, torch.Tensor]
Epochs = NDArray[np.int64]


@dataclass(frozen=True)
class Beside:
    """A job that follows another job."""

    late: float
    """The fraction of its first epoch that the other job has drawn when this job begins."""
    times: int
    """The speed of the other job over the speed of this job, in draws."""


ORDERS: Final[dict[str, OrderOption | Beside | None]] = {
    "RandomSampler": None,
    "default, 1/10": "stripes",
    "stripes, 1/10": Stripes(buffer=MEMORY),
    "slots, 1/10": Slots(),
    "stripes of 32, 1/32": Stripes(length=32, buffer=1 / 32),
    "shared, half late": Beside(late=0.5, times=1),
    "shared, half speed": Beside(late=0.0, times=2),
}
BASES: Final = ("RandomSampler", "default, 1/10")
"""The orders with which all orders are compared."""


def make_model() -> nn.Module:
    """Make a model of two convolutions and two linear layers: 0.1 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def read_images(path: Path) -> Images:
    """Return all images, float32 of shape (N, 1, 28, 28), and labels, by index."""
    data = BrandDataset(path, fields=("image", "label"))
    parts = (range(first, min(first + READ, len(data))) for first in range(0, len(data), READ))
    images = np.stack([np.asarray(image.convert("L")) for part in parts for image, _ in data.__getitems__(list(part))])
    return torch.from_numpy(images.astype(np.float32) / 255)[:, None], torch.from_numpy(data.column("label").copy())


def order_of(path: Path, name: str, seed: int) -> Order | None:
    """Return Brand's order of this name; None for PyTorch's."""
    choice = ORDERS[name]
    if choice is None:
        return None
    named = "shared" if isinstance(choice, Beside) else choice
    return BrandDataset(path, memory=MEMORY, order=named)._source.port.order(seed)


def draw(path: Path, name: str, seed: int, epochs: int) -> Epochs:
    """Return the indices in the order in which each epoch delivers them, shape (epochs, N)."""
    choice = ORDERS[name]
    if isinstance(choice, Beside):
        return draw_beside(path, name, seed, epochs, choice)
    if choice is None:
        random, samples = torch.Generator().manual_seed(seed), range(len(BrandDataset(path)))
        return np.array([list(RandomSampler(samples, generator=random)) for _ in range(epochs)])
    data = BrandDataset(path, fields=("index",), memory=MEMORY, order=choice)
    loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=seed))
    found = []
    for number in range(epochs):
        loader.set_epoch(number)
        found.append(np.concatenate([batch[0].numpy() for batch in loader]))
    return np.stack(found)


def draw_beside(path: Path, name: str, seed: int, epochs: int, how: Beside) -> Epochs:
    """Return the indices of each epoch of a job that draws at the same time as another job, shape (epochs, N)."""
    order = order_of(path, name, seed)
    assert order is not None
    assert isinstance(order.policy, SharedPolicy)
    every, begins = np.ones(order.samples, np.bool_), how.late * order.samples / how.times
    runners = [Runner(0.0, how.times, every), Runner(begins, 1.0, every, epochs)]
    found: dict[float, list[NDArray[np.int32]]] = {}
    for some in draws_together(order.mapping, order.policy.stripe, seed, runners, begins + epochs * order.samples):
        for draws in some:
            if draws.runner == 1:
                found.setdefault(draws.began, []).append(draws.places)
    data = StoredDataSet(path)
    return np.stack([data.indices(np.concatenate(found[began])) for began in sorted(found)])


def run(seed: int, epochs: Epochs, train: Images, test: Images) -> list[float]:
    """Train a model in these orders of all images, and return the test accuracy after each epoch."""
    assert all(np.array_equal(np.sort(indices), np.arange(len(train[1]))) for indices in epochs)
    return train_in(seed, epochs, train, test)


def train_in(seed: int, epochs: Epochs, train: Images, test: Images) -> list[float]:
    """Train a model in these orders, and return the test accuracy after each epoch."""
    torch.set_num_threads(1)  # a model of this size is faster with one thread
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    accuracies = []
    for indices in epochs:
        model.train()
        for batch in torch.from_numpy(indices).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(x).argmax(1) == y).sum()) for x, y in zip(*(t.split(1000) for t in test), strict=True)
            )
        accuracies.append(right / len(test[1]))
    return accuracies


def jobs(options: argparse.Namespace, train: Images, test: Images) -> Iterator[tuple[int, Epochs, Images, Images]]:
    """Yield the arguments of all runs, in turns: seed by seed, the orders as they are listed."""
    for seed in range(options.seeds):
        for name in options.only:
            yield seed, draw(options.train, name, seed, options.epochs), train, test


def run_all(options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Train all models. Return the test accuracies of each order: for each seed, after each epoch."""
    train, test = read_images(options.train), read_images(options.test)
    found: dict[str, list[list[float]]] = {name: [] for name in options.only}
    turns = [(seed, name) for seed in range(options.seeds) for name in options.only]
    results = harness.in_processes(run, jobs(options, train, test), options.processes)
    for (seed, name), accuracies in zip(turns, results, strict=True):
        found[name].append(accuracies)
        harness.progress(f"seed {seed}  {name:28} {' '.join(f'{a:.4f}' for a in accuracies)}")
    return found


def table_of(found: dict[str, list[list[float]]], bases: Sequence[str] = BASES) -> str:
    """Tabulate the runs, one row for each order, beside the orders `bases`."""
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    last = {name: 100 * np.array(runs)[:, -1] for name, runs in found.items()}

    def shown(values: NDArray[np.float64], form: str) -> str:
        half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
        return f"{values.mean():{form}} ± {half:.2f}"

    rows = []
    for name, mine in last.items():
        row = [name, shown(mine, ".2f")]
        row.append(shown(mine - last[bases[0]], "+.2f") if bases[0] in last and name != bases[0] else "")
        for base in bases:
            row.append(f"{stats.ttest_rel(mine, last[base]).pvalue:.2f}" if base in last and base != name else "")
        rows.append(row)
    against = f"against {bases[0]}, points"
    return harness.table(["order", "accuracy, %", against, *(f"p against {base}" for base in bases)], rows)


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    """Plot the mean test accuracy by epoch, with the 95 % confidence interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "accuracy"  # equal plots have equal bytes
    import matplotlib.pyplot as plt
    from scipy import stats

    figure, axes = plt.subplots(figsize=(7, 4.2))
    for step, (name, runs) in enumerate(found.items()):
        values = 100 * np.array(runs)
        epochs = np.arange(1, values.shape[1] + 1) + 0.06 * (step - (len(found) - 1) / 2)
        half = stats.sem(values, axis=0) * stats.t.ppf(0.975, len(values) - 1)
        axes.errorbar(epochs, values.mean(axis=0), half, label=name, marker="o", capsize=3, linewidth=1.4, markersize=4)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", xticks=range(1, values.shape[1] + 1))
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all orders, print a table, save every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=ORDERS, default=list(ORDERS), metavar="ORDER")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    found = run_all(options)
    harness.show(f"test accuracy after {options.epochs} epochs\n{table_of(found)}")
    if options.out:
        settings: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "epochs", "processes")}
        orders = {name: order_of(options.train, name, 0) for name in options.only}
        settings |= {"batch": BATCH, "memory": MEMORY}
        settings["orders of seed 0"] = {name: order and order.to_json() for name, order in orders.items()}
        harness.save(options.out, __doc__, settings, [], found)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
