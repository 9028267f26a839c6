"""Which interface of a data set do a `BrandSampler` and a `BrandLoader` use? A `SampleSource`, which every
`Drawable` has.

`BrandDataset` and `Mixture` are the classes that users see. The source behind them makes the sequence of a sampler
(`brand.torch.order.sequence`), fetches samples for ints, and finishes them: selects fields and applies transforms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.looping import LoopReport
from brand.torch.fetch.fetched import FetchedSamples, Form, rows
from brand.torch.job.wrappers import refuse_distributed_sampler
from brand.torch.order.sequence import AccessSequence, SequenceOptions
from brand.torch.pytorch import DataLoader, Dataset, Subset, torch

if torch is not None:
    from brand.torch.data.shared_batches import marked


class SampleSource(ABC):
    """The interface of a data set for samplers and loaders."""

    name: str
    fields: tuple[str, ...] | None
    transform: Any
    """The function or functions that are called with samples; None if there are none."""
    job: str | None
    """The name of the training among the jobs of a server; None if it has no name."""
    files: set[str]
    """Fields that hold the bytes of an image or audio file."""
    mean_bytes: float
    """Mean size of a stored sample that is fetched."""
    seed: int = 0
    """The seed of a sampler that the user gives no seed."""
    numbers: tuple[str, ...] = ("index",)
    """The keys of a sample, if it is a dict, that say which one it is."""

    @property
    @abstractmethod
    def schema(self) -> dict[str, str]:
        """Field name -> codec of its values in a sample."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples of an epoch."""

    @abstractmethod
    def sequence(self, options: SequenceOptions) -> AccessSequence:
        """Return the sequence of a sampler with these options. Raises `UsageError`."""

    @abstractmethod
    def check_ranks(self, replicas: int) -> None:
        """Raise `UsageError` if `replicas` ranks may have opened different samples."""

    @abstractmethod
    def fetch(self, indices: Sequence[int] | NDArray[np.int64], seeds: Sequence[int] | None = None) -> FetchedSamples:
        """Return the samples for these ints, not decoded yet.

        `seeds`: those of random parts of samples that are asked for by index; None: PyTorch's generator gives them.
        """

    @property
    @abstractmethod
    def forms(self) -> dict[str, Form]:
        """Shape and dtype of each field of images or audio; empty if not all fields are decoded to one of their own."""

    @property
    @abstractmethod
    def random_parts(self) -> bool:
        """Whether samples are decoded to random parts: crops of images, stretches of audio."""

    @abstractmethod
    def finish(self, samples: list[dict[str, Any]], transform: Any) -> list[Any]:
        """Return samples in the form that the user asks for: with the chosen fields, transformed.

        `transform` is that of the source, or a copy of it.
        """

    def finished(self, indices: Sequence[int]) -> list[Any]:
        """Fetch and finish the samples for these ints."""
        fetched = self.fetch(indices)
        if self.plain and self.fields:  # without a dict for each sample
            columns = fetched.columns(0, len(fetched))
            return list(rows(columns[name] for name in self.fields))
        return self.finish(fetched.samples(0, len(fetched)), self.transform)

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether samples are returned as they are stored: nothing is decoded or transformed."""

    @property
    @abstractmethod
    def server_bytes(self) -> int | None:
        """Memory of the data server for samples, in bytes; None if only the server knows it."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return the counters of the data server."""

    @abstractmethod
    def tell_loop(self, report: LoopReport) -> bool:
        """Report the waits of this process's training loop to the data server. Returns whether the report was sent."""


class Drawable(Dataset[Any]):
    """A data set that a `BrandSampler` fetches from, and of which a `BrandLoader` makes batches."""

    _source: SampleSource

    def __len__(self) -> int:
        """Return the number of samples."""
        refuse_distributed_sampler()
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        """Return one sample, as `__getitems__` does."""
        return self._source.finished([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples for these ints, in this order. A DataLoader calls this once for each batch."""
        samples = self._source.finished(indices)
        return samples if torch is None else marked(samples)

    @property
    def name(self) -> str:
        """The path or URL of the data set for messages; that of a collection has its version: `photos.brand@3`."""
        return self._source.name

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The fields of a sample, which is then a tuple; None if samples are dicts of all fields."""
        return self._source.fields

    def stats(self) -> dict[str, Any]:
        """Return the counters of the data server (`docs/guides/monitor.md`); an empty dict before the first fetch."""
        return self._source.stats()


def source_of(data_set: Drawable) -> SampleSource:
    """Return the source of a data set, for samplers and loaders."""
    return data_set._source


def not_drawable(given: Any) -> str:
    """Return the message for an object that a sampler cannot fetch from, as the end of a sentence about the sampler."""
    told = f"fetches from a BrandDataset, not from a {type(given).__name__}"
    if isinstance(given, Subset):
        return f"{told}: give it the data set of the Subset, with subset=: (part.dataset, subset=part.indices)"
    if isinstance(given, DataLoader):
        return f"{told}: give it the data set of the loader, loader.dataset"
    return f"{told}: give it the data set itself"
