"""How fast, how evenly and how well mixed do batches reach a training loop?"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.training_data import Store, stored_order
from bench.training_loaders import Feed


@dataclass(slots=True)
class Epoch:
    """The batches of an epoch, with the times of their arrival."""

    started: float
    stamps: array[float] = field(default_factory=lambda: array("d"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("i"))
    complete: bool = False

    def note(self, payloads: Any, labels: Any) -> None:
        """Record one batch."""
        self.stamps.append(time.perf_counter())
        if labels is None:
            self.counts.append(payloads)
        else:
            self.labels.frombytes(np.asarray(labels, np.int32).tobytes())
            self.counts.append(len(labels))


def take(feed: Feed, epochs: int, seconds: float) -> list[Epoch]:
    """Run the training loop."""
    taken: list[Epoch] = []
    for number in range(epochs):
        taken.append(epoch := Epoch(time.perf_counter()))
        for payloads, labels in feed.epoch(number):
            epoch.note(payloads, labels)
            if epoch.stamps[-1] - taken[0].stamps[0] > seconds:
                return taken
        epoch.complete = True
    return taken


def speeds(taken: Sequence[Epoch]) -> dict[str, Any]:
    """Return samples a second, and how evenly they arrived."""
    first, second = taken[0], taken[1] if len(taken) > 1 else None
    stamps, counts = np.array(first.stamps), np.array(first.counts)
    gaps = [np.diff(np.array(epoch.stamps)) for epoch in taken]
    if len(stamps) > 1:
        rate = float(counts[1:].sum() / (stamps[-1] - stamps[0]))
    else:
        rate = float(counts.sum() / (stamps[-1] - first.started))
    values = {
        "samples_per_s": rate,
        "delivered": [sum(epoch.counts) for epoch in taken],
        "complete": [epoch.complete for epoch in taken],
        "batch_s": float(np.median(np.concatenate(gaps))) if len(stamps) > 1 else None,
        "longest_batch_s": float(max(np.concatenate(gaps))) if len(stamps) > 1 else None,
    }
    if second is not None and second.stamps:
        values["second_samples_per_s"] = sum(second.counts) / (second.stamps[-1] - first.stamps[-1])
        values["second_first_batch_s"] = second.stamps[0] - first.stamps[-1]
    return values


def rates(taken: Sequence[Epoch]) -> dict[str, Any]:
    """Return samples a second of the first epoch, from its start on, and of all later ones together."""
    first, later = taken[0], taken[1:]
    values = {
        "first_rate": sum(first.counts) / (first.stamps[-1] - first.started),
        "first_batch_s": first.stamps[0] - first.started,
        "seconds": [epoch.stamps[-1] - epoch.started for epoch in taken],
        "delivered": [sum(epoch.counts) for epoch in taken],
    }
    if later:
        samples = sum(sum(epoch.counts) for epoch in later)
        values["later_rate"] = samples / (later[-1].stamps[-1] - first.stamps[-1])
    return values


def save_labels(folder: Path, taken: Sequence[Epoch]) -> None:
    """Save the labels of complete epochs for another process, because judging them takes memory."""
    for number, epoch in enumerate(taken):
        if epoch.complete and epoch.labels:
            (folder / f"labels-{number}").write_bytes(epoch.labels)


def shuffles(folder: Path, store: Store, form: str) -> dict[str, Any]:
    """Return how many samples were repeated and omitted in the saved epochs, and their adjacent distances."""
    complete = [np.fromfile(file, np.int32) for file in sorted(folder.glob("labels-*"))]
    if not complete:
        return {}
    order = stored_order(store, form)
    return {
        "missing": [store.samples - len(np.unique(labels)) for labels in complete],
        "repeated": [len(labels) - len(np.unique(labels)) for labels in complete],
        "apart": [apart(labels, order) for labels in complete],
        "same_order": len(complete) > 1 and bool(np.array_equal(complete[0], complete[1])),
    }


def apart(labels: NDArray[np.integer[Any]], order: NDArray[np.integer[Any]]) -> float:
    """Return the mean distance of neighbours in `order` within `labels`, as a fraction of all (adjacent distance)."""
    position = np.full(len(order), -1)
    position[labels] = np.arange(len(labels))
    along = position[order]
    both = (along[1:] >= 0) & (along[:-1] >= 0)
    return float(np.abs(np.diff(along))[both].mean() / len(labels))


def age_s() -> float:
    """Return the seconds since this process was started; the system counts in hundredths."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
