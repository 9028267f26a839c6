"""Which rank draws each position of an epoch whose batches are planned from lengths?

Ranks take whole batches in turn, and a batch has positions of one bucketing window in any order. Data servers of
several nodes plan the same batches as the samplers, from the same lengths, to send each sample to the node whose rank
draws it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.policy import check_number
from brand.orders.base.rank_rule import MAX_RANKS
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.batches.batching import BatchLimits
from brand.orders.order import MAX_EPOCH, Order

_KINDS: Final = ("<i8", "<f8")
_FIELDS: Final = ("limits", "lengths", "kind", "samples", "epoch", "batch", "replicas")


class SampleLengths:
    """The length of the sample at each place, shape (samples,). Two with the same digest are equal."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.digest = hashlib.blake2s(values.tobytes(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        return f"SampleLengths({len(self.values):,}, {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleLengths) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def kind(self) -> str:
        """The type of a length: whole numbers or floats."""
        return _KINDS[self.values.dtype.kind == "f"]

    @cached_property
    def text(self) -> str:
        """The lengths as a text for JSON."""
        packed = self.values.astype(self.kind).view(np.uint8).reshape(-1, 8).T.tobytes()  # most high bytes are 0
        return base64.b64encode(zstandard.ZstdCompressor(level=1).compress(packed)).decode()

    def check_fits(self, order: Order, limits: BatchLimits) -> None:
        """Raise ValueError if a sample of the order has no length, or one that fits no batch."""
        values, longest = self.values, limits.longest
        if len(values) != order.samples:
            raise ValueError(f"{len(values):,} lengths for an order of {order.samples:,} samples")
        if order.ever is not None:
            values = values[order.ever.mask]
        if values.min() < 0 or (longest is not None and values.max() > longest):
            raise ValueError(f"lengths from {values.min()} to {values.max()} in batches of at most {longest}")

    def to_json(self) -> dict[str, Any]:
        return {"lengths": self.text, "kind": self.kind, "samples": len(self.values)}

    @staticmethod
    def from_json(value: Any) -> SampleLengths:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        check_number("samples", value["samples"], 1, MAX_POSITIONS)
        if not isinstance(value["lengths"], str):
            raise ValueError("lengths of samples are a text")
        return lengths_of_text(value["lengths"], value["kind"], value["samples"])


def digest_of(lengths: Sequence[SampleLengths]) -> str:
    """Return a digest of the lengths of all samples, by member of a mixture. One data set has that of its lengths."""
    digests = [each.digest for each in lengths]
    return digests[0] if len(digests) == 1 else hashlib.blake2s("".join(digests).encode(), digest_size=16).hexdigest()


@lru_cache(4)
def lengths_of_text(text: str, kind: str, samples: int) -> SampleLengths:
    """Read the lengths of a text. Raises ValueError if it is invalid. Processes of many ranks send the same one."""
    if kind not in _KINDS:
        raise ValueError(f"lengths of kind {kind!r}: there are {', '.join(_KINDS)}")
    try:
        packed = zstandard.ZstdDecompressor().decompress(base64.b64decode(text, validate=True), 8 * samples)
    except zstandard.ZstdError as error:
        raise ValueError(f"the lengths of samples are damaged: {error}") from None
    if len(packed) != 8 * samples:
        raise ValueError(f"{len(packed) // 8:,} lengths of {samples:,} samples")
    rows = np.frombuffer(packed, np.uint8).reshape(8, samples)
    values = np.ascontiguousarray(rows.T).view(kind).reshape(samples)
    if not (np.isfinite(values).all() and values.min(initial=0) >= -1):
        raise ValueError("lengths of samples are numbers from 0 on, or -1 for samples that are never fetched")
    return SampleLengths(values)


class PlannedRule:
    """The base of rules by which ranks take planned batches in turn, from `batch` of `epoch` on."""

    __slots__ = ()
    limits: BatchLimits
    epoch: int
    batch: int
    replicas: int

    def __post_init__(self) -> None:
        check_number("epoch", self.epoch, 0, MAX_EPOCH)
        check_number("batch", self.batch, 0, MAX_POSITIONS)
        check_number("replicas", self.replicas, 1, MAX_RANKS)

    @property
    def since(self) -> int:
        """A number that grows with the epoch and the batch at which the ranks began."""
        return self.epoch * (MAX_POSITIONS + 1) + self.batch

    @property
    def reach(self) -> int:
        """How far a rank draws positions out of their order: a packed batch may take some of the window before it."""
        return 2 * self.limits.window

    def begins_as(self, other: PlannedRule) -> bool:
        """Whether both name the same batches from the later one's beginning on."""
        mine, theirs = (self.epoch, self.batch), (other.epoch, other.batch)
        return mine == theirs or max(mine, theirs)[1] == 0


@dataclass(frozen=True, slots=True)
class BatchRanks(PlannedRule):
    """The rank of each position, from the batch on with which ranks have begun.

    Satisfies `brand.orders.base.rank_rule.RankRule`. Raises ValueError if a number is out of range.
    """

    limits: BatchLimits
    lengths: SampleLengths
    epoch: int
    batch: int
    """The first batch of `epoch` that ranks draw. Later epochs are drawn from their first batch on."""
    replicas: int

    def __post_init__(self) -> None:
        PlannedRule.__post_init__(self)
        if self.lengths.digest != self.limits.lengths:
            raise ValueError("the batches are of other lengths")

    def check_fits(self, order: Order) -> None:
        """Raise ValueError if a sample of the order has no length, or one that fits no batch."""
        self.lengths.check_fits(order, self.limits)

    def ranks_of(self, order: Order, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position of an epoch, same shape."""
        start = self.batch if epoch == self.epoch else 0
        table = ranks_by_position(self.limits, (self.lengths,), order, epoch, start, self.replicas)
        found: NDArray[np.int64] = table[positions].astype(np.int64)
        return found

    def agrees_with(self, other: object) -> bool:
        """Whether both name the same rank at all positions that ranks draw from the later one's beginning on."""
        if not isinstance(other, BatchRanks):
            return False
        return (self.limits, self.replicas) == (other.limits, other.replicas) and self.begins_as(other)

    def to_json(self) -> dict[str, Any]:
        own = {"epoch": self.epoch, "batch": self.batch, "replicas": self.replicas}
        return {"limits": self.limits.to_json(), **self.lengths.to_json(), **own}

    @classmethod
    def from_json(cls, value: Any) -> BatchRanks:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        if not isinstance(value, Mapping) or set(value) != set(_FIELDS):
            raise ValueError(f"ranks of batches have the fields {', '.join(_FIELDS)}")
        limits = BatchLimits.from_json(value["limits"])
        return cls(limits, SampleLengths.from_json(value), value["epoch"], value["batch"], value["replicas"])


class LengthOrder(Protocol):
    """An order, of one data set or of a mixture, that finds the lengths of an epoch."""

    seed: int

    def by_position(self, epoch: int, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the value of the sample at each position of an epoch. `values` are by member and place."""


@lru_cache(4)
def ranks_by_position(
    limits: BatchLimits, lengths: tuple[SampleLengths, ...], order: LengthOrder, epoch: int, start: int, replicas: int
) -> NDArray[Any]:
    """Return the rank of each position of an epoch, whose first batch that is drawn is number `start`."""
    by_position = order.by_position(epoch, [each.values for each in lengths])
    batches = limits.batches(by_position, order.seed, epoch)
    ranks = ((np.arange(len(batches)) - start) % replicas).astype(index_dtype(replicas))
    table = np.empty(len(by_position), ranks.dtype)
    table[batches.positions] = np.repeat(ranks, np.diff(batches.ends, prepend=0))
    return table
