"""How often does an epoch draw each sample, if samples have weights?

An epoch of `M` draws has sample `i` the floor or the ceiling of `M * w_i / sum(w)` times, its *expectation*. An
expectation is a whole number and a fraction. Both are drawn by orders of their own, which a mixture draws in exact
proportion, so the copies of a sample are spread over the epoch:

    the bits of the whole numbers    for each bit an order of the samples that have it, drawn 2 ** bit times an epoch
    the fractions                    an order that draws another random subset in each epoch (`RandomSubset`)

An order has a limited number of epochs, so it is drawn `MOST_TIMES` times an epoch at most, and bits of larger numbers
have several orders. No sample is due twice in one epoch of an order.

An expectation is a whole number of 2 ** -32, and all arithmetic is of whole numbers, or of one product that every
machine rounds in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.part import ONE, RandomSubset, Subset
from brand.orders.base.random import blocks

MAX_TIMES: Final = 4096
"""The most draws of a sample in an epoch."""
MOST_TIMES: Final = 64
"""The most epochs of an order in one epoch of the sampler, which so has at least 1,000 epochs."""
MAX_ORDERS: Final = MOST_TIMES.bit_length() - 1 + 2 * MAX_TIMES // MOST_TIMES
"""The most orders of an epoch: one for each bit below `MOST_TIMES`, 127 of `MOST_TIMES` draws, one for fractions."""
_BITS: Final = 32
_EXACT: Final = 62
"""Sums of weights have this many bits at most."""


@dataclass(frozen=True, slots=True)
class WeightedMember:
    """Samples that an epoch draws `times` times each."""

    times: int
    samples: Subset | RandomSubset

    @property
    def draws(self) -> int:
        """Draws of an epoch of the sampler."""
        return self.times * len(self.samples)


def expectations(weights: NDArray[np.float64], draws: int) -> NDArray[np.uint64]:
    """Return how often an epoch of `draws` draws is to have each sample, in units of 2 ** -32, shape (samples,).

    The sum is exactly `draws`. Weights are 0 or more. Raises ValueError if they are not, if none is above 0, or if a
    sample would be drawn more than `MAX_TIMES` times.
    """
    most = float(weights.max(initial=0.0))
    if not (np.isfinite(weights).all() and weights.min(initial=0.0) >= 0 and most > 0):
        raise ValueError("weights are finite numbers, 0 or more, and one of them is above 0")
    found, unit = np.empty(len(weights), np.uint64), float(1 << (_EXACT - len(weights).bit_length()))
    for part in blocks(len(weights)):
        found[part] = np.rint(weights[part] / most * unit)
    total = int(found.sum())
    if draws * int(found.max()) > MAX_TIMES * total:
        raise ValueError(f"a sample would be fetched more than {MAX_TIMES:,} times an epoch")
    unit = draws * (1 << _BITS) / total
    for part in blocks(len(weights)):
        found[part] = np.rint(found[part].astype(np.float64) * unit)
    _round_to(found, draws << _BITS)
    return found


def members_of(expected: NDArray[np.uint64]) -> list[WeightedMember]:
    """Return the orders of an epoch with these expectations, by place; those of whole numbers first."""
    whole, fractions = expected >> np.uint64(_BITS), (expected & np.uint64(ONE - 1)).astype(np.uint32)
    found = []
    for bit in range(int(whole.max(initial=0)).bit_length()):
        mask = whole >> np.uint64(bit) & np.uint64(1) > 0
        if mask.any():
            times = min(1 << bit, MOST_TIMES)
            found += [WeightedMember(times, Subset.of(mask))] * ((1 << bit) // times)
    if fractions.any():
        found.append(WeightedMember(1, RandomSubset.of(fractions)))
    return found


def _round_to(expected: NDArray[np.uint64], total: int) -> None:
    """Add to expectations, in place, so that their sum is `total`, from which rounding has moved it a little.

    Whole numbers stay. The others change by less than the rounding of all samples together, evenly.
    """
    error = total - int(expected.sum())
    if error:
        part = expected & np.uint64(ONE - 1)
        able = np.flatnonzero(
            (part >= ONE >> 3) & (part < ONE - (ONE >> 3))
        )  # far from a whole number, if there are any
        able = able if len(able) else np.flatnonzero(part)
        each, more = divmod(error, len(able))
        expected[able] += np.uint64(each % (1 << 64))  # modulo 2 ** 64, so a negative number is subtracted
        expected[able[:more]] += np.uint64(1)
