"""Which positions are a rank's own, with `locality`? A client asks, and gets the answer when all ranks have begun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from brand.errors import UsageError
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.state.lives import Key
from brand.node.decide.state.tasks import PositionsDivided, Refuse
from brand.node.wire.numbers import ClientNumber

LIMIT_S: Final = 60.0
"""Seconds that ranks wait for each other to begin."""


@dataclass(frozen=True, slots=True)
class _Asked:
    client: ClientNumber
    key: Key
    rank: int
    since_s: float


class Divisions:
    """Clients that have asked and have no answer yet."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._asked: list[_Asked] = []

    def __repr__(self) -> str:
        return f"Divisions({len(self._asked)} clients wait)"

    @property
    def idle(self) -> bool:
        """Whether no client waits."""
        return not self._asked

    def ask(self, client: ClientNumber, key: Key, rank: int, now_s: float) -> None:
        """Record that a client asks for a rank's own positions of an epoch. Raises `UsageError` if it already waits."""
        if any(asked.client == client for asked in self._asked):
            raise UsageError("this client already waits for its positions")
        self._asked.append(_Asked(client, key, rank, now_s))

    def on_client_gone(self, client: ClientNumber) -> None:
        """Forget the question of a client that has disconnected."""
        self._asked = [asked for asked in self._asked if asked.client != client]

    def answers(self, now_s: float) -> Iterator[PositionsDivided | Refuse]:
        """Yield the answers that clients get now."""
        waiting, self._asked = self._asked, []
        for asked in waiting:
            live = self._epochs.get(asked.key)
            if live is not None and self._epochs.features.is_committed(asked.key):
                yield PositionsDivided(asked.client, live.epoch.division.positions(asked.rank))
            elif now_s - asked.since_s > LIMIT_S:
                missing = ", ".join(map(str, self._missing_ranks(asked.key)))
                reason = f"ranks {missing} have not begun epoch {asked.key[1]} within {LIMIT_S:.0f} s"
                yield Refuse(asked.client, UsageError(reason))
            else:
                self._asked.append(asked)

    def _missing_ranks(self, key: Key) -> list[int]:
        """Return the ranks that have not begun an epoch. Until a rank has begun it, the number of ranks counts as 1."""
        life = self._epochs.lives.get(key)
        begin = None if life is None else life.begin
        replicas = 1 if begin is None else begin.division.replicas
        return sorted(set(range(replicas)) - self._epochs.runs[key[0]].ranks(replicas).keys())
