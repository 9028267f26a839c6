"""How do samples that several members of a mixture have fetched become the samples of one request, in its order?

Each member fetches its samples with its own request. Columns and samples of a range of the request are read from the
members and put at their positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import counted
from brand.torch.fetch.fetched import Column, Columns, FetchedSamples, Span

MEMBER: Final = "member"
"""Name of the field with the number of a sample's member."""


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """Samples that one member has fetched of one of its epochs."""

    member: int
    epoch: int
    at: NDArray[np.intp]
    """Positions of the samples in the request, ascending."""
    fetched: FetchedSamples


class UndecodedMixture:
    """Samples of several members that were fetched and are not decoded yet; see `FetchedSamples`."""

    def __init__(self, portions: Sequence[Portion], *, with_member: bool) -> None:
        self._portions, self._with_member = portions, with_member
        self.spans: list[Span] = [span for portion in portions for span in portion.fetched.spans]
        """The waits of the requests for data servers or storage, member by member."""

    def __repr__(self) -> str:
        return f"UndecodedMixture({counted(len(self), 'sample')} of {counted(len(self._portions), 'portion')})"

    def __len__(self) -> int:
        return sum(len(portion.at) for portion in self._portions)

    @property
    def waited_s(self) -> float:
        """Seconds for which the requests waited for data servers or storage, added up."""
        return sum(span.end_s - span.start_s for span in self.spans)

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """Return the fields of samples `first` to `end` - 1, with `index`, `key`, and `member` if samples are dicts."""
        parts = self._in(first, end)
        return self._together(first, end, [(p, at, p.fetched.columns(*of, views=views)) for p, at, of in parts])

    def gathers(self, first: int, end: int) -> bool:
        """Return whether servers have decoded the images and audio of all these samples.

        Members may differ in shape.
        """
        return all(portion.fetched.gathers(*of) for portion, _, of in self._in(first, end))

    def gathered(self, first: int, end: int) -> Columns:
        """Return columns, if `gathers` is true of these samples. Raises `FormatError` if a sample does not decode."""
        return self._together(first, end, [(p, at, p.fetched.gathered(*of)) for p, at, of in self._in(first, end)])

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the samples `first` to `end` - 1, one dict for each, with their `member`."""
        found: list[dict[str, Any]] = [{}] * (end - first)
        for portion, at, of in self._in(first, end):
            for position, sample in zip(at.tolist(), portion.fetched.samples(*of), strict=True):
                found[position] = sample | {MEMBER: portion.member}
        return found

    def turns(self, first: int, end: int) -> list[int]:
        """Return numbers that distinguish members and their epochs."""
        turns = np.empty(end - first, np.int64)
        for portion, at, _ in self._in(first, end):
            turns[at] = portion.epoch << 16 | portion.member
        return turns.tolist()

    def _in(self, first: int, end: int) -> Iterator[tuple[Portion, NDArray[np.intp], tuple[int, int]]]:
        """Yield portions that have some of these samples, their positions from `first` on, and their range in it."""
        for portion in self._portions:
            low, high = np.searchsorted(portion.at, (first, end)).tolist()
            if low < high:
                yield portion, portion.at[low:high] - first, (low, high)

    def _together(self, first: int, end: int, parts: list[tuple[Portion, NDArray[np.intp], Columns]]) -> Columns:
        if self._with_member:
            for portion, at, columns in parts:
                columns[MEMBER] = np.full(len(at), portion.member)
        count = end - first
        return {name: _merged(count, [(at, columns[name]) for _, at, columns in parts]) for name in parts[0][2]}


def _merged(count: int, parts: list[tuple[NDArray[np.intp], Column]]) -> Column:
    """Return several columns as one, each value at its position."""
    if len(parts) == 1:
        return parts[0][1]
    arrays = [column for _, column in parts if isinstance(column, np.ndarray)]
    if len(arrays) == len(parts) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        together = np.empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        for (at, _), array in zip(parts, arrays, strict=True):
            together[at] = array
        return together
    together_at = np.empty(count, np.intp)
    together_at[np.concatenate([at for at, _ in parts])] = np.arange(count)
    values = list(chain.from_iterable(column for _, column in parts))
    return [values[number] for number in together_at.tolist()]
