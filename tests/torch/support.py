"""What the tests of draws share: small sets, the order that a plan says, data sets whose servers end with a test."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brand import pack
from brand.node.setup.decoding import Prepared
from brand.node.setup.memory import Memory
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from brand.testing.storage import Habit
from brand.torch import BrandDataset

SCHEMA = {"data": "bytes", "number": "int", "key": "str"}
MANY_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
TORCHDATA = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
"""torchdata's use of it."""

Record = tuple[int, str, bytes, int]
"""Index, key, data and number of a sample of `make_samples`."""


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def make_samples(count: int, largest: int, seed: int = 0) -> list[dict[str, Any]]:
    """Samples of 0 to `largest` random bytes; the first is empty."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, largest + 1, count)
    sizes[0] = 0
    return [{"data": rng.bytes(int(n)), "number": i * i, "key": f"folder/{i}"} for i, n in enumerate(sizes)]


def sized_samples(sizes: Iterable[int]) -> list[dict[str, Any]]:
    """Samples of these sizes, each with bytes of its own."""
    rng = np.random.default_rng(0)
    return [{"data": rng.bytes(size), "number": i * i, "key": f"folder/{i}"} for i, size in enumerate(sizes)]


def make_set(target: Path, samples: list[dict[str, Any]], chunk_size: int) -> Path:
    """A data set of such samples."""
    pack(samples, target, SCHEMA, chunk_size=chunk_size, jobs=1)
    return target


def planned(path: Path, order: Order, epoch: int) -> list[int]:
    """The indices of all samples in the order of an epoch's global access sequence, without a server."""
    found: list[int] = StoredDataSet(path).indices(order.plan(epoch).sample_of).tolist()
    return found


def indices_of(batches: Iterable[Any]) -> list[int]:
    """The indices in batches whose first part they are, or in samples of which they are the first part."""
    return [int(index) for batch in batches for index in np.atleast_1d(np.asarray(batch[0])).tolist()]


def records(samples: Iterable[Mapping[str, Any]]) -> list[Record]:
    """What samples are, in order."""
    return [(s.get("index", i), s["key"], s["data"], s["number"]) for i, s in enumerate(samples)]


def records_of(batches: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The samples in batches that PyTorch's default collate made."""
    return [
        record
        for batch in batches
        for record in zip(batch["index"].tolist(), batch["key"], batch["data"], batch["number"].tolist(), strict=True)
    ]


def stateful_loader(*args: Any, **more: Any) -> Any:
    """torchdata's loader; a test that uses it is marked with `TORCHDATA`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(*args, **more)


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are the same to the bit: types, names, dtypes, shapes, values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def failure_of(batches: Iterable[Any]) -> Exception:
    """The error that ends these batches.

    Without its traceback, which would keep the iterator until garbage is collected; PyTorch then waits for its workers
    for five seconds each.
    """
    try:
        for _ in batches:
            pass
    except Exception as error:  # noqa: BLE001 - whatever it is, a test looks at it
        return error.with_traceback(None)
    raise AssertionError("nothing failed")


def loader_threads(prefix: str = "brand-") -> list[str]:
    """Threads of loaders that still run: `brand-draw` during an iteration, `brand-decode` as long as the loader is."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


@contextlib.contextmanager
def served(
    path: Path, *, memory: Memory = 0.3, storage: Habit | None = None, prepared: Prepared | None = None, **more: Any
) -> Iterator[BrandDataset]:
    """A data set of (index, key), unless said otherwise, whose server runs in this process."""
    with running_server(path, memory=memory, storage=storage, prepared=prepared) as server:
        yield BrandDataset(path, server=server.address, **({"fields": ("index", "key")} | more))


class Openings:
    """Opens data sets and ends the servers that they started."""

    def __init__(self) -> None:
        self._opened: list[BrandDataset] = []

    def __call__(self, path: Path | str, **more: Any) -> BrandDataset:
        """A data set of (index, key), unless said otherwise."""
        options: dict[str, Any] = {"fields": ("index", "key"), "memory": 0.3} | more
        self._opened.append(BrandDataset(path, **options))
        return self._opened[-1]

    def close(self) -> None:
        """End the servers."""
        for data_set in self._opened:
            process = data_set.stats().get("process") if not data_set._source.port.resolver.options.attached else None
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@contextlib.contextmanager
def openings() -> Iterator[Openings]:
    """For the length of a block."""
    opened = Openings()
    try:
        yield opened
    finally:
        opened.close()
