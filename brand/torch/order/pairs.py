"""Which pair of a sample and an element of its list is drawn at each position of each epoch?

Pairs are numbered by sample, then by element. The pairs with the elements number `n` are layer `n`: an order of the
samples whose lists have such an element, which draws each of them once an epoch. A mixture of the layers, weighted by
their sizes, draws each pair once an epoch, in random order, and its epochs are those of the layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.formats.header import ELEMENTS
from brand.node.wire.drawing import Announcement
from brand.orders.mixtures.mixed_order import MixedOrder, member_of_seed, numbered_seed
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.predicate import ColumnTable, chosen_by
from brand.storage.dataset.selection import column_table
from brand.torch.order.draw_port import DrawPort
from brand.torch.order.mixed_sequence import MixedSequence, MixtureMembers, loaded_order
from brand.torch.order.sequence import AccessSequence, other_data_set

MAX_LAYERS: Final = 64
"""The most elements of a list, because an epoch has an order for each."""
_MEDIA: Final = ("image", "audio")


class Pairs(Reprs, shows="field"):
    """The pairs of each sample of a data set with each element of its list in `field`. Can be pickled.

    Raises `SchemaError` if the field holds no lists, or lists of files; `UsageError` if there is no pair, or a list is
    too long.
    """

    def __init__(self, data: StoredDataSet, field: str) -> None:
        self.data, self.field = data, field
        counts = self.counts
        self.element = ELEMENTS[data.schema[field]]
        """The codec of an element."""
        if self.element in _MEDIA:
            raise SchemaError(
                f"expand={field!r}: a list of {self.element} files is not expanded, as each of its samples would read "
                "all of them: convert the files as samples of their own"
            )
        self.layers = int(counts.max(initial=0))
        if not self.layers:
            raise UsageError(f"expand={field!r}: no sample has an element in this field")
        if self.layers > MAX_LAYERS:
            index = int(counts.argmax())
            raise UsageError(
                f"expand={field!r}: sample {index} has {self.layers:,} elements, and at most {MAX_LAYERS} are possible:"
                " choose one of them in a transform (docs/guides/image-text.md)"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("counts", "ends")}

    def __len__(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of elements of each sample, by index."""
        return self.data.counts(self.field)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The number of the pair after the last one of each sample, by index."""
        return np.cumsum(self.counts)

    @property
    def without(self) -> int:
        """The number of samples without an element."""
        return self.data.samples_present - int(np.count_nonzero(self.counts))

    def located(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples and the elements of pairs."""
        indices = np.searchsorted(self.ends, numbers, side="right").astype(np.int64)
        return indices, numbers - (self.ends - self.counts)[indices]

    def numbers(self, indices: NDArray[np.int64], elements: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pairs of samples and elements."""
        return self.ends[indices] - self.counts[indices] + elements

    def chosen(self, subset: ArrayLike | None) -> NDArray[np.int64] | None:
        """Return the numbers of the pairs that a user means by `subset=`, ascending; None for all.

        Raises `UsageError`.
        """
        if subset is None:
            return None
        pairs = len(self)
        wanted = np.asarray(chosen_by(subset, self._table()) if isinstance(subset, str) else subset)
        if wanted.dtype == np.bool_ and wanted.shape == (pairs,):
            wanted = np.flatnonzero(wanted)
        elif wanted.size and (wanted.ndim != 1 or wanted.dtype.kind not in "iu"):
            raise UsageError(
                f"subset= is a {wanted.dtype} array of shape {wanted.shape}: give a bool for each of the {pairs:,} "
                f"pairs of expand={self.field!r}, or their numbers"
            )
        numbers = np.unique(wanted).astype(np.int64)
        if not len(numbers):
            raise UsageError("subset= has no pair")
        if numbers[0] < 0 or numbers[-1] >= pairs:
            raise UsageError(f"subset= has pair {numbers[-1] if numbers[0] >= 0 else numbers[0]} of {pairs:,}")
        if len(numbers) < len(wanted):
            raise UsageError("subset= has a pair twice; give each number once, or a mask as an array of bools")
        return None if len(numbers) == pairs else numbers

    def _table(self) -> ColumnTable:
        """Return the columns of all pairs that an expression may name; `index` is the number of the pair."""
        table = column_table(self.data)

        def read(name: str) -> NDArray[Any]:
            return np.arange(len(self)) if name == "index" else np.repeat(table.read(name), self.counts)

        return replace(table, samples=len(self), read=read)

    def in_layers(self, numbers: NDArray[np.int64] | None) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the layers that have some of these pairs, None for all, with the indices of their samples."""
        if numbers is None:
            return [(layer, np.flatnonzero(self.counts > layer)) for layer in range(self.layers)]
        indices, elements = self.located(numbers)
        found = [(layer, indices[elements == layer]) for layer in range(self.layers)]
        return [(layer, samples) for layer, samples in found if len(samples)]


class Layers(MixtureMembers, Reprs, shows="pairs"):
    """The layers of pairs as the members of a mixture, all of them of one data set."""

    what = "expand="

    def __init__(self, port: DrawPort, pairs: Pairs) -> None:
        super().__init__(range(pairs.layers), [port] * pairs.layers)
        self.port, self.pairs = port, pairs

    def member_of(self, tag: int) -> int:
        """Return the layer that a ticket with this tag draws from. Raises `UsageError`."""
        return member_of_seed(self.ports[0].fetcher.order_of(tag).seed)


def pair_sequence(layers: Layers, seed: int, origin: str, *, subset: ArrayLike | None, shuffle: bool) -> AccessSequence:
    """Return the sequence of a sampler of pairs. Raises `UsageError`."""
    if not shuffle:
        return PairsInOrder(layers.pairs, layers.pairs.chosen(subset), seed)
    return shuffled_pairs(layers, seed, origin, subset)


def shuffled_pairs(layers: Layers, seed: int, origin: str, subset: ArrayLike | None = None) -> ShuffledPairs:
    """Return the sequence of pairs in random order. Raises `UsageError`."""
    pairs = layers.pairs
    numbers = pairs.chosen(subset)
    drawn = pairs.in_layers(numbers)
    orders = [layers.port.order(numbered_seed(seed, layer), samples, at_a_time=len(drawn)) for layer, samples in drawn]
    if orders[0].shares:
        raise UsageError(
            f"order={orders[0].policy.name!r} shares reads with other jobs, and expand={pairs.field!r} does not: give "
            "order='stripes'"
        )
    sizes = tuple(float(order.draws) for order in orders)
    mixed = MixedOrder.of(orders, sum(order.draws for order in orders), seed, sizes)
    return ShuffledPairs(layers, mixed, origin)


class ShuffledPairs(MixedSequence, Reprs, shows="seed samples"):
    """The pairs in random order: tickets of the layers."""

    def __init__(self, layers: Layers, order: MixedOrder, origin: str) -> None:
        self._layers, self._pairs, self._port = layers, layers.pairs, layers.port
        super().__init__(layers, order, origin)

    def to_json(self) -> dict[str, Any]:
        return {"data_set": self._port.data.id, "expand": self._pairs.field} | self.order.to_json()

    def loaded(self, state: Mapping[str, Any]) -> ShuffledPairs:
        """Return a sequence of the same pairs with the orders of a state. Raises `UsageError` if it has others."""
        _facts_of(self._pairs, state)
        try:
            order = loaded_order(self.order, state)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the state is of other pairs: give the sampler the same shuffle= and subset= as before ({error})"
            ) from None
        return ShuffledPairs(self._layers, order, self._origin)


class PairsInOrder(Reprs, AccessSequence, shows="seed samples"):
    """The pairs by number, which are read directly. `numbers`: only these; None: all."""

    order = None
    shuffle = False

    def __init__(self, pairs: Pairs, numbers: NDArray[np.int64] | None, seed: int) -> None:
        self._pairs, self._numbers, self.seed = pairs, numbers, seed

    @property
    def samples(self) -> int:
        return len(self._pairs) if self._numbers is None else len(self._numbers)

    def ints(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the numbers of pairs."""
        return positions if self._numbers is None else self._numbers[positions]

    def begin(self, announcement: Announcement, *, goes_on: bool) -> None:
        """See `AccessSequence`: direct reads need no server."""

    def to_json(self) -> dict[str, Any]:
        part = {} if self._numbers is None else {"part": hashlib.blake2s(self._numbers.tobytes()).hexdigest()}
        return {"data_set": self._pairs.data.id, "expand": self._pairs.field, "seed": self.seed} | part

    def facts_at(self, epoch: int, position: int) -> dict[str, Any]:  # noqa: ARG002
        """Return no further facts."""
        return {}

    def loaded(self, state: Mapping[str, Any]) -> PairsInOrder:
        """Return this sequence. Raises `UsageError` if the state is of other pairs."""
        facts = _facts_of(self._pairs, state)
        if state["shuffle"] or facts.get("part") != self.to_json().get("part") or state["position"] > self.samples:
            raise UsageError("the state is of other pairs: give the sampler the same shuffle= and subset= as before")
        return self


def _facts_of(pairs: Pairs, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a state about its order. Raises `UsageError` if they are of other samples than the pairs."""
    facts = dict(state["order"])
    if facts.get("expand") != pairs.field:
        raise UsageError(
            f"the state is not of a data set with expand={pairs.field!r}: open the data set as it was opened before"
        )
    if facts.get("data_set") != pairs.data.id:
        raise UsageError(other_data_set(str(facts.get("data_set")), pairs.data, pairs.data.name))
    return facts


def note_without(pairs: Pairs, name: str) -> str:
    """Return the warning about samples that are in no pair; empty if there are none."""
    some = pairs.without
    total = counted(pairs.data.samples_present, "sample")
    return f"{some:,} of {total} of {name} have nothing in {pairs.field!r}, and are in no pair" if some else ""
