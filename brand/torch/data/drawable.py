"""What do a `BrandSampler` and a `BrandLoader` need of a data set? A `SampleSource`, which every `Drawable` has.

`BrandDataset` and `Mixture` are what users see. The source behind them makes the sequence that a sampler draws
(`brand.torch.order.sequence`), fetches samples for ints, and finishes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from brand.node.wire.looping import LoopReport
from brand.torch.data.handover import marked
from brand.torch.fetch.fetched import FetchedSamples, rows
from brand.torch.order.sequence import AccessSequence


class SampleSource(ABC):
    """What samplers and loaders need of a data set."""

    name: str
    fields: tuple[str, ...] | None
    transform: Any
    """What is called with samples; None: nothing is."""
    job: str | None
    """The name of the training among those of a server; None: it has none."""
    seed: int = 0
    """The seed of a sampler that is given none."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples of an epoch."""

    @abstractmethod
    def sequence(self, seed: int, origin: str, *, subset: ArrayLike | None, shuffle: bool) -> AccessSequence:
        """Return what a sampler with this seed draws. `origin` says where the program makes it. Raises `UsageError`.

        `subset`, `shuffle`: as `BrandSampler` takes them.
        """

    @abstractmethod
    def check_ranks(self, replicas: int) -> None:
        """Raise `UsageError` if this many ranks may have opened different samples."""

    @abstractmethod
    def fetch(self, indices: Sequence[int] | NDArray[np.int64]) -> FetchedSamples:
        """Return the samples for these ints, not decoded yet."""

    @abstractmethod
    def finish(self, samples: list[dict[str, Any]]) -> list[Any]:
        """Return samples as the user wants them: with the chosen fields, transformed."""

    def finished(self, indices: Sequence[int]) -> list[Any]:
        """Fetch and finish the samples for these ints."""
        fetched = self.fetch(indices)
        if self.plain and self.fields:  # without a dict for each sample
            columns = fetched.columns(0, len(fetched))
            return list(rows(columns[name] for name in self.fields))
        return self.finish(fetched.samples(0, len(fetched)))

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether samples are returned as they are stored: nothing is decoded or transformed."""

    @property
    @abstractmethod
    def files(self) -> set[str]:
        """Fields that hold the bytes of an image or audio file."""

    @property
    @abstractmethod
    def mean_bytes(self) -> float:
        """Mean size of a stored sample that is drawn."""

    @property
    @abstractmethod
    def server_bytes(self) -> int | None:
        """How many bytes its node server may hold; None if only the server knows."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """What the node server has done so far."""

    @abstractmethod
    def tell_loop(self, report: LoopReport) -> bool:
        """Tell the node server how the training loop of this process waits. Returns whether it was sent."""


class Drawable(Dataset[Any]):
    """A data set from which a `BrandSampler` draws and a `BrandLoader` makes batches."""

    _source: SampleSource

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        """One sample, as `__getitems__`."""
        return self._source.finished([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples for these ints, in this order. A DataLoader calls this once for each batch."""
        return marked(self._source.finished(indices))

    @property
    def name(self) -> str:
        """The path or URL of the data set, as messages show it; of a collection, with its version: `photos.brand@3`."""
        return self._source.name

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a sample, which is a tuple; None: samples are dicts of all fields."""
        return self._source.fields

    def stats(self) -> dict[str, Any]:
        """What the node server has done so far (`docs/statistics.md`); an empty dict before the first draw."""
        return self._source.stats()


def source_of(data_set: Drawable) -> SampleSource:
    """The source of a data set, for samplers and loaders."""
    return data_set._source
