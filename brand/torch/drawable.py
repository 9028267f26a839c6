"""What do a `BrandSampler` and a `BrandLoader` need of a data set? A `BrandDataset` has it, and a `Mixture` has it.

The loader needs samples for ints and what it is to make of them (`Drawable`, `FetchedSamples`). The sampler needs an
order of all epochs (`brand.torch.sequence`), which the data set makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import Dataset

from brand.node.wire.looping import LoopReport
from brand.torch.fetched import Columns, rows
from brand.torch.handover import marked
from brand.torch.waits import Span

if TYPE_CHECKING:
    from brand.torch.sequence import AccessSequence


class FetchedSamples(Protocol):
    """Samples that were fetched and are not decoded yet. Several threads may decode parts of it."""

    def __len__(self) -> int: ...

    @property
    def spans(self) -> Sequence[Span]:
        """When the request waited for node servers or for storage, in order."""
        ...

    @property
    def waited_s(self) -> float:
        """How long the request waited for node servers or for storage."""
        ...

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """Fields of the samples `first` to `end` - 1, with `index` and `key`; see `Fetched.columns`."""
        ...

    def gathers(self, first: int, end: int) -> bool:
        """Whether images and audio of all these samples are prepared, those of a field in one shape."""
        ...

    def gathered(self, first: int, end: int) -> Columns:
        """As `columns`, where `gathers` says so; see `Fetched.gathered`."""
        ...

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """The samples `first` to `end` - 1, one dict for each, with images and audio decoded."""
        ...

    def turns(self, first: int, end: int) -> list[int]:
        """What tells apart the uses of one index in an epoch, for random transforms. 0 where each is used once."""
        ...


class Drawable(Dataset[Any], ABC):
    """A data set from which a `BrandSampler` draws and a `BrandLoader` makes batches."""

    name: str
    """What names the data set to users."""
    fields: tuple[str, ...] | None
    """The fields of a sample, which is a tuple; None: samples are dicts of all fields."""
    transform: Any
    """What is called with samples; None: nothing is."""
    job: str | None
    """The name of the training among those of a server; None: it has none."""
    seed: int = 0
    """The seed of a sampler that is given none."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples of an epoch."""

    def __getitem__(self, index: int) -> Any:
        """One sample, as `__getitems__`."""
        return self._finished([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples for these ints, in this order. A DataLoader calls this once for each batch."""
        return marked(self._finished(indices))

    def _finished(self, indices: Sequence[int]) -> list[Any]:
        fetched = self.fetch(indices)
        if self.plain and self.fields:  # without a dict for each sample
            columns = fetched.columns(0, len(fetched))
            return list(rows(columns[name] for name in self.fields))
        return self.finish(fetched.samples(0, len(fetched)))

    @abstractmethod
    def sequence(self, seed: int, origin: str, *, part: ArrayLike | None, shuffle: bool) -> AccessSequence:
        """What a sampler with this seed draws. `origin` says where the program makes it. Raises `UsageError`.

        `part`, `shuffle`: as `BrandSampler` takes them.
        """

    @abstractmethod
    def check_ranks(self, replicas: int) -> None:
        """Raise `UsageError` where so many ranks may have opened different samples."""

    @abstractmethod
    def fetch(self, indices: Sequence[int] | NDArray[np.int64]) -> FetchedSamples:
        """The samples for these ints, not decoded yet. `BrandLoader` calls this."""

    @abstractmethod
    def finish(self, samples: list[dict[str, Any]]) -> list[Any]:
        """Samples as the user wants them: with the chosen fields, transformed."""

    @property
    @abstractmethod
    def plain(self) -> bool:
        """Whether samples come as they are stored: nothing is decoded or transformed."""

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
        """How many bytes its node server may hold; None where only the server knows."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """What the node server has done so far."""

    @abstractmethod
    def tell_loop(self, report: LoopReport) -> bool:
        """Tell the node server how the training loop of this process waits. Returns whether it was sent."""
