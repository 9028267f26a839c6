"""What do clients want to have prepared, and by which numbers does the server call it?

A want has one number for all clients. The wants of a run are those of all its clients. A want that no client has any
more stays known, because the next job may have it again, until its number is needed.

A server may prepare a want only where several runs have it (`least`): one job alone decodes faster for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Final

from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.node.wire.prepared import DecodeSpec

MOST: Final = 16
"""The most wants that a server knows."""


class DecodeSpecTable:
    """Wants by number, and the clients that have them. `forgets` says whether a want can be forgotten, and does so.

    Wants are prepared that at least `least` runs have.
    """

    def __init__(self, forgets: Callable[[int], bool], least: int = 1) -> None:
        self._forgets, self.least = forgets, least
        self._numbers: dict[DecodeSpec, int] = {}
        self._of: dict[tuple[ClientNumber, RunNumber], tuple[int, ...]] = {}
        self._last = 0
        self._prepared: dict[RunNumber, set[int]] = {}
        """Numbers of what is to be prepared, by run."""

    def __repr__(self) -> str:
        return f"DecodeSpecTable({self._numbers}, {len(self._of)} clients want some)"

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def any(self) -> bool:
        """Whether anything is to be prepared."""
        return any(self._prepared.values())

    def register(self, client: ClientNumber, run: RunNumber, wants: tuple[DecodeSpec, ...]) -> tuple[int, ...] | None:
        """A client has wants for its draws of a run. Returns their numbers; None where there are too many."""
        used = {number for numbers in self._of.values() for number in numbers}
        for want in [want for want, number in self._numbers.items() if number not in used and want not in wants]:
            if len(self._numbers | dict.fromkeys(wants, 0)) > MOST and self._forgets(self._numbers[want]):
                del self._numbers[want]
        if len(self._numbers | dict.fromkeys(wants, 0)) > MOST:
            return None
        for want in wants:
            if want not in self._numbers:
                self._last += 1
                self._numbers[want] = self._last
        self._of[client, run] = tuple(self._numbers[want] for want in wants)
        self._count()
        return self._of[client, run]

    def left(self, client: ClientNumber) -> None:
        """A client is gone."""
        self._of = {key: numbers for key, numbers in self._of.items() if key[0] != client}
        self._count()

    def of(self, client: ClientNumber, run: RunNumber) -> tuple[int, ...]:
        """Numbers of what a client wants of a run, in its order."""
        return self._of.get((client, run), ())

    def of_run(self, run: RunNumber) -> set[int]:
        """Numbers of what is to be prepared for a run: what its clients want, and clients of enough runs."""
        return self._prepared.get(run, set())

    def _count(self) -> None:
        """Clients have come or gone: settle what is to be prepared."""
        wanted: dict[RunNumber, set[int]] = {}
        for (_, run), numbers in self._of.items():
            wanted.setdefault(run, set()).update(numbers)
        runs = Counter(chain.from_iterable(wanted.values()))
        self._prepared = {run: {n for n in numbers if runs[n] >= self.least} for run, numbers in wanted.items()}

    def named(self, number: int) -> DecodeSpec:
        """The want of a number."""
        return next(want for want, of in self._numbers.items() if of == number)
