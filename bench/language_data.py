"""Which sequences does the language model of `language_order.py` read, and in which order?

A training set is every n-th document of each file, in source order: file after file, as the files list the documents.
The documents of a file, each with a zero byte behind it, are joined and cut into sequences of `LENGTH` bytes. A
sequence is a sample. `read_texts` cuts once; an order is a function (samples, memory, seed) that draws each sample
once. `memory` is the number of samples that the order may hold at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.mapping import chunks_per_group
from brand.orders.base.plan import peak
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy

LENGTH: Final = 128
"""Bytes of a sequence."""
CHUNK: Final = 16
STRIPE: Final = CHUNK // 4
"""Samples of a stripe. The default for small samples is a quarter of a chunk."""

Places = NDArray[np.int64]
Sequences = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Texts:
    """The training set and the evaluation set of all runs."""

    names: list[str]
    """Sources, in their order."""
    share: list[float]
    """Fraction of each source in the training set."""
    train: Sequences
    """The training set in source order, shape (samples, LENGTH)."""
    held: Sequences
    """The evaluation set, source by source, shape (sources, n, LENGTH)."""


def read_texts(folder: Path, *, every: int, held: int) -> Texts:
    """Train on every `every`-th document, and evaluate with `held` sequences of other documents from each source.

    folder: holds `*.jsonl`, a document a line under "text". Raises `UsageError` if there is too little text.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UsageError(f"{folder} has no *.jsonl: give the folder with text/*.jsonl as --data")
    train, evaluated = [], []
    for file in files:
        with file.open(encoding="utf-8") as lines:
            documents = [json.loads(line)["text"].encode() + b"\0" for line in lines]
        train.append(_cut(documents[::every]))
        apart = _cut(documents[every // 2 :: every])
        if len(apart) < held:
            raise UsageError(f"{file} has text for {len(apart)} of {held} sequences: give a longer file")
        evaluated.append(apart[np.arange(held) * len(apart) // held])
    samples = sum(map(len, train))
    share = [len(part) / samples for part in train]
    return Texts([file.stem for file in files], share, np.concatenate(train), np.stack(evaluated))


def _cut(documents: list[bytes]) -> Sequences:
    """Return the sequences of the joined documents, shape (n, LENGTH); the rest is omitted."""
    joined = np.frombuffer(b"".join(documents), np.uint8)
    return joined[: len(joined) // LENGTH * LENGTH].reshape(-1, LENGTH)


def uniform(samples: int, memory: int, seed: int) -> Places:  # noqa: ARG001  (all orders have these arguments)
    """Return a permutation of all samples. It needs memory for all of them, or a read for each."""
    return np.random.default_rng((seed, 0)).permutation(samples)


def brand(samples: int, memory: int, seed: int) -> Places:
    """Return Brand's default order: stripes over samples that the conversion shuffled."""
    return np.random.default_rng((seed, 1)).permutation(samples)[blocks(samples, memory, seed)]


def stripes(samples: int, memory: int, seed: int) -> Order:
    """Return the order of stripes whose shuffle buffer has this memory."""
    return Order("texts", samples, CHUNK, seed, StripePolicy(chunks_per_group(samples, CHUNK, memory), STRIPE))


def blocks(samples: int, memory: int, seed: int) -> Places:
    """Return the order of the same stripes over samples in source order, as if the conversion had not shuffled."""
    plan = stripes(samples, memory, seed).plan(0)
    assert peak(plan, np.ones(samples, np.int64)) <= memory
    return plan.sample_of.astype(np.int64)


def window(samples: int, memory: int, seed: int) -> Places:
    """Return the order of a shuffle buffer over samples in source order.

    Each draw takes a sample of the buffer and puts the next sample into its place.
    """
    dice = np.random.default_rng((seed, 2))
    order = np.empty(samples, np.int64)
    buffer = np.arange(memory)
    drawn = dice.integers(memory, size=samples - memory)
    for position, at in enumerate(drawn):
        order[position] = buffer[at]
        buffer[at] = memory + position
    order[samples - memory :] = dice.permutation(buffer)
    assert (order - np.arange(samples)).max() < memory
    return order


UNIFORM: Final = "uniform"
ORDERS: Final = {UNIFORM: uniform, "brand": brand, "blocks": blocks, "window": window}
