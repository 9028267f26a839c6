"""How far is one epoch of one run: which samples are missing, in memory, drawn or sent?

A node reads only the samples that it owns. If a rank of another node draws such a sample, this node sends it to that
node (`outgoing`). If a rank of this node draws a sample of another node, its owner sends it without a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.state.members import Owners, SampleLimits
from brand.node.decide.state.states import COMING, DUE, GONE, UNWANTED, ReadQueue, SampleStates
from brand.node.decide.state.takes import Deliveries
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.plan import EpochPlan, PeerRequests, PlanWindows, read_of_sample
from brand.orders.base.random import blocks
from brand.orders.base.rank_rule import EpochRanks
from brand.reprs import Reprs


@dataclass(frozen=True, slots=True)
class Division:
    """Positions `start` to `samples` - 1, divided among ranks.

    Ranks draw in turn. With `locality`, each rank first takes samples that its own node owns. The ranks of a mixture
    divide the positions of its members by a rule.
    """

    samples: int
    start: int = 0
    replicas: int = 1
    batch: int = 0
    """Samples of a batch of each rank, with `locality`. 0 if the ranks draw in turn."""
    rank_at: NDArray[Any] | None = None
    """Rank of each position from `start` on, with `locality`."""
    ruled: EpochRanks | None = None
    """The ranks by the rule of a mixture; None if they draw in turn or with `locality`."""
    spans: int = 1
    """The nodes of each model-parallel group. Ranks are then groups, and each has a seat at each of its nodes."""

    @property
    def seats(self) -> int:
        """Number of seats. Those of rank `r` are `r * spans` to `r * spans + spans - 1`."""
        return self.replicas * self.spans

    def positions(self, rank: int) -> NDArray[np.int64]:
        if self.ruled is not None:
            return np.concatenate((np.arange(0), *self.parts(rank)))
        if self.rank_at is None:
            return np.arange(self.start + rank, self.samples, self.replicas, dtype=np.int64)
        return self.start + np.flatnonzero(self.rank_at == rank)

    def count(self, rank: int, first: int = 0) -> int:
        """Return the number of positions of a rank from position `first` on; by a rule, about that number."""
        if self.ruled is not None:
            return (self.samples - max(first, self.start)) // self.replicas
        if self.rank_at is not None:
            return int(np.count_nonzero(self.rank_at[max(0, first - self.start) :] == rank))
        begin = max(first, self.start)
        return len(range(begin + (self.start + rank - begin) % self.replicas, self.samples, self.replicas))

    def parts(self, rank: int, first: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yield the positions of a rank from position `first` on, a block at a time."""
        for part in blocks(self.samples - self.start):
            if self.ruled is not None:
                of = self.ruled.at(np.arange(self.start + part.start, self.start + part.stop))
                positions = part.start + np.flatnonzero(of == rank)
            elif self.rank_at is None:
                begin = part.start + (rank - part.start) % self.replicas
                positions = np.arange(begin, part.stop, self.replicas, dtype=np.int64)
            else:
                positions = part.start + np.flatnonzero(self.rank_at[part] == rank)
            yield (positions + self.start)[np.searchsorted(positions, first - self.start) :]

    def at(self, values: NDArray[Any], rank: int, last: int) -> NDArray[Any]:
        """Return the values at the positions of a rank up to `last`, ascending. `values` has the shape (samples,)."""
        if self.ruled is None and self.rank_at is None:
            return values[self.start + rank : last + 1 : self.replicas]
        values = values[self.start : last + 1]
        if self.ruled is not None:
            rank_at: NDArray[Any] = self.ruled.at(np.arange(self.start, self.start + len(values)))
        else:
            assert self.rank_at is not None
            rank_at = self.rank_at[: len(values)]
        found: NDArray[Any] = values[rank_at == rank]
        return found

    def rank_of(self, position: int) -> int:
        """Return the rank that draws a position. Before `start` and past the end, ranks count as drawing in turn."""
        if self.ruled is not None:
            return int(self.ruled.at(np.array([position]))[0])
        if self.rank_at is None or not self.start <= position < self.samples:
            return (position - self.start) % self.replicas
        return int(self.rank_at[position - self.start])

    def ranks_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rank that draws each position, by the rule of `rank_of`."""
        if self.ruled is not None:
            return self.ruled.at(positions)
        ranks = (positions - self.start) % self.replicas
        if self.rank_at is not None:
            inside = (positions >= self.start) & (positions < self.samples)
            ranks[inside] = self.rank_at[positions[inside] - self.start]
        return ranks

    def same_division(self, other: Division) -> bool:
        """Return whether both divide the positions among equally many ranks in the same way."""
        if self.ruled is not None and other.ruled is not None:
            return self.spans == other.spans and self.ruled.rule.agrees_with(other.ruled.rule)
        mine, theirs = ((one.replicas, one.batch, one.ruled, one.spans) for one in (self, other))
        return mine == theirs

    def same_as(self, other: Division) -> bool:
        """Return whether both divide the positions in the same way, and begin at the same position."""
        return self.start == other.start and self.same_division(other)


class EpochProgress(Reprs, shows="drawn sent total start"):
    """Counts of one epoch, and the highest position that each rank has asked for."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Position before which no rank asks any more."""
        self.drawn = 0
        """Samples that ranks of this node have drawn."""
        self.sent = 0
        """Samples that this node has sent to other nodes, or will not send."""
        self.total = 0
        """Samples that ranks of this node will draw in all, or this node will send."""
        self.unbuffered = 0
        """Samples that clients read directly, because memory has no space for their reads."""
        self._asked: dict[int, int] = {}
        """The highest position that each rank has asked for."""
        self.elsewhere: dict[NodeNumber, int] = {}
        """Position before which the ranks of each other node have asked for all, as that node reports."""

    @property
    def half_done(self) -> bool:
        return 2 * (self.drawn + self.sent) >= self.total

    @property
    def done(self) -> bool:
        return self.drawn + self.sent >= self.total

    def expect(self, samples: int) -> None:
        """Add samples that will be drawn at this node or sent from it. Removes some if `samples` is below 0."""
        self.total += samples

    def add_drawn(self, rank: int, positions: NDArray[np.int64], samples: int) -> None:
        """Record that a rank has asked for positions. `samples` of them are not asked for again by its group."""
        self._asked[rank] = max(self._asked.get(rank, -1), int(positions.max()))
        self.drawn += samples

    def note_front(self, rank: int, front: int) -> None:
        """Note that a rank has asked another server for all its positions before `front`."""
        if front > self.start:
            self._asked[rank] = max(self._asked.get(rank, -1), front - 1)

    def add_unbuffered(self, samples: int) -> None:
        self.unbuffered += samples

    def add_sent(self, samples: int) -> None:
        self.sent += samples

    def learn_elsewhere(self, node: NodeNumber, front: int) -> None:
        """Record the progress that a node reports for its ranks."""
        self.elsewhere[node] = front

    def skip_to(self, position: int) -> None:
        """Record a position before which no rank asks any more."""
        self.start = max(self.start, position)

    def front(self, ranks: Iterable[int]) -> int:
        """Return the position before which these ranks have asked for all that they will ask for."""
        return min((self._asked.get(rank, self.start - 1) + 1 for rank in ranks), default=self.start)

    def everywhere(self, here: Sequence[int]) -> int:
        """Return the position before which all ranks have asked, those of this node (`here`) and of other nodes."""
        own = [self.front(here)] if here or not self.elsewhere else []
        return min([*own, *self.elsewhere.values()])

    def last(self, rank: int) -> int:
        """Return the highest position that a rank has asked for. `start` if it has asked for none."""
        return self._asked.get(rank, self.start)


@dataclass(frozen=True, slots=True)
class EpochSetting:
    """Facts about the node that serves an epoch."""

    owners: Owners
    limits: SampleLimits
    unreachable: Callable[[], Iterable[NodeNumber]]
    """Nodes from which this node expects no samples at present."""


class ToSend(Protocol):
    """Samples of an epoch that this node still has to send to one other node."""

    def add(self, positions: NDArray[np.int64]) -> None:
        """Add positions after all others, when more of the order or of its plan is known."""

    def ask(self, positions: NDArray[np.int64]) -> None:
        """Send the samples at these positions ahead of all others."""

    def miss(self, places: NDArray[Any]) -> None:
        """Tell the node that these samples will not be sent."""

    def left(self) -> NDArray[Any]:
        """Return the positions whose samples may still be sent."""

    def front(self, end: int) -> int:
        """Return the position before which nothing more will be sent. `end` if nothing known will be sent."""


class Epoch(Reprs, shows="number progress states reads"):
    """The progress of one epoch.

    `number` distinguishes it from the same epoch after a restart. `requests` is the plan's table of this node's
    requests to other nodes. None if they send all samples without requests.
    """

    at_first: ClassVar[int] = GONE
    """The state of a sample that no rank was added for."""

    def __init__(
        self,
        plan: EpochPlan,
        division: Division,
        number: int,
        setting: EpochSetting,
        requests: PeerRequests | None = None,
    ) -> None:
        samples = plan.mapping.samples
        self.plan, self.division, self.number, self.requests = plan, division, number, requests
        self._setting = setting
        owners = setting.owners
        self.mine: Callable[[NDArray[Any]], NDArray[np.bool_]] | None = None if owners.of_chunk is None else owners.mine
        """Return a mask of the places whose samples this node reads itself. None if it reads all."""
        self.states = SampleStates(samples, self.at_first)
        self.reads = ReadQueue(plan)
        self.progress = EpochProgress(division.start)
        self.seats: dict[int, NodeNumber] = {}
        """Seats of ranks that are known to draw, and the node of each."""
        self._deliveries: Deliveries | None = None
        """The nodes that have got each sample. None if each group has ranks on one node."""
        if owners.of_chunk is not None and division.spans > 1:
            self._deliveries = Deliveries(samples, int(owners.of_chunk.max()) + 1, division.spans)
        self.outgoing: dict[NodeNumber, ToSend] = {}
        """Samples that this node still has to send, by node."""
        self.lost = set(setting.unreachable())
        """Nodes that were lost at some time. This node no longer sends them the planned requests."""

    @property
    def source(self) -> EpochPlan | PlanWindows:
        """The planner's work, from which the epoch can begin again."""
        return self.plan

    @property
    def here(self) -> list[int]:
        """Ranks that draw at this node."""
        return self._ranks_at(self._setting.owners.node)

    def _ranks_at(self, node: NodeNumber) -> list[int]:
        """Return the ranks that draw at a node."""
        return [seat // self.division.spans for seat, at in self.seats.items() if at == node]

    def owner_of(self, places: NDArray[Any]) -> NDArray[np.int32]:
        return self._setting.owners.of(places)

    def positions_of(self, rank: int, front: int = 0) -> NDArray[np.int64]:
        """Return the positions of a rank from `front` on whose samples are decided, ascending."""
        positions = self.division.positions(rank)
        return positions[np.searchsorted(positions, front) :]

    def _drawn_by(self, rank: int, front: int = 0) -> NDArray[Any]:
        """Return the places that a rank draws at these positions."""
        places: NDArray[Any] = self.plan.sample_of[self.positions_of(rank, front)]
        return places

    def decides(self, positions: NDArray[np.int64]) -> bool:
        """Return whether the samples at these positions are decided."""
        del positions
        return True

    @property
    def known(self) -> range:
        """Consecutive positions whose samples are known: all that ranks still draw, and more as the epoch goes on."""
        return range(len(self.plan.sample_of))

    @property
    def waits_for_plan(self) -> bool:
        """Whether the planner makes more of the plan."""
        return False

    def places_from(self, first: int, most: int) -> NDArray[Any]:
        """Return the places at the positions from `first` on that are decided, at most `most`."""
        places: NDArray[Any] = self.plan.sample_of[first : first + most]
        return places

    def waits_for_reads(self, positions: NDArray[np.int64]) -> bool:
        """Return whether any of these positions waits for a read of this node."""
        places = self.plan.sample_of[positions]
        waits = self.states.waited_for(places)
        return bool((waits if self.mine is None else waits & self.mine(places)).any())

    def expect(
        self, seats: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> None:
        """Add ranks that draw, each at a node, by their seats there.

        `fronts`: position before which a rank has drawn all its positions there.

        `read_of` is `read_of_sample(plan)` if the caller has it.
        """
        for _ in self.expecting(seats, fronts, read_of):
            pass

    def expecting(
        self, seats: Mapping[int, NodeNumber], fronts: Mapping[int, int], read_of: NDArray[Any] | None = None
    ) -> Iterator[int]:
        """Do the work of `expect` in steps. Yield the number of samples of each step."""
        new = {seat: node for seat, node in seats.items() if seat not in self.seats}
        if not new:
            return
        self.seats |= new
        # The cached samples change whenever a job begins or ends. A job that shares therefore also holds cached samples
        # until it draws them.
        limits = self._setting.limits
        without = np.empty(self.plan.mapping.samples, np.bool_)
        for part in blocks(len(without)):
            without[part] = limits.never_held(part) if self.plan.shares else limits.need_no_read(part)
            yield part.stop - part.start
        for seat, node in new.items():
            rank = seat // self.division.spans
            if node == self._setting.owners.node and seat in fronts:
                # The plan's first requests were sent for another server: samples that it got would never be sent again.
                self.progress.note_front(rank, fronts[seat])
                self.requests = None
            for positions in self.division.parts(rank, fronts.get(seat, 0)):
                places = self.plan.sample_of[positions]
                if self.mine is not None:
                    mine, can = self.mine(places), ~limits.too_large(node, places)
                    if node == self._setting.owners.node:
                        unreachable = np.isin(self.owner_of(places), list(self._setting.unreachable()))
                        places = places[mine | (can & ~unreachable)]
                    else:
                        places = places[mine & can]
                self._expect_for(node, places[~without[places]])
                self.progress.expect(len(places))
                yield len(positions)
        found = read_of_sample(self.plan) if read_of is None else read_of
        yield from self.reads.filling(self.states, found, self.mine)

    def replace_plan(self, plan: EpochPlan, read_of: NDArray[Any]) -> None:
        """Replace the plan by one that begins with the same draws, as far as ranks have asked."""
        self.plan, self.reads = plan, ReadQueue(plan)
        for _ in self.reads.filling(self.states, read_of, self.mine):
            pass

    def to_send(self, node: NodeNumber) -> NDArray[np.int64]:
        """Return the positions that the ranks of a node draw and whose samples this node can send to it, ascending."""
        parts = [self.positions_of(rank) for rank in self._ranks_at(node)]
        positions = np.sort(np.concatenate([np.arange(0), *parts]))
        places = self.plan.sample_of[positions]
        assert self.mine is not None
        can = self.mine(places) & ~self._setting.limits.too_large(node, places)
        found: NDArray[np.int64] = positions[can]
        return found

    def forget(self, node: NodeNumber) -> NDArray[Any]:
        """Stop sending to a node. Return the places that were held for its ranks."""
        queue = self.outgoing.pop(node, None)
        self.progress.elsewhere.pop(node, None)
        held: list[NDArray[Any]] = [np.arange(0)]
        for rank in self._ranks_at(node):
            positions = self.positions_of(rank)
            places: NDArray[Any] = self.plan.sample_of[positions]
            mine = slice(None) if self.mine is None else self.mine(places)
            self.progress.expect(-len(places[mine]))
            left = places[mine]
            if self._deliveries is not None and queue is not None:  # those that were sent were counted then
                left = left[np.isin(positions[mine], queue.left())]
            held.append(left[self.deliver(node, left)])
        self.seats = {seat: at for seat, at in self.seats.items() if at != node}
        return np.concatenate(held)

    def deliver(self, node: NodeNumber, places: NDArray[Any]) -> NDArray[np.bool_]:
        """Note that all ranks of a node have drawn these samples, or that they were sent to it.

        Releases those that no other node of the group still gets. Returns a mask of those that the epoch held.
        """
        if self._deliveries is None:
            return self.states.release(places)
        assert self.mine is not None
        last, mine = np.ones(len(places), np.bool_), self.mine(places)
        last[mine] = self._deliveries.note(node, places[mine])
        last[last] = self.states.release(places[last])
        return last

    def _expect_for(self, node: NodeNumber, places: NDArray[Any]) -> None:
        """Expect samples that a new rank draws at a node."""
        if self._deliveries is not None:
            self._deliveries.forget(node, places)
        self.states.expect(places)

    def ask(self, node: NodeNumber, positions: NDArray[np.int64]) -> None:
        """Note that a node waits for the samples at these positions."""
        self.outgoing[node].ask(positions)

    def lose(self, node: NodeNumber) -> None:
        """Stop expecting samples of a node that is lost."""
        self.lost.add(node)
        places = np.concatenate([self.states.all(state) for state in (UNWANTED, DUE, COMING)])
        self.states.forget(places[self.owner_of(places) == node])

    def expect_again(self, node: NodeNumber, present: Callable[[NDArray[Any]], NDArray[np.bool_]]) -> None:
        """Expect samples of a node that is reachable again, except those that ranks of this node have asked for.

        Samples that were given up are not expected either.
        """
        for rank in self.here:
            places = self._drawn_by(rank, max(self.progress.start, self.progress.front([rank])))
            places = places[self.owner_of(places) == node]
            places = places[~self._setting.limits.too_large(self._setting.owners.node, places)]
            self.states.expect(places[~present(places)])

    def read_again(self, places: NDArray[np.intp]) -> None:
        """Read those of these samples of this node that its ranks will draw or that it has to send."""
        wanted = np.zeros(self.plan.mapping.samples, np.bool_)
        for rank in self.here:
            wanted[self._drawn_by(rank, self.progress.front([rank]))] = True
        for queue in self.outgoing.values():
            wanted[self.plan.sample_of[queue.left()]] = True
        places = readable(self, places[wanted[places] & self.states.are(GONE, places)])
        if len(places):
            self.states.expect(places)
            for _ in self.reads.filling(self.states, read_of_sample(self.plan), self.mine):
                pass

    def hold(self, places: NDArray[np.intp], front: int) -> NDArray[np.intp]:
        """Hold samples that are in memory and that ranks of this node draw from position `front` on.

        Returns those that the epoch did not hold or wait for: it has counted on their being in memory.
        """
        drawn = np.zeros(self.plan.mapping.samples, np.bool_)
        for rank in self.here:
            drawn[self._drawn_by(rank, front)] = True
        places = places[drawn[places] & self.states.are(GONE, places)]
        self.states.expect(places)
        self.states.mark_present(places)
        return places

    def front(self) -> int:
        """Return the position before which the ranks of this node have asked for all that they will ask for."""
        front = self.progress.front(self.here)
        return front if self.division.ruled is None else max(0, front - self.division.ruled.rule.reach)

    @property
    def is_drawn(self) -> bool:
        """Whether all ranks have asked for all their positions, those of other nodes as far as these report."""
        division = self.division
        last_round = division.samples - division.replicas * max(1, division.batch)
        return self.progress.everywhere(self.here) > last_round

    def skipped_before(self, waiting: Iterable[NDArray[np.int64]]) -> int:
        """Return the position before which no rank asks and nothing is sent. `waiting`: positions of waiting draws."""
        samples, end = len(self.plan.sample_of), self.known.stop
        fronts = {rank: self.progress.last(rank) for rank in self.here}
        lowest: dict[int, int] = {}
        for positions in waiting:
            rank = self.division.rank_of(int(positions[0]))
            lowest[rank] = min(lowest.get(rank, samples), int(positions.min()))
        elsewhere = set(self.seats.values()) - {self._setting.owners.node}
        sent = [self.outgoing[node].front(end) if node in self.outgoing else 0 for node in elsewhere]
        return min((*(fronts | lowest).values(), *sent))

    def give_up_before(self, position: int) -> NDArray[Any]:
        """Release the samples before a position, which no rank asks for any more. Return the places that were held."""
        before = self.plan.sample_of[:position]
        self.progress.skip_to(position)
        held: NDArray[Any] = before[self.states.release(before)]
        return held

    def drop(self) -> NDArray[Any]:
        """Release all samples, as nothing of the epoch is drawn or sent any more. Return the places that were held."""
        return self.states.release_all()


def reached(epoch: Epoch) -> float:
    """Estimate the position that the draws of an epoch have reached, from the fraction of this node's work done."""
    progress, draws, start = epoch.progress, len(epoch.plan.sample_of), epoch.division.start
    done = progress.drawn + progress.sent
    # `progress.start` moves past skipped positions, of which most were drawn: counting from it would count them twice.
    return max(progress.start, start + (done * (draws - start) / progress.total if progress.total else 0))


def to_read(epoch: Epoch, places: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the places that are due and belong to this node."""
    wanted = epoch.states.due(places)
    if epoch.mine is not None:
        wanted &= epoch.mine(places)
    return wanted


def readable(epoch: Epoch, places: NDArray[Any]) -> NDArray[Any]:
    """Return the places whose samples this node reads itself."""
    return places if epoch.mine is None else places[epoch.mine(places)]
