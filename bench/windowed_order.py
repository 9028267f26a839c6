"""Can the order of a data set of a billion samples be made in parts, with memory for a part only? A prototype.

The access sequence of an epoch is a sort of random words, one for each sample (`brand.orders.base.random.permutation`).
Part `k` of `K` is the portion of a full sort between two values: the words from `k / K` to `(k + 1) / K` of their
range. One pass over all words finds them, because any word can be made without those before it. Only they are sorted.

A draw takes the next sample of its group's tape. A tape is a sort by keys, and the keys of a stripe that has `s`
samples before it are between `s` and `s + W` (`brand.orders.policies.stripe_policy`). So the draws from `c` to `c + d`
of a group can only be from stripes with `s` from `c - W - r` to `c + d + W + r`, and only these are sorted.

A part needs one fact of the parts before it: how often each group was drawn. Resuming in the middle of an epoch takes
one more pass, which counts.

    python -m bench.windowed_order --samples 13000000 --check     all parts, compared with the whole plan
    python -m bench.windowed_order --samples 1000000000 --only 7
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.dtypes import index_dtype
from brand.orders.base.mapping import Mapping
from brand.orders.base.random import RandomStream, bits, low_mask, ranked
from brand.orders.policies.stripe_policy import plan_stripes

_WORDS: Final = 1 << 18
"""Words that are made at a time: they fit in the processor's cache."""
_ROWS: Final = 1 << 21
"""Samples of the groups whose tapes are made at a time."""


class Parts:
    """The order of one epoch of order `stripes`, in `parts` parts."""

    def __init__(self, mapping: Mapping, stripe: int, seed: int, epoch: int, parts: int) -> None:
        self.mapping, self.stripe, self.seed, self.epoch, self.parts = mapping, stripe, seed, epoch, parts
        self.drawn = np.zeros(mapping.groups, np.int64)
        """How often each group was drawn in the parts before the next one."""

    def skip(self, part: int) -> None:
        """Resume with a part, as after a restart: count the draws of those before it."""
        for index, _ in self._selected(0, part):
            self.drawn += np.bincount(index // self.mapping.group_size, minlength=self.mapping.groups)

    def make(self, part: int) -> NDArray[Any]:
        """Return the samples of the next part, in the order of draws."""
        mapping = self.mapping
        mask = low_mask(mapping.samples)
        words = np.concatenate([words for _, words in self._selected(part, part + 1)])
        words = ranked(words, mask)
        group = (words // np.uint64(mapping.group_size)).astype(np.int32)
        del words
        counts = np.bincount(group, minlength=mapping.groups)
        by_group = np.argsort(group, kind="stable").astype(np.int32)
        del group
        samples = np.empty(len(by_group), index_dtype(mapping.samples))
        ends = np.cumsum(counts)
        step = max(1, _ROWS // mapping.group_size)
        for first in range(0, mapping.groups, step):
            end = min(first + step, mapping.groups)
            taken = self._tapes(first, end, self.drawn[first:end], counts[first:end])
            samples[by_group[ends[first] - counts[first] : ends[end - 1]]] = taken
        self.drawn += counts
        return samples

    def _selected(self, first: int, end: int) -> Iterator[tuple[NDArray[Any], NDArray[np.uint64]]]:
        """Yield (indices, words with the index in their low bits) of parts `first` to `end` - 1, block by block."""
        count = self.mapping.samples
        mask = low_mask(count)
        low, high = (np.uint64(min((number << 64) // self.parts, (1 << 64) - 1)) for number in (first, end))
        for start in range(0, count, _WORDS):
            words = bits(min(_WORDS, count - start), self.seed, RandomStream.ACCESS, self.epoch, first=start)
            words &= ~mask
            words |= np.arange(start, start + len(words), dtype=np.uint64)
            chosen = words >= low
            if end < self.parts:
                chosen &= words < high
            words = words[chosen]
            yield (words & mask).astype(np.int64), words

    def _tapes(self, first: int, end: int, before: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return draws `before` to `before + counts` - 1 of some groups, group after group."""
        mapping, r = self.mapping, self.stripe
        n, per_chunk = mapping.group_chunks, -(-mapping.chunk_size // r)
        width, window = n * per_chunk, 2 * mapping.chunk_size - r
        sizes = mapping.chunk_samples()[first * n : end * n]
        length = np.clip(sizes[:, None] - np.arange(per_chunk) * r, 0, r).reshape(end - first, -1)
        length = np.pad(length, ((0, 0), (0, width - length.shape[1])))
        mask = low_mask(width)
        keys = self._rows(first, end, width, RandomStream.STRIPE_ORDER)
        keys &= ~mask
        keys |= np.arange(width, dtype=np.uint64)
        order = ranked(keys, mask).astype(np.int64)
        lengths = np.take_along_axis(length, order, axis=1)
        starts = np.cumsum(lengths, axis=1) - lengths
        near = (starts >= (before - window - r)[:, None]) & (starts <= (before + counts + window + r)[:, None])
        near &= lengths > 0
        row, rank = np.nonzero(near)
        stripe, s, size = order[row, rank], starts[row, rank], lengths[row, rank]
        words = self._rows(first, end, width * r, RandomStream.STRIPE_MATES).reshape(end - first, width, r)[row, stripe]
        u = (words & np.uint64(0xFFFFFFFF)) * np.float64(2.0**-32)
        low = low_mask(r)
        words &= ~low
        absent = np.arange(r) >= size[:, None]
        words[absent] = ~low
        words |= np.arange(r, dtype=np.uint64)
        mate = ranked(words, low).astype(np.int64)
        # As the whole plan: the low bits of a key are the sample's number within its group.
        u += np.arange(r)
        u *= window
        u /= size[:, None]
        u += s[:, None]
        there = ~absent
        mask = low_mask(width * r)
        key = u[there].view(np.uint64)
        key &= ~mask
        key |= (mate + (stripe * r)[:, None])[there].astype(np.uint64)
        per_row = np.bincount(row, size, minlength=end - first).astype(np.int64)
        most, at = int(per_row.max()), np.cumsum(per_row) - per_row
        table = np.full((end - first, most), np.iinfo(np.uint64).max)
        owner = np.repeat(row, size)
        table[owner, np.arange(len(key)) - at[owner]] = key
        tape = ranked(table, mask).astype(np.int64)
        skipped = np.zeros(end - first, np.int64)
        some = per_row > 0
        skipped[some] = s[np.searchsorted(row, np.flatnonzero(some))]
        owner = np.repeat(np.arange(end - first), counts)
        nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        within = tape[owner, before[owner] - skipped[owner] + nth]
        chunk, offset = np.divmod(within, per_chunk * r)
        found: NDArray[np.int64] = (chunk + (owner + first) * n) * mapping.chunk_size + offset
        return found

    def _rows(self, first: int, end: int, width: int, purpose: RandomStream) -> NDArray[np.uint64]:
        padded = -(-width // 4) * 4
        words = bits((end - first) * padded, self.seed, purpose, self.epoch, first=first * padded)
        return words.reshape(end - first, padded)[:, :width]


def main() -> None:
    """Make parts, print how long each took and the memory at the peak."""
    parser = argparse.ArgumentParser(prog="bench.windowed_order", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=13_000_000)
    parser.add_argument("--chunk-size", type=int, default=8192)
    parser.add_argument("--group-chunks", type=int, default=16)
    parser.add_argument("--stripe", type=int, default=1024)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--only", type=int, help="only this part, after counting the draws of those before it")
    parser.add_argument("--check", action="store_true", help="compare with the plan of the whole epoch")
    arguments = parser.parse_args()
    mapping = Mapping(arguments.samples, arguments.chunk_size, arguments.group_chunks)
    parts = Parts(mapping, arguments.stripe, 0, 1, arguments.parts)
    start_s = time.perf_counter()
    if arguments.only is not None:
        parts.skip(arguments.only)
        print(f"counted in {time.perf_counter() - start_s:.1f} s")
    made = []
    for part in range(arguments.parts) if arguments.only is None else [arguments.only]:
        start_s = time.perf_counter()
        samples = parts.make(part)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(
            f"part {part}: {len(samples):,} draws in {time.perf_counter() - start_s:.2f} s; {peak:,.0f} MB at the peak"
        )
        if arguments.check:
            made.append(samples)
    if arguments.check:
        start_s = time.perf_counter()
        plan = plan_stripes(mapping, arguments.stripe, 0, 1)
        print(f"the whole plan: {time.perf_counter() - start_s:.2f} s")
        print("the same order" if np.array_equal(np.concatenate(made), plan.sample_of) else "ANOTHER ORDER")


if __name__ == "__main__":
    main()
