"""The runs that a server knows, and the epochs that ranks and nodes have announced."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from brand.errors import UsageError, counted
from brand.node.decide.state.account import Conduct
from brand.node.decide.state.epoch import Division, EpochProgress
from brand.node.wire.drawing import Begin
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.orders.base.rank_rule import RankRule
from brand.orders.order import Order, disagreement

MAX_RUNS: Final = 1024
"""The most runs that a server has at a time."""
UNBUFFERED_SHARE: Final = 0.1
"""A notice is written if memory has no space for this fraction of an epoch's samples,"""
UNBUFFERED_LEAST: Final = 256
"""and for at least this many samples."""
FEW_CHUNKS: Final = 256
"""In a data set of fewer chunks, smaller chunks need clearly less memory for the same shuffle."""


@dataclass(frozen=True, slots=True)
class EpochReader:
    """A consumer and the epoch that it last announced: one training process of a rank, or one other node."""

    epoch: int
    begin: Begin


@dataclass(slots=True)
class Run:
    """One training."""

    order: Order
    name: str
    tag: int | None
    turn: int | None
    """Number of the sampler that draws it, counted in the training's program: the same on all nodes."""
    conduct: Conduct
    """Check that its training processes draw as they should."""
    clients: set[ClientNumber] = field(default_factory=set)
    readers: dict[tuple[ClientNumber, int | None], EpochReader] = field(default_factory=dict)
    """Readers by client and None. Another node has a reader for each epoch of its ranks, by client and epoch."""
    homes: dict[tuple[int, int], NodeNumber] = field(default_factory=dict)
    """The node at which each rank has last begun an epoch, by (seat, seats). The rank may have left since."""
    rules: dict[int, RankRule] = field(default_factory=dict)
    """The rule with which each rank has last begun an epoch, if it has one, by its seat."""
    copies: int = 1
    """Number of processes of this node that each draw all positions of a rank: a model-parallel group."""
    spans: int = 1
    """Number of nodes that each group has ranks on."""
    continuous: bool = False
    """Whether its epochs follow one another in one sequence, as those of a mixture's member do."""
    loaded: int = 0
    """Samples that its own reads have loaded into memory."""
    served: int = 0
    """Samples of this node that ranks have drawn here or that were sent to other nodes."""
    drawn: int = 0
    """Samples that ranks of this node have drawn."""
    told_of_memory: bool = False
    """Whether the user was told that memory is too small for the reads of the order."""
    agreed: set[int] = field(default_factory=set)
    """Epochs that all ranks have begun in the same way as the ranks of this node. Some may have gone on since."""

    def learn_copies(self, copies: int) -> None:
        """Note how many processes draw all positions of a rank. One that continues with an epoch may not know it."""
        self.copies = max(self.copies, copies)

    def note_continuous(self) -> None:
        self.continuous = True

    def add_loaded(self, samples: int) -> None:
        self.loaded += samples

    def add_served(self, samples: int) -> None:
        self.served += samples

    def add_drawn(self, samples: int) -> None:
        self.drawn += samples

    def note_told_of_memory(self) -> None:
        self.told_of_memory = True

    def add_client(self, client: ClientNumber, tag: int | None, turn: int | None) -> None:
        """Add a client of the run, which may name its tag and the number of its sampler (`turn`)."""
        self.clients.add(client)
        self.tag = self.tag if tag is None else tag
        self.turn = self.turn if turn is None else turn

    def begin(self, client: ClientNumber, reader: EpochReader, node: NodeNumber) -> None:
        """Record how ranks of this node or of another node begin an epoch."""
        here, begin = reader.begin.node == node, reader.begin
        self.homes |= {(seat, begin.seats): begin.node for seat in begin.ranks}
        self.spans = begin.spans
        if begin.rule is not None:
            self.rules |= dict.fromkeys(begin.ranks, begin.rule)
        self.readers[client, None if here else reader.epoch] = reader
        if here:
            self.agreed.discard(reader.epoch)
        begins = self.begins(reader.epoch)
        if all(_complete(begin, begins) for begin in begins if begin.node == node):
            self.agreed.add(reader.epoch)

    def remove_client(self, client: ClientNumber) -> bool:
        """Remove a client. Return whether it was a reader."""
        self.clients.discard(client)
        readers = [reader for reader in self.readers if reader[0] == client]
        for reader in readers:
            del self.readers[reader]
        return bool(readers)

    def at(self) -> set[int]:
        """Return the epochs that readers are in. Forgets the agreement on all other epochs."""
        epochs = {reader.epoch for reader in self.readers.values()}
        self.agreed &= epochs
        return epochs

    @property
    def continued_to(self) -> set[int]:
        """The epochs that readers of this node are in, if epochs follow one another in one sequence; else empty."""
        return {reader.epoch for (_, of), reader in self.readers.items() if of is None and self.continuous}

    def begins(self, epoch: int) -> list[Begin]:
        """Return how each reader in an epoch has begun it."""
        return [reader.begin for reader in self.readers.values() if reader.epoch == epoch]

    def agreed_on(self, epoch: int, node: NodeNumber) -> bool:
        """Return whether all ranks have begun an epoch as those of this node have, or this node has no rank in it.

        With a rule, it is enough that all have begun some epoch with it: they come to the next ones at other times.
        """
        if epoch in self.agreed or all(begin.node != node for begin in self.begins(epoch)):
            return True
        mine = next((begin.rule for begin in self.begins(epoch) if begin.node == node), None)
        seats = 0 if mine is None else mine.replicas * self.spans
        if mine is None or not all(mine.agrees_with(self.rules.get(seat)) for seat in range(seats)):
            return False
        self.agreed.add(epoch)
        return True

    def continued(self, node: NodeNumber) -> Begin | None:
        """Return how the ranks of this node continue with an epoch: as they have begun. None if none has a rule."""
        spans = self.spans
        rules = (rule for seat, rule in self.rules.items() if self.homes.get((seat, rule.replicas * spans)) == node)
        rule = next(rules, None)
        if rule is None:
            return None
        ranks = tuple(sorted(seat for seat, at in self.known(rule.replicas * spans).items() if at == node))
        return Begin(0, rule.replicas, ranks, node=node, rule=rule, spans=spans)

    def conflict(self, node: NodeNumber) -> str | None:
        """Return how other ranks have begun an epoch in another way than those of this node. None if none have."""
        for epoch in {reader.epoch for reader in self.readers.values()}:
            begins = self.begins(epoch)
            for mine in [begin for begin in begins if begin.node == node]:
                for reason in (mine.conflict(epoch, other) for other in begins):
                    if reason is not None:
                        return reason
        return None

    def fronts(self, epoch: int) -> dict[int, int]:
        """Return, by seat, the position of an epoch before which the rank has drawn all its positions there."""
        return {seat: begin.front for begin in self.begins(epoch) if begin.front for seat in begin.ranks}

    def known(self, seats: int) -> dict[int, NodeNumber]:
        """Return the seats of ranks that have begun any epoch, of so many seats, and the node of each."""
        return {seat: node for (seat, of), node in self.homes.items() if of == seats}

    def seats(self, seats: int) -> dict[int, NodeNumber]:
        """Return the seats of ranks that have announced draws, of so many seats, and the node of each."""
        begins = [reader.begin for reader in self.readers.values() if reader.begin.seats == seats]
        return {seat: begin.node for begin in begins for seat in begin.ranks}


def _complete(begin: Begin, begins: list[Begin]) -> bool:
    """Return whether all ranks have begun in the same way as `begin`."""
    return len({rank for other in begins if other.same_as(begin) for rank in other.ranks}) >= begin.seats


class Runs(UserDict[RunNumber, Run]):
    """The runs of a server, by number. No number is used twice."""

    def __init__(self, samples: int, chunk_size: int) -> None:
        super().__init__()
        self._sizes, self._last = (samples, chunk_size), 0
        self._meets: Callable[[Order], object] = lambda _: None
        self._notices: list[str] = []

    def call_for_orders(self, meets: Callable[[Order], None]) -> None:
        """Call `meets` with the order of each new run from now on, before the run is known."""
        self._meets = meets

    def take_notices(self) -> list[str]:
        """Return messages for the user, most of them about the draws of training processes. Each is returned once."""
        notices = self._notices.copy()
        self._notices.clear()
        return notices

    def notice(self, text: str) -> None:
        self._notices.append(text)

    def check_buffered(self, number: RunNumber, epoch: int, progress: EpochProgress) -> None:
        """Add a notice, once in a run, if memory has no space for many samples of an epoch.

        Half of the epoch is fetched.
        """
        run, direct = self[number], progress.unbuffered
        if run.told_of_memory or direct < max(UNBUFFERED_LEAST, UNBUFFERED_SHARE * progress.total):
            return
        run.note_told_of_memory()
        samples, chunk_size = self._sizes
        chunks, cure = -(-samples // chunk_size), "Give more memory="
        if run.order.policy.needs_all:
            cure = (
                "The run began with memory for all samples, so each epoch is mixed over all of them: give it that "
                "memory again, or begin a new run, which is mixed as this memory allows"
            )
        elif chunks < FEW_CHUNKS:
            cure += (
                ", or convert with a smaller --chunk-size: the data set has "
                f"{counted(chunks, 'chunk')} of {counted(min(samples, chunk_size), 'sample')}"
            )
        self._notices.append(
            f"in epoch {epoch}, at least {direct:,} of {progress.total:,} samples are read one by one, because memory "
            f"has no space for whole stripes of a chunk. {cure}. (This message is not repeated.)"
        )

    @property
    def have_weights(self) -> bool:
        """Whether a run is one of a sampler with weights."""
        return any(run.order.times for run in self.values())

    def knows(self, client: ClientNumber, run: RunNumber) -> bool:
        return run in self and client in self[run].clients

    def order_by_tag(self, name: str, tag: int | None) -> Order:
        """Return the order that a run's processes call by a tag. Raises `UsageError` if no order has the tag."""
        for run in self.values():
            if tag is not None and (run.name, run.tag) == (name, tag):
                return run.order
        raise UsageError(f"no order of run {name} has tag {tag}")

    def clients(self, run: RunNumber | None) -> list[ClientNumber]:
        """Return the clients that have registered the run of this number. None: of all runs."""
        return sorted({client for number, known in self.items() if run in (None, number) for client in known.clients})

    def is_drawn_here(self, number: RunNumber) -> bool:
        """Return whether clients of this node draw a run; other nodes have negative numbers among its clients."""
        run = self.get(number)
        return run is not None and max(run.clients, default=-1) >= 0

    def number_of(self, name: str, order: Order) -> RunNumber | None:
        """Return the number of a run. None if this server does not know it."""
        return next((n for n, run in self.items() if (run.order, run.name) == (order, name)), None)

    def register(
        self, client: ClientNumber, order: Order, name: str, tag: int | None, turn: int | None = None
    ) -> RunNumber:
        """Register a client at a run, and return the run's number.

        Raises `UsageError` if the order does not fit the data set, if the same sampler of another rank draws another
        order, or if there are too many runs.
        """
        if (order.samples, order.chunk_size) != self._sizes:
            raise UsageError("the order belongs to another data set: its number of samples or its chunk size differs")
        if client >= 0 and turn is not None:  # `Disagreements` checks other nodes
            self._check_agreed(order, name, turn)
        number = self.number_of(name, order)
        if number is None:
            if len(self) == MAX_RUNS:
                raise UsageError(f"this server already serves {MAX_RUNS} runs; start another server")
            self._meets(order)
            self._last += 1
            number = RunNumber(self._last)
            self[number] = Run(order, name, None, None, Conduct(self._notices))
        run = self[number]
        run.add_client(client, tag, turn)
        return number

    def _check_agreed(self, order: Order, name: str, turn: int) -> None:
        """Raise `UsageError` if another rank of this node draws another order by the same sampler."""
        for run in self.values():
            if (run.name, run.turn) == (name, turn) and run.order != order and max(run.clients, default=-1) >= 0:
                raise disagreement(order.differences(run.order))


@dataclass(frozen=True, slots=True)
class EpochStart:
    """How an epoch begins."""

    division: Division
    times: int
    """Number of times that ranks have begun it. 0 if it is read ahead, or if a draw of a lost epoch has begun it."""
    whole: bool = True
    """Whether this server sees all draws from `division.start` on: ranks have begun there, and for the first time."""
