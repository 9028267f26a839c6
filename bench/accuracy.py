"""Does it matter for training that memory holds a tenth of the data? Test accuracy of a small CNN on Fashion-MNIST.

    python -m bench.accuracy --train train.brand --test test.brand --out bench/results/accuracy.json --plot accuracy.svg

Each order has the same seeds, models and batches: PyTorch's `RandomSampler`; Brand's default with memory for a tenth of
the samples; `stripes` and `slots` with all of that memory as shuffle buffer; and `stripes` of 32 samples with a
shuffle buffer of a thirty-second of the data, to see when the order begins to matter. Images are decoded once and held
as tensors. Only the *order* of each epoch is from a `BrandLoader`, so the runs compare the shuffling and nothing else.

Two more orders are those of jobs that follow another job (`order="shared"`):

    shared, half late     the other job is in the middle of an epoch when this one begins, and both draw equally fast
    shared, half speed    the other job draws twice as fast

They are the plans that a server makes for such jobs, at constant speeds (`brand.simulate.following`), so they are the
same on any machine. `tests/torch/test_shared.py` shows that a job gets the samples that are planned. `--only
"RandomSampler" "default, 1/10" "shared, half late" "shared, half speed"` runs these orders alone.

Columns: mean test accuracy after the last epoch, its 95 % confidence interval (Student's t over the seeds), and the
p-values of paired t-tests against `RandomSampler` and against the default (the same seed starts with the same model).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import RandomSampler

from brand import BrandDataset, BrandLoader, BrandSampler
from brand.orders import Slots, Stripes
from brand.orders.policies.registry import OrderOption
from brand.orders.policies.shared_policy import SharedPolicy
from brand.simulate.following import Runner, draws_together
from brand.storage.dataset.dataset import StoredDataSet

BATCH = 128
MEMORY: Final = 0.1

Pictures = tuple[torch.Tensor, torch.Tensor]


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
    "stripes of 32, 1/32 mixing": Stripes(length=32, buffer=1 / 32),
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


def pictures(path: Path) -> Pictures:
    """Return all images, float32 of shape (N, 1, 28, 28), and labels, by index."""
    data = BrandDataset(path, fields=("image", "label"))
    images = np.stack([np.asarray(image.convert("L")) for image, _ in (data[i] for i in range(len(data)))])
    return torch.from_numpy(images.astype(np.float32) / 255)[:, None], torch.from_numpy(data.column("label").copy())


class Order:
    """The order of each epoch of a run, as indices."""

    def __init__(self, path: Path, name: str, seed: int, epochs: int) -> None:
        choice = ORDERS[name]
        self._random = torch.Generator().manual_seed(seed)
        self._loader: BrandLoader | None = None
        self._drawn: list[NDArray[np.int64]] | None = None
        self._length = len(BrandDataset(path))
        if isinstance(choice, Beside):
            self._drawn = drawn_beside(path, seed, epochs, choice)
        elif choice is not None:
            data = BrandDataset(path, fields=("index",), memory=MEMORY, order=choice)
            self._loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=seed))

    def epoch(self, number: int) -> NDArray[np.int64]:
        """Return the indices in the order in which an epoch delivers them, shape (N,)."""
        if self._drawn is not None:
            return self._drawn[number]
        if self._loader is None:
            return np.array(list(RandomSampler(range(self._length), generator=self._random)))
        self._loader.set_epoch(number)
        return np.concatenate([batch[0].numpy() for batch in self._loader])


def drawn_beside(path: Path, seed: int, epochs: int, how: Beside) -> list[NDArray[np.int64]]:
    """Return the indices of each epoch of a job that draws at the same time as another job."""
    order = BrandDataset(path, memory=MEMORY, order="shared")._source.port.order(seed)
    assert isinstance(order.policy, SharedPolicy)
    every, begins = np.ones(order.samples, np.bool_), how.late * order.samples / how.times
    runners = [Runner(0.0, how.times, every), Runner(begins, 1.0, every, epochs)]
    found: dict[float, list[NDArray[np.int32]]] = {}
    for some in draws_together(order.mapping, order.policy.stripe, seed, runners, begins + epochs * order.samples):
        for draws in some:
            if draws.runner == 1:
                found.setdefault(draws.began, []).append(draws.places)
    data = StoredDataSet(path)
    return [data.indices(np.concatenate(found[began])) for began in sorted(found)]


def run(order: Order, seed: int, epochs: int, train: Pictures, test: Pictures) -> list[float]:
    """Train a model, and return the test accuracy after each epoch."""
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    accuracies = []
    for epoch in range(epochs):
        indices = order.epoch(epoch)
        assert np.array_equal(np.sort(indices), np.arange(len(train[1])))
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


def summary(found: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """Summarise the runs in one row for each order."""
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    rows = []
    last = {name: np.array(runs)[:, -1] for name, runs in found.items()}
    for name, mine in last.items():
        half = float(stats.sem(mine) * stats.t.ppf(0.975, len(mine) - 1))
        p = {base: float(stats.ttest_rel(mine, last[base]).pvalue) for base in BASES if base in last and base != name}
        rows.append({"order": name, "accuracy": float(mine.mean()), "interval": half, "p": p, "seeds": len(mine)})
    return rows


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    """Plot the mean test accuracy by epoch, with the 95 % confidence interval."""
    import matplotlib as mpl

    mpl.use("Agg")
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
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a model of this size is faster with one thread
    train, test = pictures(options.train), pictures(options.test)
    found: dict[str, list[list[float]]] = {name: [] for name in options.only}
    for seed in range(options.seeds):  # in turns: after an early stop each order has as many runs
        for name in options.only:
            order = Order(options.train, name, seed, options.epochs)
            found[name].append(run(order, seed, options.epochs, train, test))
            print(f"seed {seed}  {name:28} {' '.join(f'{a:.4f}' for a in found[name][-1])}", flush=True)
    rows = summary(found)
    heads = ["order", "test accuracy", "95 % interval", *(f"p against {base}" for base in BASES)]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for row in rows:
        p = " | ".join(f"{row['p'][base]:.2f}" if base in row["p"] else "" for base in BASES)
        print(f"| {row['order']} | {100 * row['accuracy']:.2f} % | ± {100 * row['interval']:.2f} | {p} |")
    if options.out:
        options.out.write_text(json.dumps({"rows": rows, "runs": found}, indent=1))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
