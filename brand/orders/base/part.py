"""Which samples does a run draw, where these are not all: for example those with some labels, or four of five folds?

A part is a set of places. Its plan is the plan of the whole data set without the other samples: what is drawn keeps its
order, and of each read only the span is left that holds such samples. So positions are 0 to (samples of the part) - 1.
Pure.
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
    "several nodes do not draw a subset of a data set together with order='slots': give order='stripes', or "
    "convert these samples to a data set of their own"
)
"""Why an order of a part is refused whose plans foresee nodes."""


def named(digest: Any) -> str:
    """The subset of a digest as a text for the user; None stands for all samples."""
    return "all samples" if digest is None else f"subset {digest}"


@dataclass(frozen=True, repr=False)
class Subset:
    """Some of the samples of a data set, at least one. Raises ValueError."""

    samples: int
    """Samples of the whole data set."""
    bits: bytes
    """A bit for each place, the first one in the lowest bit; the bits behind the last place are 0."""

    def __post_init__(self) -> None:
        if len(self.bits) != -(-self.samples // 8) or (self.samples % 8 and self.bits[-1] >> self.samples % 8):
            raise ValueError(f"a part of {self.samples:,} samples has one bit for each of them")
        if not any(self.bits):
            raise ValueError("a part has at least one sample")

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> Subset:
        """The places of `mask`, shape (samples,)."""
        return cls(len(mask), np.packbits(mask, bitorder="little").tobytes())

    def __repr__(self) -> str:  # a run's tickets depend on it, so it names the samples
        return f"Subset({len(self):,} of {self.samples:,}, {self.digest})"

    def __len__(self) -> int:
        """Samples of the part."""
        return self._count

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits by which an order, and so a state, names the part."""
        return hashlib.blake2s(self.bits, digest_size=16).hexdigest()

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which places belong to the part, shape (samples,)."""
        return np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.samples, bitorder="little").view(np.bool_)

    def to_text(self) -> str:
        """The bits as a text for JSON."""
        return base64.b64encode(self.bits).decode()

    @classmethod
    def from_text(cls, samples: int, text: Any) -> Subset:
        """Inverse of `to_text`, distrusting. Raises ValueError."""
        if not isinstance(text, str):
            raise ValueError(f"the bits of a part are {text!r:.20}, no text")
        return cls(samples, base64.b64decode(text, validate=True))

    @cached_property
    def _count(self) -> int:
        return int(np.bitwise_count(np.frombuffer(self.bits, np.uint8)).sum(dtype=np.int64))


def narrowed(plan: EpochPlan, mask: NDArray[np.bool_]) -> EpochPlan:
    """The plan without the samples that `mask`, shape (samples,), does not have. It must not have `requests`.

    A read is due when the first of its samples is drawn.
    """
    drawn = mask[plan.sample_of]
    sample_of = plan.sample_of[drawn]
    if plan.reads is None:
        return EpochPlan(plan.mapping, sample_of, None)
    return planned_by(plan.mapping, sample_of, np.where(mask, read_of_sample(plan), -1))
