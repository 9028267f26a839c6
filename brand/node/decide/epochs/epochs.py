"""When does an epoch of a run begin, and when is it dropped?

A *run* is one training: an order and a name that all its ranks and workers share, on all nodes. Its readers are the
ranks of this node and the other nodes. A reader announces that it begins an epoch. When half of an epoch is drawn, the
node requests the plan of the next one, so that it can read ahead. The node drops an epoch when all readers are past it,
and all epochs of a run when the run's last client has disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.decide.epochs.pacing import Pacing
from brand.node.decide.state.account import Account
from brand.node.decide.state.connected import ConnectedEpoch, ConnectedSingleReads
from brand.node.decide.state.epoch import Division, Epoch, EpochSetting, reached, readable
from brand.node.decide.state.epoch_table import ActiveEpoch, EpochEntry, EpochTable, Key, PlanReady, PlanWanted
from brand.node.decide.state.features import Features
from brand.node.decide.state.instructions import MakePlan, MakeWindow
from brand.node.decide.state.members import Members, SampleLimits
from brand.node.decide.state.runs import EpochReader, EpochStart, Run, Runs
from brand.node.decide.state.single_reads import WindowedSingleReads
from brand.node.decide.state.states import HELD
from brand.node.decide.state.takes import MOST_NODES
from brand.node.decide.state.windowed import WindowedEpoch
from brand.node.memory.residents import Residents
from brand.node.wire.client_messages import ClientBegins
from brand.node.wire.drawing import Begin
from brand.node.wire.messages import GOES_ON
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.orders.base.joins import Join
from brand.orders.base.owners import split_near
from brand.orders.base.plan import EpochPlan, OpenReads, PeerRequests, PlanWindow, PlanWindows
from brand.orders.base.rank_rule import EpochRanks, RankRule
from brand.orders.order import MAX_EPOCH, Order
from brand.reprs import Reprs

RANKS_S: Final = 1.0
"""Seconds that a planned epoch waits for ranks of other nodes to begin it."""


class Epochs(Reprs, shows="lives"):
    """The epochs of all runs of a node. `unreachable`: nodes from which this node expects no samples at present."""

    def __init__(
        self,
        residents: Residents,
        limits: SampleLimits,
        chunk_size: int,
        members: Members,
        unreachable: Callable[[], Iterable[NodeNumber]],
    ) -> None:
        self._residents, self.limits, self._members, self._unreachable = residents, limits, members, unreachable
        self.features = Features()
        self.runs = Runs(len(residents.pages_of), chunk_size)
        self.lives = EpochTable()
        self.pacing = Pacing(self.runs, self.lives)
        self.changes = 0
        """Number of changes that this node reports to other nodes."""
        self._asked: frozenset[tuple[Key, tuple[Join, ...]]] = frozenset()
        """Plans that the planner was asked for and that were of use at the last check, each with its joins."""
        self._last_number = 0

    def get(self, key: Key) -> ActiveEpoch | None:
        """Return the active epoch of this key. None if it is not active."""
        entry = self.lives.get(key)
        return None if entry is None else entry.live

    # -- ranks and nodes begin, draw and leave -----------------------------------------------------------------------

    def begin_here(self, said: ClientBegins) -> None:
        """Note that a rank of this node is about to draw. With `GOES_ON`, it does not begin the epoch once more.

        If a process continues as its ranks have begun (`as_begun`), and this server knows no rank of several nodes,
        because it has replaced another one, it serves the draws as if no rank had announced them.
        """
        key, announced = said.key, said.announcement
        run, node = self.runs[said.run], self._members.node
        if announced.spans > 1 and self._members.nodes > MOST_NODES:
            raise UsageError(
                f"a group of ranks is on {announced.spans} of {self._members.nodes} nodes: this works with up to "
                f"{MOST_NODES} nodes; give num_replicas= and rank= as the number of groups and the group of this rank"
            )
        as_begun = run.continued(node) if announced.as_begun else None
        if announced.as_begun and as_begun is None and self._members.nodes > 1:
            return
        run.learn_copies(announced.copies)
        before = run.readers.get((said.client, None))
        here = before.begin.times if before is not None and before.epoch == announced.epoch else 0
        goes_on = announced.processes == GOES_ON
        if announced.as_begun or (goes_on and said.rule is not None):  # a client says the rule again if it knows it
            run.note_continuous()
        if not goes_on:
            again = before is None or announced.epoch <= before.epoch
            run.conduct.on_begin(said.drawer, announced.processes, again=again, in_group=announced.copies > 1)
        elif said.rule is not None:
            mine = before.begin.rule if before is not None and before.epoch == announced.epoch else None
            here = self._times_before(self.lives.get(key), said.rule, here, again=said.rule.agrees_with(mine))
        times = max(here, 1) if goes_on else here + 1
        draws, replicas = run.order.draws, max(1, announced.replicas)
        start, front = min(announced.position, draws), min(announced.front, draws)
        seat, spans, rule = announced.seat, announced.spans, said.rule
        begin = Begin(start, replicas, (seat,), announced.batch, node, times, front, rule=rule, spans=spans)
        self.begin(said.client, key, begin if as_begun is None else replace(as_begun, times=times, front=front))
        if before is not None and announced.epoch < before.epoch:
            self._drop_later(key)

    def _times_before(self, entry: EpochEntry | None, rule: RankRule, here: int, *, again: bool) -> int:
        """Return how often the ranks of a client have begun an epoch before they begin it with a rule.

        Ranks that begin by another rule begin it once more than all before them, also those that have continued with
        it. Others then begin it as often. `here`: how often the client has begun it; `again`: by this rule.
        """
        start = None if entry is None else entry.last_begin
        if again or start is None or start.division.ruled is None:
            return here
        same = rule.agrees_with(start.division.ruled.rule)
        return max(here, start.times - 1 if same else start.times)

    def _is_late(self, run: Run, begin: Begin, last: EpochStart | None) -> bool:
        """Whether ranks begin an epoch by a rule that others have replaced, or less often than others have begun it."""
        if begin.rule is None or last is None or last.division.ruled is None:
            return False
        since, latest = begin.rule.since, last.division.ruled.rule.since
        if since == latest:
            return begin.times < last.times
        rules = [reader.begin.rule for reader in run.readers.values()]
        return since < latest and any(rule is not None and rule.since >= latest for rule in rules)

    def begin(self, client: ClientNumber, key: Key, begin: Begin) -> None:
        """Note that ranks of this node or of another one are about to draw. Raises `UsageError`."""
        if begin.rule is not None:
            try:
                begin.rule.check_fits(self.runs[key[0]].order)
            except ValueError as error:
                raise UsageError(f"ranks of a run divide other positions than its order has: {error}") from None
        run, epoch, entry = self.runs[key[0]], key[1], self.lives[key]
        if begin.node != self._members.node:
            self.limits.learn(begin.node, begin.largest)
        if begin.times:
            self.features.begin(key)
            run.begin(client, EpochReader(epoch, begin), self._members.node)
        division = division_of(run.order, epoch, begin)
        live = entry.live
        if begin.front and begin.node == self._members.node:  # another server has answered its first draws
            entry.leave_unjudged()
        if self._is_late(run, begin, entry.last_begin):
            if live is not None:
                live.note_start(begin.start)
                live.epoch.expect(run.seats(live.epoch.division.seats), run.fronts(epoch))
        elif live is None:
            times = max(begin.times, 0 if entry.begin is None else entry.begin.times)
            self.want(key, EpochStart(division, times) if begin.times else None)
            if isinstance(entry.stage, PlanReady):
                self._build_if_known(key)
        elif begin.times > live.begun or (begin.times and not division.same_division(live.epoch.division)):
            self._begin_again(key, live, EpochStart(division, begin.times))
        else:
            live.note_start(begin.start)
            live.epoch.expect(run.seats(live.epoch.division.seats), run.fronts(epoch))
        self._retire(key[0])

    def unfinished(self, number: RunNumber) -> Iterator[Key]:
        """Yield the epochs of a run whose rest is drawn after the next epoch has begun.

        Planned batches of a mixture draw the end of an epoch of a member and the beginning of the next one together.
        """
        for epoch in self.runs[number].continued_to:
            live = self.get((number, epoch - 1))
            if live is None:
                continue
            ruled = live.epoch.division.ruled  # nodes count samples that they send each other more than once
            if ruled.rule.reach if ruled is not None else not live.epoch.progress.done:
                yield number, epoch - 1

    def expect(self, key: Key, first: int) -> EpochEntry:
        """Return the entry of the epoch of a draw from position `first` on. Begins the epoch if it is missing.

        An epoch is missing if it was dropped for another run, if the server was replaced, or if a straggler draws from
        an epoch that is over. For a straggler, the node reads nothing ahead.
        """
        entry = self.lives[key]
        if entry.live is not None or entry.planned:
            return entry
        run, epoch = self.runs[key[0]], key[1]
        entry.leave_unjudged()  # its first samples may have been fetched before
        begins = run.begins(epoch)
        if begins:
            begin = begins[0]
            start = first - (first - begin.start) % (begin.replicas * max(1, begin.batch))
            if begin.rule is not None:  # other ranks may be a round of the mixture, or two windows of batches, behind
                start = first - max(begin.replicas, begin.rule.reach)
            division = division_of(run.order, epoch, replace(begin, start=max(start, begin.start)))
            begun = EpochStart(division, begin.times)
        else:
            begun = EpochStart(Division(run.order.draws, run.order.draws if run.readers else first), 0)
        self.want(key, begun)
        self._retire(key[0], keep=[(key[0], epoch + more) for more in (-1, 0, 1)])
        return entry

    def forget(self, client: ClientNumber, key: Key, node: NodeNumber) -> None:
        """Forget an epoch for another node that no longer needs it. `client` is the node's number among the clients."""
        entry, run = self.lives.get(key), self.runs.get(key[0])
        if entry is not None:
            self._residents.let_go(entry.forget(node))
        if run is not None and run.readers.pop((client, key[1]), None) is not None:
            self._retire(key[0])

    def remove_client(self, client: ClientNumber, only: RunNumber | None = None) -> None:
        """Remove a client that has disconnected. With `only`, it has left just the run of this number."""
        for number, run in [(n, run) for n, run in self.runs.items() if only in (None, n)]:
            had_readers = run.remove_client(client)
            if not run.clients:
                self._retire(number, all_of_it=True)
                del self.runs[number]
                self.pacing.forget_ended()
                self.features.forget_runs()
            elif had_readers:
                self._retire(number)
            else:
                self.changes += 1

    # -- plans -------------------------------------------------------------------------------------------------------

    def want(self, key: Key, begin: EpochStart | None = None) -> None:
        """Request a plan for an epoch that has none. `begin`: how ranks have begun the epoch. None if it is read ahead.

        An epoch whose order is forgotten is not read ahead: only a rank that begins it gets another order.
        """
        self.changes += 1
        if key[1] <= MAX_EPOCH and not (begin is None and self.features.is_over(key)):
            self.lives[key].want_plan(begin)

    def plans_to_make(self, now_s: float, bridge: int) -> Iterator[MakePlan]:
        """Yield plans to make, each once. `bridge`: about how many samples memory holds for later runs."""
        for key, entry in self.lives.items():
            if isinstance(entry.stage, PlanWanted) and (joins := self.features.joins(key, now_s)) is not None:
                entry.hand_out()
                yield self._ask(key, joins)
        for key, joins in self.features.rejoins(now_s, bridge):
            yield self._ask(key, joins)

    def _ask(self, key: Key, joins: tuple[Join, ...]) -> MakePlan:
        self._asked |= {(key, joins)}
        # With `locality`, the rank of a position depends on all earlier ones.
        division = self._planned_begin(key).division
        return MakePlan(key, self.runs[key[0]].order, joins, in_windows=not division.batch, ruled=division.ruled)

    def windows_to_make(self) -> Iterator[MakeWindow]:
        """Yield the windows of plans that active epochs need next, each once."""
        for key, live in self.lives.live():
            if isinstance(live.epoch, WindowedEpoch):
                window = live.epoch.next_window([draw.positions for draw in self.lives[key].draws])
                if window is not None:
                    yield MakeWindow(key, live.epoch.number, window)

    def remake_plan(self, key: Key) -> None:
        """Request the plan of an epoch again, because its joins have changed. No draw of it was answered."""
        entry = self.lives.get(key)
        if entry is not None:
            self._residents.let_go(entry.discard_plan())
            self.want(key)

    def plans_of_use(self) -> frozenset[tuple[Key, tuple[Join, ...]]]:
        """Return the requested plans that are still of use, as a value that any thread may keep."""
        if self._asked:
            self._asked = frozenset(asked for asked in self._asked if self._is_of_use(*asked))
        return self._asked

    def _is_of_use(self, key: Key, joins: tuple[Join, ...]) -> bool:
        entry = self.lives.get(key)
        return entry is not None and (entry.planned or self.features.wants(key, joins))

    def on_window(self, key: Key, number: int, window: PlanWindow, open_reads: OpenReads | None) -> None:
        """Take a window of the plan of an epoch. Does nothing if the epoch is not active any more."""
        live = self.get(key)
        if live is not None and live.epoch.number == number and isinstance(live.epoch, WindowedEpoch):
            self._residents.let_go(live.epoch.add_window(window, open_reads))

    def on_plan(
        self,
        key: Key,
        plan: EpochPlan | PlanWindows,
        read_of: NDArray[Any] | None,
        joins: tuple[Join, ...] = (),
    ) -> None:
        """Take a finished plan with these joins. Does nothing if no epoch needs it any more."""
        entry = self.lives.get(key)
        if self.features.wants(key, joins):
            live = None if entry is None else entry.live
            takes = self.features.take_plan(key, joins, live=live is not None)
            if takes and live is not None and isinstance(plan, EpochPlan) and read_of is not None:
                live.epoch.replace_plan(plan, read_of)
            return
        if entry is None or not entry.planned or isinstance(entry.stage, PlanReady):
            return
        if joins != self.features.joined(key):
            return
        entry.set_plan(plan, read_of, self._planned_begin(key))
        self._build_if_known(key)

    def _planned_begin(self, key: Key) -> EpochStart:
        """Return how an epoch begins whose plan is wanted. If it is read ahead, the ranks are those that draw now."""
        begin, run = self.lives[key].wanted_begin, self.runs[key[0]]
        if begin is not None:
            return begin
        begins = [reader.begin for reader in run.readers.values()]
        most = max(begins, key=lambda begin: begin.replicas, default=Begin(0, 1, ()))
        return EpochStart(division_of(run.order, key[1], replace(most, start=0)), 0)

    def tick(self, now_s: float) -> None:
        """Begin planned epochs that have waited long enough for ranks of other nodes.

        With `locality`, an epoch continues to wait, because the positions of each rank depend on all ranks.
        """
        for key, entry in self.lives.items():
            stage = entry.stage
            if isinstance(stage, PlanReady) and not entry.is_building:
                since_s = entry.waiting_since(now_s)
                if now_s - since_s > RANKS_S and not stage.begin.division.batch:
                    self._build(key)
            self.changes += 1

    def drop_idle(self, now_s: float) -> bool:
        """Drop the samples of runs that draw nothing at present. Return whether there were any.

        The next draw of such a run begins its epoch again.
        """
        live = self.lives.live()
        busy = {run for (run, _), at in live if at.begun and not self.pacing.idle(run, now_s)}
        busy |= {draw.key[0] for draw in self.lives.draws()}
        idle = [key for key, at in live if key[0] not in busy and len(at.epoch.states.all(HELD))]
        for key in idle:
            self._residents.let_go(self.lives[key].drop())
        return bool(idle)

    # -- an epoch is built once its plan is made ---------------------------------------------------------------------

    @property
    def is_building(self) -> bool:
        return any(entry.is_building for _, entry in self.lives.items())

    def build_more(self) -> None:
        """Do one step of each epoch that is being built.

        An epoch of 13 million samples takes about a second, while the loop continues; a small epoch takes one step.
        """
        for _, entry in self.lives.items():
            if entry.is_building:
                self._activate_if_built(entry)

    def on_evicted(self, places: NDArray[np.intp]) -> None:
        """Read cached samples again that were evicted. The active epochs have counted on their being in memory."""
        for _, live in self.lives.live():
            if not live.epoch.plan.shares:
                live.epoch.read_again(places)
        self.rebuild()

    def rebuild(self) -> None:
        """Build epochs that are being built from the start again, because the cached samples have changed."""
        for key, entry in self.lives.items():
            if entry.is_building:
                self._build(key)

    def _build(self, key: Key) -> None:
        """Begin a planned epoch, here and for the nodes that can take its samples."""
        entry, run = self.lives[key], self.runs[key[0]]
        ready = entry.stage
        assert isinstance(ready, PlanReady)
        seats = run.seats(ready.begin.division.seats) or {0: self._members.node}
        self._last_number += 1
        epoch = self._new_epoch(key, ready, seats)
        entry.build(epoch, epoch.expecting(seats, run.fronts(key[1]), ready.read_of))
        at_once = self._members.nodes > 1 or epoch.plan.grows  # meanwhile nodes may join or leave, and orders may grow
        while not self._activate_if_built(entry) and at_once:
            pass

    def _new_epoch(self, key: Key, ready: PlanReady, seats: dict[int, NodeNumber]) -> Epoch:
        """Return the epoch of a finished plan, to which no rank is added yet."""
        run, plan, division, number = self.runs[key[0]], ready.plan, ready.begin.division, self._last_number
        owners = self._members.owners(run.order.mapping)
        setting = EpochSetting(owners, self.limits, self._unreachable)
        if not isinstance(plan, EpochPlan):
            if not division.batch:
                pool, nodes = self._residents.pool, self._members.nodes
                room = int(nodes * pool.allocator.count / pool.mean_pages)
                kinds = (WindowedEpoch, WindowedSingleReads) if nodes == 1 else (ConnectedEpoch, ConnectedSingleReads)
                return kinds[plan.position_of is not None](plan, division, number, setting, room)
            plan = plan.whole()  # which rank draws a position depends on all earlier ones
        requests, foreseen = None, self._members.foreseen_by(run.order)
        if foreseen is not None and division == Division(run.order.draws, 0, foreseen.ranks):
            requests = requests_of_ranks(plan.requests, seats, foreseen.nodes, division.replicas)
        if division.batch:
            known = run.known(division.replicas)  # groups have no locality
            node_of_rank = np.array([known[rank] for rank in range(division.replicas)])
            rank_at = split_near(owners.near(plan.sample_of[division.start :], known), node_of_rank, division.batch)
            division = replace(division, rank_at=rank_at)
        epoch = self.features.make(key, ready, division, number, setting)
        return Epoch(plan, division, number, setting, requests) if epoch is None else epoch

    def _activate_if_built(self, entry: EpochEntry) -> bool:
        """Do one step of building an epoch. Return whether that was all, so that the epoch is active."""
        built = entry.build_more()
        if built is None:
            return False
        epoch, begin = built
        if epoch.plan.shares:  # it holds the samples in memory, so that they are not read again
            # Samples that other nodes have sent are left out: these are sent again in time, and their memory is small.
            present = readable(epoch, np.flatnonzero(self._residents.present(slice(None))))
            found = present[epoch.states.due(present)]
            epoch.states.mark_present(found)
            self._residents.refer(found)
        begin = replace(begin, whole=begin.whole and begin.times <= 1 and not entry.unaccounted)
        entry.activate(ActiveEpoch(epoch, Account(epoch.division), begin))
        return True

    def _build_if_known(self, key: Key) -> None:
        """Begin an epoch if all its ranks have begun it, so that one read serves them all."""
        stage = self.lives[key].stage
        assert isinstance(stage, PlanReady)
        division = stage.begin.division
        waits = self._members.nodes > 1 or division.batch
        # A rank that is past the epoch counts, too: its node may have been faster than this node's planner.
        if not waits or len(self.runs[key[0]].known(division.seats)) >= division.seats:
            self._build(key)
            self.changes += 1

    def _begin_again(self, key: Key, live: ActiveEpoch, begin: EpochStart) -> None:
        """Note that ranks begin an active epoch: as it was read ahead, or once more."""
        self.changes += 1
        epoch, entry = live.epoch, self.lives[key]
        if not live.begun and begin.division.same_as(epoch.division):
            run = self.runs[key[0]]
            epoch.expect(run.seats(epoch.division.seats), run.fronts(key[1]))
            live.mark_begun(begin.times)
            return
        self._residents.let_go(entry.drop())
        entry.set_plan(epoch.source, None, begin)
        self._build_if_known(key)

    def _drop_later(self, key: Key) -> None:
        """Drop the later epochs of a rank that has returned to an epoch, as it will draw them again."""
        at = self.runs[key[0]].at()
        for (run, epoch), entry in self.lives.items():
            if run == key[0] and epoch > key[1] and epoch not in at and entry.live is not None and entry.live.begun:
                self._residents.let_go(entry.drop(again=not entry.draws))
                if entry.draws:  # of another worker: no other call begins the epoch for it
                    self.expect((run, epoch), int(entry.draws[0].positions[0]))

    def _retire(self, number: RunNumber, keep: Sequence[Key] = (), *, all_of_it: bool = False) -> None:
        """Drop the epochs of a run that no reader is in or draws next, and that no draw waits for."""
        run = self.runs[number]
        at = run.at()
        keys = {(number, epoch + more) for epoch in at for more in (0, 1)} | set(keep) | set(self.unfinished(number))
        for key, entry in [item for item in self.lives.items() if item[0][0] == number]:
            if all_of_it or (key not in keys and not entry.draws):
                if entry.live is not None:
                    entry.live.judge(run.conduct, key[1])
                self._residents.let_go(self.lives.remove(key))
        self.changes += 1


def division_of(order: Order, epoch: int, begin: Begin) -> Division:
    """Return the division of the positions of an epoch among the ranks that begin it."""
    ruled = None if begin.rule is None else EpochRanks(begin.rule, order, epoch)
    return Division(order.draws, begin.start, begin.replicas, begin.batch, ruled=ruled, spans=begin.spans)


def draws_before(epochs: Epochs, key: Key, live: ActiveEpoch) -> float:
    """Return the number of draws before an epoch that is read ahead: those left of the previous epoch."""
    behind = epochs.get((key[0], key[1] - 1))
    if behind is None or live.begun:
        return 0
    return len(behind.epoch.plan.sample_of) - reached(behind.epoch)


def requests_of_ranks(
    requests: PeerRequests | None, ranks: dict[int, NodeNumber], nodes: int, replicas: int
) -> PeerRequests | None:
    """Return the table of requests if the ranks are at the nodes that it foresees: neighbouring ranks at each node.

    Returns None otherwise. Without the table, all samples are sent without requests, as with `stripes`.
    """
    return requests if all(node == rank * nodes // replicas for rank, node in ranks.items()) else None
