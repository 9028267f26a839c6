"""How does a data set return a sample for each element of a list (`expand="captions"`)?

The image of a sample is stored once. Each of its pairs is a sample of an epoch (`brand.torch.order.pairs`), with one
element in place of the list, and the number of the pair as its `index`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.header import ELEMENTS
from brand.orders.base.tickets import TICKET, TICKETS_END
from brand.reprs import Reprs
from brand.torch.data.set_source import SetSource, Transform
from brand.torch.fetch.fetch import MIXED_BATCH
from brand.torch.fetch.fetched import Columns, FetchedSamples, MergedSamples
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.mixed_sequence import MixedSequence
from brand.torch.order.pairs import Layers, Pairs, note_without, pair_sequence, shuffled_pairs
from brand.torch.order.sequence import AccessSequence, SequenceOptions

log = logging.getLogger("brand")


class ExpandedSource(SetSource, Reprs, shows="name pairs"):
    """The source of a data set whose samples are the pairs with the elements of `field`. Can be pickled.

    Raises `SchemaError`, `UsageError` as `Pairs` does.
    """

    def __init__(self, port: DrawPort, fields: tuple[str, ...] | None, transform: Transform | None, field: str) -> None:
        super().__init__(port, fields, transform)
        self.pairs = Pairs(self.data, field)
        self._layers = Layers(port, self.pairs)
        if note := note_without(self.pairs, self.name):
            log.warning("%s", note)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec; that of the expanded field is the codec of an element."""
        field = self.pairs.field
        return self.data.schema | {field: ELEMENTS[self.data.schema[field]]}

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of numbers of all pairs, by number."""
        return np.repeat(super().column(name), self.pairs.counts)

    def present(self) -> NDArray[np.int64]:
        """Return the numbers of all pairs: deleted samples have none."""
        return np.arange(len(self))

    @property
    def samples_present(self) -> int:
        """The number of pairs of an epoch."""
        return len(self)

    def sequence(self, options: SequenceOptions) -> AccessSequence:
        """See `SampleSource`."""
        if options.weights is not None:
            raise UsageError(
                f"expand={self.pairs.field!r}: weights= is for samples, and these are pairs: leave out one"
            )
        return pair_sequence(self._layers, options.seed, options.origin, subset=options.subset, shuffle=options.shuffle)

    def as_member(self, seed: int, origin: str) -> MixedSequence:
        """Return the sequence of all pairs in random order, for a mixture that has them as a member."""
        return shuffled_pairs(self._layers, seed, origin)

    def fetch(self, indices: Sequence[int] | NDArray[np.int64], seeds: Sequence[int] | None = None) -> FetchedSamples:
        """Return the samples for these numbers of pairs, or tickets: a request for each layer."""
        asked = self._asked(indices)
        if not len(asked) or not TICKET <= int(asked.max()) < TICKETS_END:
            samples, elements = self.pairs.located(self._indices(asked))
            return ExpandedSamples(self._fetcher.fetch(samples, seeds), self.pairs, elements)
        if int(asked.min()) < TICKET:
            raise UsageError(MIXED_BATCH)
        self._hint.note_draw(len(asked), self.name)
        return self.drawn(asked)

    def drawn(self, tickets: NDArray[np.int64]) -> FetchedSamples:
        """See `SetSource`."""

        def fetch(layer: int, some: NDArray[np.int64]) -> ExpandedSamples:
            return ExpandedSamples(self.draw(some), self.pairs, np.full(len(some), layer))

        return MergedSamples(self._layers.portions(tickets, fetch))


class ExpandedSamples(Reprs, FetchedSamples, shows="_fetched"):
    """Fetched samples, of which each has one element in place of its list."""

    def __init__(self, fetched: FetchedSamples, pairs: Pairs, elements: NDArray[np.int64]) -> None:
        self._fetched, self._pairs, self._elements, self.spans = fetched, pairs, elements, fetched.spans

    def __len__(self) -> int:
        return len(self._fetched)

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """See `FetchedSamples`."""
        return self._expanded(self._fetched.columns(first, end, views=views), first, end)

    def gathers(self, first: int, end: int) -> bool:
        """See `FetchedSamples`."""
        return self._fetched.gathers(first, end)

    def gathered(self, first: int, end: int) -> Columns:
        """See `FetchedSamples`."""
        return self._expanded(self._fetched.gathered(first, end), first, end)

    def decode_into(self, batch: Mapping[str, NDArray[Any]], first: int, end: int, at: NDArray[np.intp]) -> Columns:
        """See `FetchedSamples`."""
        return self._expanded(self._fetched.decode_into(batch, first, end, at), first, end)

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """See `FetchedSamples`."""
        samples, elements = self._fetched.samples(first, end), self._elements[first:end]
        indices = np.array([sample["index"] for sample in samples], np.int64)
        numbers, field = self._pairs.numbers(indices, elements).tolist(), self._pairs.field
        for sample, number, element in zip(samples, numbers, elements.tolist(), strict=True):
            sample["index"] = number
            if field in sample:
                sample[field] = sample[field][element]
        return samples

    def uses(self, first: int, end: int) -> list[int]:
        """See `FetchedSamples`."""
        return self._fetched.uses(first, end)

    def _expanded(self, columns: Columns, first: int, end: int) -> Columns:
        field, elements = self._pairs.field, self._elements[first:end]
        columns["index"] = self._pairs.numbers(np.asarray(columns["index"]), elements)
        if field in columns:
            columns[field] = [each[at] for each, at in zip(columns[field], elements.tolist(), strict=True)]
        return columns
