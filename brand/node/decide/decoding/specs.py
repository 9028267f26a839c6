"""Which decode specs do clients have, and by which numbers does the server identify them?

A decode spec has one number for all clients. A run has the decode specs of all its clients. A decode spec that no
client has any more is remembered until its number is needed, because the next job may have it again.

A server may decode only for specs that several runs have (`least`): a single job decodes faster for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Final

from brand.node.wire.decoding import DecodeSpec
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.reprs import Reprs

MOST: Final = 16
"""Limit on the decode specs that a server remembers."""


class DecodeSpecTable(Reprs, shows="_numbers _of"):
    """Decode specs by number, and the clients that have them.

    `forgets` forgets a decode spec if possible, and returns whether it did. The server decodes if `least` runs have it.
    """

    def __init__(self, forgets: Callable[[int], bool], least: int = 1) -> None:
        self._forgets, self.least = forgets, least
        self._numbers: dict[DecodeSpec, int] = {}
        self._of: dict[tuple[ClientNumber, RunNumber], tuple[int, ...]] = {}
        self._last = 0
        self._prepared: dict[RunNumber, set[int]] = {}
        """Numbers of the decode specs for which the server decodes, by run."""

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def any(self) -> bool:
        return any(self._prepared.values())

    def register(self, client: ClientNumber, run: RunNumber, wants: tuple[DecodeSpec, ...]) -> tuple[int, ...] | None:
        """Register the decode specs of a client for a run. Return their numbers, or None if there are too many."""
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

    def remove_client(self, client: ClientNumber) -> None:
        self._of = {key: numbers for key, numbers in self._of.items() if key[0] != client}
        self._count()

    def of(self, client: ClientNumber, run: RunNumber) -> tuple[int, ...]:
        """Return the numbers of a client's decode specs for a run, in the client's order."""
        return self._of.get((client, run), ())

    def of_run(self, run: RunNumber) -> set[int]:
        """Return the numbers of the decode specs of a run for which the server decodes: those that enough runs have."""
        return self._prepared.get(run, set())

    def _count(self) -> None:
        """Find the decode specs for which the server decodes, after clients have registered or disconnected."""
        wanted: dict[RunNumber, set[int]] = {}
        for (_, run), numbers in self._of.items():
            wanted.setdefault(run, set()).update(numbers)
        runs = Counter(chain.from_iterable(wanted.values()))
        self._prepared = {run: {n for n in numbers if runs[n] >= self.least} for run, numbers in wanted.items()}

    def spec_of(self, number: int) -> DecodeSpec:
        return next(want for want, of in self._numbers.items() if of == number)
