"""A draw that is not answered yet: its positions, the cause of its wait, and its waiting time by cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Epoch
from brand.node.wire.draw_messages import NOT_HELD, Held
from brand.node.wire.drawing import Drawer
from brand.node.wire.numbers import ClientNumber, RunNumber

Cause = Literal["storage", "node", "preparation", "server"]
"""Cause of a draw's wait: a field of `Held`."""


@dataclass(eq=False, slots=True)
class Draw:
    """Positions of an epoch that a client waits for."""

    number: int
    """Number of the draw, counted in the order of arrival."""
    client: ClientNumber
    key: tuple[RunNumber, int]
    """Number of the run, and the epoch."""
    positions: NDArray[np.int64]
    since_s: float
    drawer: Drawer | None = None
    """The process of the client, if it is known."""
    asked_of: int = 0
    """Number of the epoch whose planned requests for this draw have been sent. 0 if none have."""
    asked_s: float = 0.0
    """Time at which these requests were sent. From then on, other nodes can know that the draw waits."""
    waits_at: int = -1
    """The last of its positions whose sample was missing at the last check. -1 if the server has not checked yet."""
    waits_for: Cause | None = None
    """Current cause of the wait. None if the draw has not waited yet."""
    held: Held = NOT_HELD
    """Earlier waiting times by cause, up to `held_s`."""
    held_s: float = 0.0

    def note_missing(self, waits_at: int) -> None:
        """Record the last position of the draw whose sample is missing."""
        self.waits_at = waits_at

    def wait_for(self, cause: Cause | None, now_s: float) -> None:
        """Record the cause of the wait from now on. None if the draw waits no longer."""
        if cause == self.waits_for:
            return
        if self.waits_for is not None:
            so_far = getattr(self.held, self.waits_for)
            self.held = self.held._replace(**{self.waits_for: so_far + now_s - self.held_s})
        self.waits_for, self.held_s = cause, now_s

    def claim_requests(self, epoch: Epoch, now_s: float) -> bool:
        """Return whether to send the planned requests of an epoch for this draw. They are sent once."""
        if self.asked_of == epoch.number:
            return False
        self.asked_of, self.asked_s = epoch.number, now_s
        return True
