"""Does it matter for training that memory holds a tenth of the data? Test accuracy of a small CNN on Fashion-MNIST.

    python -m bench.accuracy --train train.brand --test test.brand --out bench/results/accuracy.json --plot accuracy.svg

Four orders, each with the same seeds, models and batches: PyTorch's `RandomSampler`; `stripes` and `slots` with memory
for a tenth of the samples, all of it mixing; and `stripes` of 32 samples with a thirty-second of the data mixing, to
see where the order begins to matter. Pictures are decoded once and kept as tensors. Only the *order* comes from a
`BrandLoader` in each epoch, so the runs compare the shuffling and nothing else.

Columns: mean test accuracy after the last epoch, its 95 % confidence interval (Student's t over the seeds), and the
p-value of a paired t-test against `RandomSampler` (the same seed starts with the same model).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import RandomSampler

from brand import BrandDataset, BrandLoader, BrandSampler, Slots, Stripes

BATCH = 128

Pictures = tuple[torch.Tensor, torch.Tensor]
ORDERS = {
    "RandomSampler": None,
    "stripes, 1/10": (0.1, Stripes(mixing=0.1)),
    "slots, 1/10": (0.1, Slots()),
    "stripes of 32, 1/32 mixing": (0.1, Stripes(length=32, mixing=1 / 32)),
}


def make_model() -> nn.Module:
    """Two convolutions and two linear layers: 0.1 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def pictures(path: Path) -> Pictures:
    """All pictures, float32 of shape (N, 1, 28, 28), and labels, by index."""
    data = BrandDataset(path, fields=("image", "label"))
    images = np.stack([np.asarray(image.convert("L")) for image, _ in (data[i] for i in range(len(data)))])
    return torch.from_numpy(images.astype(np.float32) / 255)[:, None], torch.from_numpy(data.column("label").copy())


class Order:
    """The order of each epoch of a run, as indices."""

    def __init__(self, path: Path, name: str, seed: int) -> None:
        choice = ORDERS[name]
        self._random = torch.Generator().manual_seed(seed)
        self._loader: BrandLoader | None = None
        self._length = len(BrandDataset(path))
        if choice is not None:
            data = BrandDataset(path, fields=("index",), memory=choice[0], protocol=choice[1])
            self._loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=seed))

    def epoch(self, number: int) -> NDArray[np.int64]:
        """Indices in the order in which an epoch delivers them, shape (N,)."""
        if self._loader is None:
            return np.array(list(RandomSampler(range(self._length), generator=self._random)))
        self._loader.set_epoch(number)
        return np.concatenate([batch[0].numpy() for batch in self._loader])


def run(order: Order, seed: int, epochs: int, train: Pictures, test: Pictures) -> list[float]:
    """Test accuracy after each epoch."""
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
    """One row for each order."""
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    rows = []
    base = np.array(found["RandomSampler"])[:, -1]
    for name, runs in found.items():
        last = np.array(runs)[:, -1]
        half = float(stats.sem(last) * stats.t.ppf(0.975, len(last) - 1))
        p = None if name == "RandomSampler" else float(stats.ttest_rel(last, base).pvalue)
        rows.append({"order": name, "accuracy": float(last.mean()), "interval": half, "p": p, "seeds": len(last)})
    return rows


def plot(found: dict[str, list[list[float]]], path: Path) -> None:
    """Mean test accuracy by epoch, with the 95 % confidence interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from scipy import stats

    figure, axes = plt.subplots(figsize=(7, 4.2))
    for step, (name, runs) in enumerate(found.items()):
        values = 100 * np.array(runs)
        epochs = np.arange(1, values.shape[1] + 1) + 0.06 * (step - 1.5)
        half = stats.sem(values, axis=0) * stats.t.ppf(0.975, len(values) - 1)
        axes.errorbar(epochs, values.mean(axis=0), half, label=name, marker="o", capsize=3, linewidth=1.4, markersize=4)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", xticks=range(1, values.shape[1] + 1))
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all, print a table, keep every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # so small a model is faster with one thread
    train, test = pictures(options.train), pictures(options.test)
    found: dict[str, list[list[float]]] = {name: [] for name in ORDERS}
    for seed in range(options.seeds):  # the orders take turns, so that an early stop leaves equally many runs of each
        for name in ORDERS:
            found[name].append(run(Order(options.train, name, seed), seed, options.epochs, train, test))
            print(f"seed {seed}  {name:28} {' '.join(f'{a:.4f}' for a in found[name][-1])}", flush=True)
    rows = summary(found)
    print("\n| order | test accuracy | 95 % interval | p against RandomSampler |\n| --- | --- | --- | --- |")
    for row in rows:
        p = "" if row["p"] is None else f"{row['p']:.2f}"
        print(f"| {row['order']} | {100 * row['accuracy']:.2f} % | ± {100 * row['interval']:.2f} | {p} |")
    if options.out:
        options.out.write_text(json.dumps({"rows": rows, "runs": found}, indent=1))
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
