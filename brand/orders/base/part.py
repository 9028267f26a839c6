"""Which samples does a run draw if it does not draw all: for example those with some labels, or four of five folds?

A subset is a set of places, with a bit for each place of the data set. Positions of an epoch are 0 to (samples of the
subset) - 1. A random subset is another one in each epoch. Pure.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.random import BLOCK, RandomStream, bits, number, ranked

ONE_NODE: Final = (
    "several nodes do not fetch a subset of a data set together with order='slots': give order='stripes', or "
    "convert these samples to a data set of their own"
)
"""The reason to refuse an order of a subset whose plans depend on the nodes."""
_WORD_BYTES: Final = 8
ONE: Final = 1 << 32
"""The unit of the fractions of a `RandomSubset`: 1."""
ALIKE: Final = ONE >> 24
"""Fractions that follow each other at this distance count as one: rounding moves them a little."""
STRATUM: Final = 16
"""Samples among which a `RandomSubset` chooses at random: those of one fraction, or about this many of several."""


def named(digest: Any) -> str:
    """Return the text that names the subset with this digest to the user; None is the digest of all samples."""
    return "all samples" if digest is None else f"subset {digest}"


@dataclass(frozen=True, repr=False)
class Subset:
    """Some of the samples of a data set, at least one. Raises ValueError if the bits do not fit."""

    samples: int
    """Samples of the whole data set."""
    bits: bytes
    """A bit for each place, the first place in the lowest bit; the bits after the last place are 0."""

    def __post_init__(self) -> None:
        if len(self.bits) != -(-self.samples // 8) or (self.samples % 8 and self.bits[-1] >> self.samples % 8):
            raise ValueError(f"a subset of {self.samples:,} samples has one bit for each of them")
        if not any(self.bits):
            raise ValueError("a subset has at least one sample")

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> Subset:
        """Return the subset of the places of `mask`, shape (samples,)."""
        return cls(len(mask), np.packbits(mask, bitorder="little").tobytes())

    def __repr__(self) -> str:  # a run's tickets depend on it, so it names the samples
        return f"Subset({len(self):,} of {self.samples:,}, {self.digest})"

    def __len__(self) -> int:
        """Return the number of samples of the subset."""
        return self._count

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits by which an order, and so a loader state, names the subset."""
        return hashlib.blake2s(self.bits, digest_size=16).hexdigest()

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Whether each place belongs to the subset, shape (samples,)."""
        return self.part(0, self.samples)

    def at(self, places: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return whether each of these places belongs to the subset."""
        found: NDArray[np.bool_] = np.frombuffer(self.bits, np.uint8)[places >> 3] >> (places & 7) & 1 != 0
        return found

    def part(self, first: int, end: int) -> NDArray[np.bool_]:
        """Return whether each of the places `first` to `end` - 1 belongs to the subset."""
        bits = np.frombuffer(self.bits, np.uint8)[first // 8 : -(-end // 8)]
        return np.unpackbits(bits, bitorder="little")[first % 8 : first % 8 + end - first].view(np.bool_)

    def places(self, first: int, end: int) -> NDArray[np.intp]:
        """Return the samples of the subset among the places `first` to `end` - 1."""
        return first + np.flatnonzero(self.part(first, end))

    def counts(self, first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples of the subset are at places `first` to `end` - 1, for each of some spans."""
        words = np.frombuffer(self.bits + bytes(_WORD_BYTES + -len(self.bits) % _WORD_BYTES), "<u8")
        before = np.zeros(len(words), np.int64)  # the samples before each word
        np.cumsum(np.bitwise_count(words[:-1]), out=before[1:])

        def before_place(places: NDArray[np.int64]) -> NDArray[np.int64]:
            low = (np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1)
            found: NDArray[np.int64] = before[places >> 6] + np.bitwise_count(words[places >> 6] & low)
            return found

        return before_place(end) - before_place(first)

    def members(self, first: NDArray[np.int64], count: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the samples of the subset among `count` places from `first` on, for each of some spans.

        Returns the span of each sample, by its index, and its place; span after span, the places of each ascending.
        """
        bits, before = np.frombuffer(self.bits, np.uint8), first & 7
        width = (int((before + count).max(initial=0)) + 7) // 8  # bytes of a span
        spans, places = [np.arange(0)], [np.arange(0)]
        for start in range(0, len(first), step := max(1, BLOCK // max(1, width))):
            some = slice(start, start + step)
            mask = np.unpackbits(
                bits.take((first[some] >> 3)[:, None] + np.arange(width), mode="clip"), bitorder="little"
            )
            found = np.flatnonzero(mask.view(np.bool_))
            span = found // (8 * width)
            place = found - 8 * width * span + (first[some] - before[some])[span]
            if before[some].any() or (count[some] != 8 * width).any():  # then bits around a span are not of it
                inside = (place >= first[some][span]) & (place < (first + count)[some][span])
                span, place = span[inside], place[inside]
            spans.append(start + span)
            places.append(place)
        return np.concatenate(spans), np.concatenate(places)

    def to_text(self) -> str:
        """Return the bits as a text for JSON."""
        return base64.b64encode(self.bits).decode()

    @classmethod
    def from_text(cls, samples: int, text: Any) -> Subset:
        """Read the output of `to_text`. Raises ValueError if it is invalid."""
        if not isinstance(text, str):
            raise ValueError(f"the bits of a subset are {text!r:.20}, not a text")
        return cls(samples, base64.b64decode(text, validate=True))

    @cached_property
    def _count(self) -> int:
        return int.from_bytes(self.bits).bit_count()


def united(subsets: Sequence[Subset | None]) -> Subset | None:
    """Return the samples of any of these subsets. None stands for all samples."""
    found = subsets[0]
    for other in subsets[1:]:
        if found is None or other is None:
            return None
        bits = np.frombuffer(found.bits, np.uint8) | np.frombuffer(other.bits, np.uint8)
        found = Subset(found.samples, bits.tobytes())
    return found


@dataclass(frozen=True, repr=False)
class RandomSubset:
    """Another subset in each epoch, of one size: each sample belongs to it with its own probability.

    Systematic sampling, with a random start in each epoch, along the samples in the order of their fractions. Samples
    of one fraction are in random order; if there are few of them, they are mixed with their neighbours. So of many
    samples with one fraction, the subset has the floor or the ceiling of the sum of their fractions. Raises ValueError
    if the fractions do not fit.
    """

    samples: int
    """Samples of the whole data set."""
    packed: bytes
    """The probability of each place as a u32 in units of 2 ** -32, little endian. The sum of all is a whole number."""

    def __post_init__(self) -> None:
        if len(self.packed) != 4 * self.samples:
            raise ValueError(f"a random subset of {self.samples:,} samples has one fraction for each of them")
        if not len(self) or int(self.fractions.sum(dtype=np.uint64)) % ONE:
            raise ValueError("the fractions of a random subset have a whole number as their sum, at least 1")

    @classmethod
    def of(cls, fractions: NDArray[np.uint32]) -> RandomSubset:
        """Return the random subset with these fractions, by place, shape (samples,)."""
        return cls(len(fractions), fractions.astype("<u4").tobytes())

    def __repr__(self) -> str:
        return f"RandomSubset({len(self):,} of {self.samples:,}, {self.digest})"

    def __len__(self) -> int:
        """Return the number of samples of the subset of each epoch."""
        return self._count

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits by which an order, and so a loader state, names the random subset."""
        return hashlib.blake2s(self.packed, digest_size=16, person=b"random").hexdigest()

    @property
    def fractions(self) -> NDArray[np.uint32]:
        """The probability of each place, in units of 2 ** -32, shape (samples,)."""
        return np.frombuffer(self.packed, "<u4")

    @cached_property
    def ever(self) -> Subset:
        """The samples that some epoch can draw."""
        return Subset.of(self.fractions > 0)

    def of_epoch(self, seed: int, epoch: int) -> Subset:
        """Return the subset of an epoch of the order with this seed."""
        return _subset_of_epoch(self, seed, epoch)

    def chosen(self, seed: int, epoch: int) -> NDArray[np.bool_]:
        """Return the mask of that subset, shape (samples,)."""
        places, strata = self._by_fraction
        words = bits(len(places) + 1, seed, RandomStream.CHANCES, epoch)
        start, keys = words[0] >> np.uint64(32), words[1:]
        width = int(strata[-1]).bit_length()
        keys >>= np.uint64(width)
        keys |= strata.astype(np.uint64) << np.uint64(64 - width)
        at = places[ranked(keys, number(keys))]  # by stratum, then at random
        ends = np.cumsum(self.fractions[at], dtype=np.uint64)
        ends += start
        ends >>= np.uint64(32)
        mask = np.zeros(self.samples, np.bool_)
        mask[at[np.diff(ends, prepend=np.uint64(0)) > 0]] = True
        return mask

    def to_text(self) -> str:
        """Return the fractions as a text for JSON."""
        return base64.b64encode(zstandard.ZstdCompressor(level=1).compress(self.packed)).decode()

    @classmethod
    def from_text(cls, samples: int, text: Any) -> RandomSubset:
        """Read the output of `to_text`. Raises ValueError if it is invalid."""
        if not isinstance(text, str):
            raise ValueError(f"the fractions of a random subset are {text!r:.20}, not a text")
        try:
            packed = zstandard.ZstdDecompressor().decompress(base64.b64decode(text, validate=True), 4 * samples)
        except zstandard.ZstdError as error:
            raise ValueError(f"the fractions of a random subset are damaged: {error}") from None
        return cls(samples, packed)

    @cached_property
    def _count(self) -> int:
        return int(self.fractions.sum(dtype=np.uint64)) // ONE

    @cached_property
    def _by_fraction(self) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """The places that some epoch can draw, in the order of their fractions, and the stratum of each, from 1 on."""
        found = np.flatnonzero(self.fractions).astype(index_dtype(self.samples))
        keys = self.fractions[found].astype(np.uint64) << np.uint64(32)
        found = found[ranked(keys, number(keys))]
        ordered = self.fractions[found]
        starts = np.flatnonzero(np.append(True, np.diff(ordered) > ALIKE))  # of samples of one fraction
        lengths = np.diff(starts, append=len(ordered))
        apart = lengths >= STRATUM
        cut = apart | np.append(False, apart[:-1]) | (np.diff(starts // STRATUM, prepend=-1) > 0)
        return found, np.repeat(np.cumsum(cut, dtype=np.uint32), lengths)


@lru_cache(4)
def _subset_of_epoch(of: RandomSubset, seed: int, epoch: int) -> Subset:
    """Return the subset of an epoch. It is asked for several times: by plans, and for the place of a ticket."""
    return Subset.of(of.chosen(seed, epoch))
