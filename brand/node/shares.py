"""Which positions are a rank's own, with `locality`? It asks, and is told as soon as all ranks have begun."""

from __future__ import annotations

from typing import Final

from brand.errors import UsageError
from brand.node import messages
from brand.node.clients import Clients
from brand.node.core import Core
from brand.node.epochs import Key

LIMIT_S: Final = 60.0
"""How long ranks wait for each other to begin."""


class Shares:
    """Those who have asked and were not told yet."""

    def __init__(self, core: Core, clients: Clients) -> None:
        self._core, self._clients = core, clients
        self._asked: list[tuple[int, Key, int, float]] = []
        """Client, epoch, rank, since when."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits."""
        return not self._asked

    def ask(self, client: int, key: Key, rank: int, now_s: float) -> None:
        """A client wants to know which positions of an epoch are a rank's."""
        self._asked.append((client, key, rank, now_s))

    def answer(self, now_s: float) -> None:
        """Tell those who can be told."""
        asked, self._asked = self._asked, []
        for client, key, rank, since_s in asked:
            channel = self._clients.get(client)
            if channel is None:
                continue
            epoch = self._core.epochs.get(key)
            if epoch is not None:
                self._clients.send(channel, messages.pack_positions(epoch.turns.positions(rank)))
            elif now_s - since_s > LIMIT_S:
                missing = ", ".join(map(str, self._core.epochs.missing_ranks(key)))
                reason = f"ranks {missing} have not begun epoch {key[1]} within {LIMIT_S:.0f} s"
                self._clients.refuse(channel, UsageError(reason), now_s)
            else:
                self._asked.append((client, key, rank, since_s))
