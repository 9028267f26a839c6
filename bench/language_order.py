"""Does the order matter for a language model? Evaluation loss of a byte-level model after one pass in four orders.

    python -m bench.language_order --data DATA --out bench/results/language-order.json --plot language_order.svg

`DATA` holds `text/*.jsonl`, one source a file. `language_data.py` cuts every 20th document into sequences of 128 bytes,
once for all orders. Each order draws each sequence once:

    uniform   a permutation of all samples
    brand     stripes over samples that a conversion shuffled: Brand's default
    blocks    the same stripes over samples in source order, as if the conversion had not shuffled
    window    a shuffle buffer over samples in source order

`brand`, `blocks` and `window` have memory for 1/64 of the samples. The model is a GRU of 0.33 million parameters. AdamW
trains it with batches of 16. The learning rate rises to 0.004 during the first 5 % of the steps, and falls along a
cosine to a tenth. A seed decides weights and orders, so all orders of a seed start with the same weights.

The evaluation set is an even sample of other documents: 200 sequences of each source. Losses are bits a byte; "by
bytes" weighs a source by its fraction of the training set, "by source" weighs all sources alike. "against uniform" is
the mean over the seeds of (loss / loss of `uniform` - 1). Intervals are 95 % confidence intervals (Student's t over the
seeds). "adjacent distance" is the mean distance in the pass of two samples that are adjacent in the
source, as a fraction of the pass; uniform is 0.333.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench import harness
from bench.language_data import LENGTH, ORDERS, UNIFORM, Texts, read_texts, stripes
from brand.testing.shuffling import measure

BATCH: Final = 16
"""Sequences of a batch."""
RATE: Final = 4e-3
"""Highest learning rate."""
WARM_UP: Final = 0.05
"""Fraction of the steps in which the learning rate rises."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of training and evaluation."""

    every: int
    """One document of this many is trained on, and another one may be evaluated."""
    share: int
    """Memory holds `1 / share` of the samples."""
    held: int
    """Sequences of the evaluation set from each source."""
    seeds: int
    evaluations: int
    """Evaluations of a run, evenly over its steps; the last one is at the end."""


FULL: Final = Scale(every=20, share=64, held=200, seeds=5, evaluations=10)
QUICK: Final = Scale(every=400, share=16, held=8, seeds=2, evaluations=3)


@dataclass(frozen=True, slots=True)
class Run:
    """One model, trained once."""

    order: str
    seed: int
    seen: list[float]
    """Fraction of the pass at each evaluation."""
    losses: list[list[float]]
    """Bits a byte at each evaluation, for each source."""
    adjacent_distance: float
    cpu_s: float


class Model(nn.Module):
    """A model that predicts the next byte: an embedding, a GRU, a linear layer; 0.33 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.gru = nn.GRU(64, 256, batch_first=True)
        self.head = nn.Linear(256, 256)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in nats a byte, of all bytes but the first. sequences: int64, shape (n, LENGTH)."""
        states, _ = self.gru(self.embedding(sequences[:, :-1]))
        logits = self.head(states)
        return nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def rate(step: int, steps: int) -> float:
    """Return the learning rate of a step, as a fraction of the highest: a linear rise, then a cosine to a tenth."""
    rising = WARM_UP * steps
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.55 + 0.45 * math.cos(math.pi * (step - rising) / (steps - rising))


def run(name: str, seed: int, texts: Texts, scale: Scale) -> Run:
    """Train a model in one order."""
    started = time.process_time()
    torch.set_num_threads(1)
    samples = len(texts.train)
    order = ORDERS[name](samples, samples // scale.share, seed)
    distance = measure(order, chunk_size=samples, batch=BATCH).adjacent_distance  # raises if a sample is not drawn once
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    train, held = torch.from_numpy(texts.train).long(), torch.from_numpy(texts.held).long()
    steps = samples // BATCH  # an incomplete batch is omitted
    ends = [steps * (number + 1) // scale.evaluations for number in range(scale.evaluations)]
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * rate(step, steps)
        loss = model(train[order[step * BATCH : (step + 1) * BATCH]])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step + 1 in ends:
            with torch.no_grad():
                losses.append([float(model(source)) / math.log(2) for source in held])
    return Run(name, seed, [end / steps for end in ends], losses, distance, time.process_time() - started)


def run_all(texts: Texts, scale: Scale, processes: int) -> list[Run]:
    """Run all seeds of all orders, each run in a process; the orders take turns."""
    jobs = [(name, seed, texts, scale) for seed in range(scale.seeds) for name in ORDERS]
    runs = []
    for done in harness.in_processes(run, jobs, processes):
        runs.append(done)
        last = " ".join(f"{loss:.4f}" for loss in done.losses[-1])
        harness.progress(f"seed {done.seed}  {done.order:8} {last}  {done.cpu_s:.0f} s")
    return runs


def losses_of(runs: list[Run], weights: list[float]) -> dict[str, NDArray[np.float64]]:
    """Return the weighted loss of each order, bits a byte, shape (seeds, evaluations)."""
    return {name: np.array([np.array(done.losses) @ weights for done in runs if done.order == name]) for name in ORDERS}


def interval(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half of the 95 % confidence interval of the mean over the first axis (Student's t)."""
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    half: NDArray[np.float64] = stats.sem(values, axis=0) * stats.t.ppf(0.975, len(values) - 1)
    return half


def summary(runs: list[Run], texts: Texts) -> list[dict[str, Any]]:
    """Return one row for each order: losses at the end, and differences to `uniform` in percent, paired by seed."""
    alike = [1 / len(texts.names)] * len(texts.names)
    weightings = {"bytes": texts.share, "source": alike}
    weightings |= {name: [float(name == other) for other in texts.names] for name in texts.names}
    rows: list[dict[str, Any]] = [
        {"order": name, "adjacent": float(np.mean([done.adjacent_distance for done in runs if done.order == name]))}
        for name in ORDERS
    ]
    for weighting, weights in weightings.items():
        found = losses_of(runs, weights)
        for row in rows:
            last = found[row["order"]][:, -1]
            more = 100 * (last / found[UNIFORM][:, -1] - 1)
            row[weighting] = {
                "loss": float(last.mean()),
                "interval": float(interval(last)),
                "more": float(more.mean()),
                "more_interval": float(interval(more)),
            }
    return rows


def tables(rows: list[dict[str, Any]], texts: Texts) -> str:
    """Tabulate the losses, and the differences source by source."""

    def more(row: dict[str, Any], weighting: str) -> str:
        if row["order"] == UNIFORM:
            return ""
        return f"{row[weighting]['more']:+.1f} ± {row[weighting]['more_interval']:.1f} %"

    first = [
        [
            row["order"],
            f"{row['adjacent']:.3f}",
            f"{row['bytes']['loss']:.3f} ± {row['bytes']['interval']:.3f}",
            more(row, "bytes"),
            f"{row['source']['loss']:.3f} ± {row['source']['interval']:.3f}",
            more(row, "source"),
        ]
        for row in rows
    ]
    second = [
        [name, f"{100 * share:.1f} %", f"{rows[0][name]['loss']:.3f}", *(more(row, name) for row in rows[1:])]
        for name, share in zip(texts.names, texts.share, strict=True)
    ]
    columns = ["order", "adjacent distance"]
    columns += [name for by in ("bytes", "source") for name in (f"loss by {by}", f"by {by} against uniform")]
    by_source = ["source", "share", UNIFORM, *(row["order"] for row in rows[1:])]
    return f"all sources\n{harness.table(columns, first)}\n\nby source\n{harness.table(by_source, second)}"


def plot(runs: list[Run], rows: list[dict[str, Any]], texts: Texts, path: Path) -> None:
    """Plot the loss by bytes during the pass (left), and the differences to `uniform` at its end (right)."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "language order"  # equal plots have equal bytes
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(3, 2))
    for step, (name, losses) in enumerate(losses_of(runs, texts.share).items()):
        seen = np.array(runs[0].seen) + 0.005 * (step - 1.5)  # side by side, so that no interval hides another
        left.errorbar(
            seen, losses.mean(axis=0), interval(losses), label=name, marker="o", capsize=2, linewidth=1.2, markersize=3
        )
    left.set(xlabel="share of the pass", ylabel="evaluation loss by bytes, bits a byte")
    left.legend(frameon=False)
    others = rows[1:]
    for step, (weighting, marker) in enumerate({"bytes": "o", "source": "s"}.items()):
        heights = np.arange(len(others)) + 0.2 * (step - 0.5)
        right.errorbar(
            [row[weighting]["more"] for row in others], heights,
            xerr=[row[weighting]["more_interval"] for row in others],
            label=f"by {weighting}", marker=marker, capsize=3, linestyle="", color=("black", "gray")[step],
        )  # fmt: skip
    right.axvline(0, color="gray", linewidth=0.8)
    right.set(xlabel="loss at the end, against uniform, %", ylim=(len(others) - 0.5, -0.5))
    right.set_yticks(range(len(others)), [row["order"] for row in others])
    right.legend(frameon=False, loc="upper right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all orders, print the tables, save every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with text/*.jsonl")
    parser.add_argument("--quick", action="store_true", help="seconds instead of some minutes: too short for a result")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    texts = read_texts(options.data / "text", every=scale.every, held=scale.held)
    samples = len(texts.train)
    harness.progress(f"{samples:,} samples of {LENGTH} bytes, memory for {samples // scale.share}")
    runs = run_all(texts, scale, options.processes)
    rows = summary(runs, texts)
    harness.show(tables(rows, texts))
    if options.out:
        order = stripes(samples, samples // scale.share, 0).to_json()
        settings = asdict(scale) | {"processes": options.processes, "samples": samples, "order of seed 0": order}
        settings |= {"sources": dict(zip(texts.names, texts.share, strict=True))}
        harness.save(options.out, __doc__, settings, [], runs)
    if options.plot:
        plot(runs, rows, texts, options.plot)


if __name__ == "__main__":
    main()
