"""Which samples does a run draw if it does not draw all: for example those with some labels, or four of five folds?

A subset is a set of places. Its plan is the plan of the whole data set without the other samples: the fetched samples
keep their order, and each read shrinks to the span that holds samples of the subset. So positions are 0 to (samples of
the subset) - 1. Pure.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.plan import EpochPlan, planned_by, read_of_sample

ONE_NODE: Final = (
    "several nodes do not fetch a subset of a data set together with order='slots': give order='stripes', or "
    "convert these samples to a data set of their own"
)
"""The reason to refuse an order of a subset whose plans depend on the nodes."""


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
        return np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.samples, bitorder="little").view(np.bool_)

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


def narrowed(plan: EpochPlan, mask: NDArray[np.bool_]) -> EpochPlan:
    """Return the plan without the samples that `mask`, shape (samples,), excludes. The plan must not have `requests`.

    A read is due when the first of its samples is drawn.
    """
    drawn = mask[plan.sample_of]
    sample_of = plan.sample_of[drawn]
    if plan.reads is None:
        return EpochPlan(plan.mapping, sample_of, None)
    return planned_by(plan.mapping, sample_of, np.where(mask, read_of_sample(plan), -1))
