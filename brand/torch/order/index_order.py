"""How much does an epoch in the order of the indices cost, compared with one in the order of the chunks?

Chunks are shuffled, so samples with adjacent indices are in different chunks, and each of them is a read of its own.
The log says once what that costs on this storage, and what to write instead.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

import numpy as np

from brand.errors import counted
from brand.printable import printable
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.profile.profile import Profile, bandwidth, load_profile

WORTH_S: Final = 2.0
"""Seconds by which an epoch in the order of the indices takes longer, for the log to say so."""
MANY: Final = 5000
"""Samples of an epoch for the log to say so if the storage is unknown."""
_INSTEAD: Final = (
    'If the order does not matter, open the data set with order="storage" and leave out shuffle=False: that reads '
    "large blocks ahead of time, in the same order in every epoch, and the field `index` says which sample each is "
    "(docs/guides/evaluate.md). (This is said once.)"
)
log = logging.getLogger("brand")
_said = set[str]()
"""Data sets of which this process has said it."""


class SampleRates(NamedTuple):
    """Samples per second that a storage reads."""

    single: float
    """Each with a read of its own."""
    large: float
    """In large reads."""


def rates_of(profile: Profile, mean_bytes: float) -> SampleRates:
    """Return the samples of this mean size that a storage reads per second."""
    size = max(1.0, mean_bytes)
    return SampleRates(float(bandwidth(profile, np.array([size]))[0]) / size, profile.sequential / size)


def cost_of_indices(profile: Profile | None, mean_bytes: float, samples: int) -> str:
    """Return the cost of an epoch of `samples` samples in the order of the indices; empty if it hardly costs anything.

    `profile` is that of the storage, if it is known.
    """
    if profile is None:
        return "`brand profile` measures how slow that is on this storage" if samples >= MANY else ""
    rates = rates_of(profile, mean_bytes)
    if samples / rates.single - samples / rates.large < WORTH_S:
        return ""
    return f"at most {rates.single:,.0f} samples/s from this storage, which has {rates.large:,.0f} in large reads"


def say_cost(data: Catalogue, name: str, samples: int) -> None:
    """Say in the log, once, what it costs to read `samples` samples of a data set in the order of their indices."""
    if name in _said:
        return
    _said.add(name)
    if cost := cost_of_indices(load_profile(data.name), data.mean_bytes, samples):
        said = "shuffle=False reads %s of %s one by one, in the order of their indices: %s. %s"
        log.warning(said, counted(samples, "sample"), printable(name), cost, _INSTEAD)
