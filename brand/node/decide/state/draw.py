"""What is a draw that is not answered yet? Its positions, what it waits for, and how long it has waited for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.epoch import Epoch
from brand.node.wire.drawing import Drawer
from brand.node.wire.lease import NOT_HELD, Held
from brand.node.wire.numbers import ClientNumber, RunNumber

Cause = Literal["storage", "node", "preparation", "server"]
"""What a draw waits for: the fields of `Held`."""


@dataclass(eq=False, slots=True)
class Draw:
    """Positions of an epoch that a client waits for."""

    number: int
    """Number of the draw: draws are numbered as they come."""
    client: ClientNumber
    key: tuple[RunNumber, int]
    """Number of the run, and the epoch."""
    positions: NDArray[np.int64]
    since_s: float
    drawer: Drawer | None = None
    """The process behind the client, where that is known."""
    asked_of: int = 0
    """Number of the epoch whose planned requests for this draw have been sent; 0: none have."""
    asked_s: float = 0.0
    """When these requests were sent: since then other nodes can know that the draw waits."""
    waits_at: int = -1
    """The last of its positions whose sample was still to come at the last look; -1: the server has not looked yet."""
    waits_for: Cause | None = None
    """What the draw waits for now; None: it has not waited yet."""
    held: Held = NOT_HELD
    """What it has waited for before, up to `held_s`."""
    held_s: float = 0.0

    def looked(self, waits_at: int) -> None:
        """The sample at this position is the last of the draw that is still to come."""
        self.waits_at = waits_at

    def waits(self, cause: Cause | None, now_s: float) -> None:
        """From now on the draw waits for this; None: for nothing any more."""
        if cause == self.waits_for:
            return
        if self.waits_for is not None:
            so_far = getattr(self.held, self.waits_for)
            self.held = self.held._replace(**{self.waits_for: so_far + now_s - self.held_s})
        self.waits_for, self.held_s = cause, now_s

    def asks(self, epoch: Epoch, now_s: float) -> bool:
        """Whether to send the planned requests of an epoch for this draw. They are sent once."""
        if self.asked_of == epoch.number:
            return False
        self.asked_of, self.asked_s = epoch.number, now_s
        return True
