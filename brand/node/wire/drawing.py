"""What do clients and nodes say of those that draw? Who draws, from where on, and which epoch."""

from __future__ import annotations

from dataclasses import dataclass

from brand.errors import ProtocolError
from brand.protocol.order import Order


@dataclass(frozen=True, slots=True)
class Drawer:
    """Who draws through a connection."""

    training: int
    """Process id of the training process."""
    worker: int = 0
    """Which of its workers; 0 where it draws itself."""
    workers: int = 1
    """How many workers it has; 1 where it draws itself."""
    connection: int = 0
    """Number of the connection: each thread that draws has one of its own."""

    @staticmethod
    def named(training: object, worker: object, connection: int) -> Drawer | None:
        """Who draws, as a client says in its HELLO; None where it says nothing. Raises `ProtocolError`."""
        if worker is None or training is None:
            return None
        match worker:
            case [int() as number, int() as workers] if isinstance(training, int) and 0 <= number < workers:
                return Drawer(training, number, workers, connection)
        raise ProtocolError(f"worker {worker!r} of process {training!r}")


@dataclass(frozen=True, slots=True)
class Begin:
    """What ranks say that are about to draw an epoch from position `start` on."""

    start: int
    replicas: int
    ranks: tuple[int, ...]
    batch: int = 0
    """Samples of a batch of each rank, with `locality`; 0: they draw in turn."""
    node: int = 0
    """Where they are."""
    times: int = 1
    """How often in a row they have begun this epoch; 0: not yet, they will be there next."""
    front: int = 0
    """They have drawn what lies before it."""
    largest: int = 0
    """Pages of the largest sample that can be sent to their node."""

    def same_as(self, other: Begin) -> bool:
        """Whether both divide the same positions among equally many ranks."""
        return (self.start, self.replicas, self.batch) == (other.start, other.replicas, other.batch)

    def conflict(self, epoch: int, other: Begin) -> str | None:
        """Why ranks here and those of another begin of this epoch cannot draw together; None where they can.

        Those that have begun it more often than others may be a step ahead of them.
        """
        if self.times != other.times or self.same_as(other):
            return None
        return (
            f"nodes {self.node} and {other.node} disagree: node {self.node} begins epoch {epoch} at position "
            f"{self.start:,} of {self.replicas} ranks, node {other.node} at position {other.start:,} of "
            f"{other.replicas} ranks; give all ranks the same sampler and state"
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """What this node tells others of an epoch that its ranks draw."""

    name: str
    turn: int | None
    order: Order
    epoch: int
    begin: Begin
    number: int
    """Tells this epoch from one that is begun anew; 0: its samples cannot be taken yet."""
