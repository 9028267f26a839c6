"""Order `stripes`, the default: each stripe is read exactly once an epoch, at a random time of its group's tape.

Each epoch every group puts the stripes of its chunks in random order. The group's tape is a sort by keys. If `s`
samples precede a stripe in that order, the samples of the stripe get the keys `s + W * (p + u) / r`, with `p` a
random permutation of 0 .. r-1, `u` uniform in [0, 1), and `W = 2 * chunk_size - r`. The stratified `p` keeps samples of
one stripe apart, so that they hardly ever meet in a batch. `W` bounds how long a sample waits, so that about
`chunk_size` samples of a group are in memory at a time. The tape depends on (seed, epoch, group) and on nothing else.

Groups are planned together as rows of arrays, a block of groups at a time, so that planning takes little memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping, chunks_per_group
from brand.orders.base.plan import EpochPlan, read_dtype
from brand.orders.base.policy import OrderChoice, Policy, Setting, Size, check_number
from brand.orders.base.random import BLOCK, RandomStream, bits, group_positions, low_mask, permutation, ranked
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import FlatPolicy

BUFFER_SHARE: Final = 16
"""`1 / BUFFER_SHARE` of the samples are in the shuffle buffer; memory beyond that caches samples."""


@dataclass(frozen=True)
class StripePolicy(FlatPolicy):
    """The policy that reads each stripe of a chunk once an epoch (`stripes`). A server may cache whole stripes."""

    name: ClassVar[str] = "stripes"
    stripe: int = 1
    """`r`: samples of a stripe. The last stripe of a chunk may be shorter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("stripe", self.stripe, 1, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        return plan_stripes(mapping, self.stripe, seed, epoch)

    def check_fits(self, mapping: Mapping) -> None:
        super().check_fits(mapping)
        if self.stripe > mapping.chunk_size:
            raise ValueError(f"a stripe of {self.stripe} samples of chunks of {mapping.chunk_size}")

    @property
    def kept_unit(self) -> int:
        return self.stripe


@dataclass(frozen=True, slots=True)
class Stripes(OrderChoice):
    """The default order: every stripe of a chunk is read once an epoch, and its samples are spread over the epoch.

    Args:
        length: Samples in a stripe; None: the fewest that make reads large enough for the storage (`brand profile`).
        buffer: Size of the shuffle buffer, in the form of `memory=` of the data set; None: a sixteenth of the samples.
            The rest of the memory caches samples, which are then read once and never again.
    """

    policy: ClassVar[type[StripePolicy]] = StripePolicy
    length: int | None = None
    buffer: Size = None

    def choose_policy(self, setting: Setting) -> StripePolicy:
        """Return the numbers. They are the same on any number of nodes: those for the memory of one node."""
        usual = setting.samples / BUFFER_SHARE
        buffered = min(setting.held, usual)
        if self.buffer is not None:
            buffered = min(setting.held, setting.samples_in(self.buffer))
        elif not setting.fixed and buffered < usual:
            # The available memory differs a little from run to run; the order should not.
            buffered = setting.samples / 2.0 ** np.ceil(np.log2(setting.samples / buffered))
        length = setting.stripe if self.length is None else self.length
        if not 1 <= length <= setting.chunk_size:
            raise UsageError(
                f"Stripes(length={length}): a stripe has 1 to {setting.chunk_size} samples, a chunk's size"
            )
        least = chunks_per_group(setting.samples, setting.chunk_size, buffered)
        return StripePolicy(max(setting.group_chunks(setting.held), least), length)


def plan_stripes(mapping: Mapping, stripe: int, seed: int, epoch: int) -> EpochPlan:
    """Return the plan of one epoch with stripes of `stripe` samples; the last of a chunk may be shorter."""
    access = permutation(mapping.samples, seed, RandomStream.ACCESS, epoch)
    access //= mapping.group_size  # only the group of each draw matters: the tape has the sample
    draws = group_positions(access)  # positions at which each group is drawn from, group after group
    del access
    sample_of = np.empty(mapping.samples, index_dtype(mapping.samples))
    step = max(1, BLOCK // mapping.group_size)
    parts = []
    for first in range(0, mapping.groups, step):
        end = min(first + step, mapping.groups)
        at = slice(first * mapping.group_size, min(end * mapping.group_size, mapping.samples))
        parts.append(_plan_block(mapping, stripe, (seed, epoch), (first, end), draws[at], sample_of))
    reads = np.concatenate(parts)
    # Stable: reads with one deadline keep the order of their group, on every machine.
    return EpochPlan(mapping, sample_of, reads[np.argsort(reads["deadline"], kind="stable")])


def _plan_block(
    mapping: Mapping,
    stripe: int,
    stream: tuple[int, int],
    groups: tuple[int, int],
    draws: NDArray[Any],
    sample_of: NDArray[Any],
) -> NDArray[np.void]:
    """Fill in the draws of some groups; return their reads, in each group's order."""
    rows, n, per_chunk = groups[1] - groups[0], mapping.group_chunks, -(-mapping.chunk_size // stripe)
    chunk_samples = mapping.chunk_samples()[groups[0] * n : groups[1] * n]
    first_of = np.arange(per_chunk) * stripe
    length = np.clip(chunk_samples[:, None] - first_of, 0, stripe).reshape(rows, n * per_chunk)
    order, before = _stripe_order(length, stream, groups[0])
    sample, key = _keys(length, before, stripe, 2 * mapping.chunk_size - stripe, stream, groups[0])
    tape = _tape(sample, key)

    size = length.sum(axis=1)
    real = np.arange(tape.shape[1]) < size[:, None]
    within = tape[real]  # samples of the block in tape order, counted as if every stripe were full
    row = np.repeat(np.arange(rows), size)
    chunk, offset = np.divmod(within, per_chunk * stripe)
    chunk += row * n
    sample_of[draws] = (chunk + groups[0] * n) * mapping.chunk_size + offset

    # A stripe is due when the first of its samples is drawn, but no later than the stripes behind it in group order.
    first_draw = np.full(length.size, np.iinfo(np.int64).max)
    owner = row * (n * per_chunk) + within // stripe
    first_draw[owner[::-1]] = draws[::-1]  # the last assignment wins: the first draw
    first_draw = np.take_along_axis(first_draw.reshape(length.shape), order, axis=1)
    due = np.minimum.accumulate(first_draw[:, ::-1], axis=1)[:, ::-1]
    count = np.take_along_axis(length, order, axis=1)
    there = count > 0
    reads = np.empty(int(there.sum()), read_dtype(mapping))
    reads["deadline"], reads["count"] = due[there], count[there]
    reads["chunk"] = (order // per_chunk + (np.arange(rows) + groups[0])[:, None] * n)[there]
    reads["first"] = (order % per_chunk * stripe)[there]
    return reads


def _stripe_order(
    length: NDArray[np.int64], stream: tuple[int, int], first_group: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the stripes of each group in the order of reading, with empty ones, and the samples before each stripe."""
    rows, width = length.shape
    mask = low_mask(width)
    keys = _rows_of_bits(rows, width, stream, RandomStream.STRIPE_ORDER, first_group)
    keys &= ~mask
    keys |= np.arange(width, dtype=np.uint64)
    order = ranked(keys, mask).astype(np.int64)
    sorted_lengths = np.take_along_axis(length, order, axis=1)
    before = np.empty_like(length)
    np.put_along_axis(before, order, np.cumsum(sorted_lengths, axis=1) - sorted_lengths, axis=1)
    return order, before


def _keys(
    length: NDArray[np.int64],
    before: NDArray[np.int64],
    stripe: int,
    window: int,
    stream: tuple[int, int],
    first_group: int,
) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Return each group's samples, stripe by stripe in the order of `p`, and their keys; absent ones have infinity."""
    rows, width = length.shape
    raw = _rows_of_bits(rows, width * stripe, stream, RandomStream.STRIPE_MATES, first_group).reshape(
        rows, width, stripe
    )
    # One word gives both numbers: its low half `u`, its high bits the order `p`.
    u: NDArray[np.float64] = (raw & np.uint64(0xFFFFFFFF)) * np.float64(2.0**-32)
    mask = low_mask(stripe)
    raw &= ~mask
    absent = np.arange(stripe) >= length[:, :, None]
    raw[absent] = ~mask  # the largest key, so that absent samples are last
    raw |= np.arange(stripe, dtype=np.uint64)
    mate = ranked(raw, mask)
    mate += (np.arange(width, dtype=np.uint64) * np.uint64(stripe))[:, None]
    u += np.arange(stripe)
    u *= window
    u /= np.maximum(length, 1)[:, :, None]
    u += before[:, :, None]
    u[absent] = np.inf
    return mate.reshape(rows, -1), u.reshape(rows, -1)


def _tape(sample: NDArray[np.uint64], key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return samples in key order, row by row. Keys are not negative, so their bits sort as the keys do."""
    mask = low_mask(sample.shape[1])
    keys = key.view(np.uint64)
    keys &= ~mask
    keys |= sample
    return ranked(keys, mask).astype(np.int64)


def _rows_of_bits(
    rows: int, width: int, stream: tuple[int, int], purpose: RandomStream, first_group: int
) -> NDArray[np.uint64]:
    """Return a row of random words for each group, which depends on (seed, epoch, group) only."""
    padded = -(-width // 4) * 4  # Philox makes blocks of four words, and a row begins with a block
    seed, epoch = stream
    return bits(rows * padded, seed, purpose, epoch, first=first_group * padded).reshape(rows, padded)[:, :width].copy()


@dataclass(frozen=True)
class LapPolicy(Policy):
    """The base of policies whose jobs draw from one sequence of laps, the epochs of `stripes`."""

    stripe: int = 1
    """`r`: samples of a stripe, as in `StripePolicy`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.stripes

    @property
    def stripes(self) -> StripePolicy:
        return StripePolicy(self.group_chunks, self.stripe)

    def check_fits(self, mapping: Mapping) -> None:
        self.stripes.check_fits(mapping)

    @property
    def kept_unit(self) -> int:
        return self.stripe

    @property
    def common(self) -> Hashable:
        return self.stripes

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """Return the lap `epoch`, the plan of a job that is alone."""
        return plan_stripes(mapping, self.stripe, seed, epoch)
