"""How does one data set return samples for ints? `SetSource`: direct reads for indices, draws for tickets.

Both ways return the same records, so decoding, checks and errors are the same.

Two ways to read are slow, and the log says it once (`AccessHint`). A user reads a whole data set by random access, in
random order: a `BrandSampler` would fetch it. A wrapper around the data set fetches samples one by one: a transform
does the same without a request for each sample.
"""

from __future__ import annotations

import logging
import mmap
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.formats.media import PillowPlugins
from brand.node.setup.memory import memory_bytes
from brand.node.wire.looping import LoopReport
from brand.orders.base.tickets import TICKET, TICKETS_END, tag_and_epoch
from brand.printable import printable
from brand.reprs import Reprs
from brand.storage.io.location import Collected
from brand.torch.data.drawable import SampleSource
from brand.torch.fetch.fetch import MEDIA
from brand.torch.fetch.fetched import FetchedSamples, Form, MergedSamples, UndecodedSamples
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.sequence import AccessSequence, OfOneSet, SequenceOptions
from brand.torch.order.weighted_sequence import WeightedOrders, weighted_sequence
from brand.torch.pytorch import get_worker_info

Transform = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]
ENOUGH: Final = 5000
"""Number of samples read in random order after which the log has a hint."""
ENOUGH_SINGLE: Final = 200
"""Number of consecutive draws of a single sample after which the log has a hint."""
log = logging.getLogger("brand")
_said = mmap.mmap(-1, 2)
"""Whether the log has the hint about reads, and the hint about draws: two bytes that forked workers share."""


class SetSource(Reprs, SampleSource, shows="name _resolver"):
    """The source behind a `BrandDataset`. Can be pickled; the constructor opens nothing."""

    def __init__(self, port: DrawPort, fields: tuple[str, ...] | None, transform: Transform | None) -> None:
        self.port, self._resolver, self._fetcher = port, port.resolver, port.fetcher
        self.name, self.fields, self.job = port.name, fields, port.resolver.options.job
        self.data, self.decodes, self.mean_bytes = port.data, port.fetcher.decodes, port.data.mean_bytes
        self.files = {name for name, codec in self.data.header.schema.fields if codec in MEDIA}
        self.transform: Transform | None = transform
        self._hint, self._plugins, self._weighted = AccessHint(), PillowPlugins(), WeightedOrders(port)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec of its values in a sample."""
        return self.data.schema

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of numbers of all samples, by index."""
        return self.data.column(name)

    def present(self) -> NDArray[np.int64]:
        """Return the indices of all samples that are not deleted."""
        return self.data.present()

    def set_transform(self, transform: Transform | None) -> None:
        self.transform = transform

    def sequence(self, options: SequenceOptions) -> AccessSequence:
        if options.weights is not None:
            return weighted_sequence(self._weighted, options)
        port, seed, subset, shuffle = self.port, options.seed, options.subset, options.shuffle
        order = port.order(seed, subset, replicas=options.replicas) if shuffle else port.order_of_indices(seed, subset)
        return OfOneSet(port, order, seed, options.origin, shuffle=shuffle)

    def check_ranks(self, replicas: int) -> None:
        """Raise `UsageError` if several ranks open a collection without a version number."""
        location = self.data.location
        if replicas > 1 and isinstance(location, Collected) and not location.pinned:
            raise UsageError(
                f"{replicas} ranks fetch from {self.name.rpartition('@')[0]}, and samples that are appended while they "
                f"start would give them different versions. Name the version, '{self.name}': it also fits the states "
                "of the run, when it is resumed"
            )

    def fetch(self, indices: Sequence[int] | NDArray[np.int64], seeds: Sequence[int] | None = None) -> FetchedSamples:
        """Return the samples with these indices or tickets, not decoded yet."""
        asked = self._asked(indices)
        if not len(asked) or not TICKET <= int(asked.max()) < TICKETS_END:
            asked = self._indices(asked)
            self._hint.note(asked, self.name)
        else:
            self._hint.note_draw(len(asked), self.name)
            if int(asked.min()) >= TICKET and self._fetcher.order_of(tag_and_epoch(int(asked[0]))[0]).times:
                return MergedSamples(self._weighted.portions(asked, lambda _, tickets: self.draw(tickets)))
        return self._fetcher.fetch(asked, seeds)

    @property
    def samples_present(self) -> int:
        """The number of samples of an epoch."""
        return self.data.samples_present

    def drawn(self, tickets: NDArray[np.int64]) -> FetchedSamples:
        """Return the samples for these tickets of one epoch, as a member of a mixture."""
        return self.draw(tickets)

    def draw(self, tickets: NDArray[np.int64]) -> UndecodedSamples:
        """Return the samples for these tickets of one epoch: one member's tickets in a request of a mixture."""
        return self._fetcher.fetch(tickets)

    def finish(self, samples: list[dict[str, Any]], transform: Transform | None) -> list[Any]:
        if isinstance(transform, Mapping):
            for values in samples:
                values.update({name: function(values[name]) for name, function in transform.items()})
        names = self.fields
        chosen = samples if names is None else [tuple([values[name] for name in names]) for values in samples]
        if not callable(transform):
            return chosen
        try:
            return [transform(sample) for sample in chosen]
        except (TypeError, AttributeError) as error:
            error.add_note(_transform_hint(names, self.files))
            raise

    @property
    def forms(self) -> dict[str, Form]:
        media = self._fetcher.decoding.media
        found = {each.name: each.form for each in media if each.form is not None}
        return found if len(found) == len(media) else {}

    @property
    def random_parts(self) -> bool:
        return self._fetcher.decoding.random

    @property
    def plain(self) -> bool:
        return self.transform is None and not self._fetcher.decoding.media

    @property
    def server_bytes(self) -> int | None:
        options = self._resolver.options
        if options.memory is None or options.attached:
            return None
        return memory_bytes(options.memory, int(len(self) * self.mean_bytes))

    def stats(self) -> dict[str, Any]:
        return self._resolver.client.stats() if self._resolver.settled and self._resolver.client.running else {}

    def tell_loop(self, report: LoopReport) -> bool:
        client = self._resolver.client if self._resolver.settled else None
        return client is not None and client.tell_loop(replace(report, run=client.run))

    def _asked(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ints of a sampler or a user as an array. Raises IndexError, TypeError."""
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            return indices
        length = len(self)
        try:
            return np.fromiter(map(operator.index, indices), np.int64, len(indices))
        except OverflowError:
            wrong = next(i for i in map(operator.index, indices) if not -length <= i < length)
            raise IndexError(f"sample {wrong} is out of range: the data set has {counted(length, 'sample')}") from None
        except TypeError:
            kinds = {type(i).__name__ for i in indices} - {"int"}
            hint = "; torch.utils.data.Subset(ds, range(...)) is a part of it" if "slice" in kinds else ""
            raise TypeError(f"samples are asked for by int, not by {', '.join(sorted(kinds))}{hint}") from None

    def _indices(self, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return indices from 0 on, for indices that may be negative. Raises IndexError."""
        length = len(self)
        if asked.size and not (-length <= asked.min() and asked.max() < length):
            wrong = int(asked[(asked < -length) | (asked >= length)][0])
            raise IndexError(f"sample {wrong} is out of range: the data set has {counted(length, 'sample')}")
        return np.where(asked < 0, asked + length, asked)


class AccessHint(Reprs, shows="_jumps _single"):
    """Counts reads and draws of a data set, and logs a hint once if another way would be faster."""

    def __init__(self) -> None:
        self._jumps = self._single = 0

    def note_draw(self, count: int, name: str) -> None:
        """Count a request that has drawn `count` samples."""
        self._single = self._single + 1 if count == 1 else 0
        if self._single == ENOUGH_SINGLE and not _said[1]:
            _said[1] = 1
            log.warning(
                "%s is asked for one sample at a time, a request for each, as a wrapper around it does. Use "
                "transform= in place of the wrapper: it gets the whole sample, with its own `index` and `key`. A "
                "BrandSampler yields positions, not indices: a table of the wrapper finds nothing, or a default, for "
                "them. (This is said once.)",
                name,
            )

    def note(self, indices: NDArray[np.int64], name: str) -> None:
        """Count direct reads of the samples with these indices."""
        if _said[0] or len(indices) < 2:
            return
        self._jumps += int(np.count_nonzero(np.abs(np.diff(indices)) > 1))
        worker = get_worker_info()
        if self._jumps >= ENOUGH and (worker is None or worker.id == 0):
            _said[0] = 1
            log.warning(
                "%d samples of %s were read in random order, one by one. Give the DataLoader "
                "sampler=BrandSampler(dataset) in place of shuffle=True: it fetches every sample once an epoch, in "
                "random order, at the speed of sequential storage. (This is said once.)",
                self._jumps,
                printable(name),
            )


def _transform_hint(names: tuple[str, ...] | None, files: Collection[str]) -> str:
    """Return a hint for a `transform` of the whole sample that fails, because it may expect only an image.

    `ImageFolder` passes the image to its transform.

    `names` are the fields of a sample that is a tuple; `files` are the fields that hold images or audio.
    """
    given = "a dict of its fields" if names is None else f"a tuple of {', '.join(names)}"
    field = next((name for name in (names or sorted(files)) if name in files), "FIELD")
    how = f"for a function of one field write transform={{{field!r}: function}}"
    return f"transform was given the whole sample, {given}; {how}"
