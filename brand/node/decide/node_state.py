"""What does a data server do next? All its decisions, as pure functions of a state.

    handle(stimulus, now_s) -> instructions        something has happened
    step(now_s, unsent) -> instructions            everything that the node can do now

The decisions use no socket, thread, clock or file: the server, tests and simulations execute the instructions in their
own ways. The same stimuli give the same instructions, so a log of stimuli replays a server (`serve.recording`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from brand.errors import UsageError
from brand.node.decide import stimuli
from brand.node.decide.cache.caching import CacheStart
from brand.node.decide.core import Core, DecodingStart, epochs_of
from brand.node.decide.draws.fetches import Divisions, Fetches
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.features import NO_JOINS, NOT_ONLINE
from brand.node.decide.state.instructions import Instruction, MakePlan, Read, ReadFor
from brand.node.decide.state.members import Members
from brand.node.memory.residents import Residents
from brand.node.wire.client_messages import Joined, Number, Numbers, OrderDecided
from brand.node.wire.messages import MOST_PLACES
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import OrderGrown, OrderKnown
from brand.orders.base.mapping import Mapping as Places
from brand.orders.order import Order
from brand.reprs import Reprs

if TYPE_CHECKING:
    from brand.node.decide.decoding.server_decoding import ServerDecoding
    from brand.node.decide.online.online_orders import OnlineOrders
    from brand.node.decide.peers.peering import Peering
    from brand.node.decide.peers.peers import PeerTable
    from brand.node.decide.sharing.job_sharing import JobSharing

AT_ONCE: Final = 8
"""The most reads ahead that one step starts. Each takes the loop up to a millisecond, in which clients wait."""
TOO_MANY: Final = "it already decodes for the largest number of decode specs"


class NodeState(Reprs, shows="core core.epochs.features divisions"):
    """The state of one node, and its decisions.

    At most `depth` reads are under way at a time. Other nodes may fill `remote_pages` of the memory. `cache`: the
    contents of the cache folders, if any. `prepared`: decoded memory and decode workers; None if clients decode.
    """

    def __init__(
        self,
        data: StoredChunks,
        residents: Residents,
        members: Members,
        depth: int,
        remote_pages: int = 0,
        cache: CacheStart | None = None,
        prepared: DecodingStart | None = None,
    ) -> None:
        self.members, self.depth = members, depth
        peers = None if members.nodes == 1 else _peers(members)
        unreachable = list[NodeNumber] if peers is None else peers.unreachable
        epochs = epochs_of(residents, data.chunk_size, members, remote_pages, unreachable)
        self.preparing = None if prepared is None else _preparing(prepared, residents, epochs)
        self.core = Core(data, residents, epochs, members, remote_pages, cache, self.preparing)
        self.divisions = Divisions(epochs)
        samples = len(residents.pages_of)
        by_share = members.owners(Places(samples, data.chunk_size, 1))
        passed, has_all = self.core.counters.nodes, members.share_chunks is None
        self.fetches = Fetches(data.index, by_share, samples, passed, reads_here=has_all)
        self.peering = None if peers is None else self._peering(peers)
        """This node among several nodes. None if there is only one."""
        self.sharing: JobSharing | None = None
        """Jobs that share reads. None until the first such job is registered."""
        self.online: OnlineOrders | None = None
        """Orders that are decided while jobs draw. None until the first such job is registered."""
        epochs.runs.call_for_orders(self._turn_on_for)
        self._plans = epochs.plans_of_use()  # an immutable value, because the planner's thread reads it
        self._starting = False
        """Whether the last step has started `AT_ONCE` reads. The next step may then start that many as one read."""

    @property
    def idle(self) -> bool:
        """Whether no client and no other node waits for anything."""
        waits = self.preparing is not None and self.preparing.workers.waited_for
        return self.core.idle and self.divisions.idle and self.fetches.idle and not waits

    @property
    def hurries(self) -> bool:
        """Whether there is more to decide without another stimulus."""
        if self._starting or self.core.epochs.is_building:
            return True
        return not self.idle and self.core.epochs.features.hurries

    def wants_plan(self, instruction: MakePlan) -> bool:
        """Return whether the plan that an instruction asks for is still of use. The planner's thread may call this."""
        return (instruction.key, instruction.joins) in self._plans

    def wants_choice(self, choice: ChooseCached) -> bool:
        return self.core.keeping.is_current(choice.number)

    # -- features are imported and turned on when they are needed -----------------------------------------------------

    def _peering(self, peers: PeerTable) -> Peering:
        from brand.node.decide.peers.peering import Peering
        from brand.node.decide.peers.receiving import NodeAmongOthers

        core, counters = self.core, self.core.counters.nodes
        node = NodeAmongOthers(core.data.index, core.residents, core.epochs, self.members, core.remote_pages, counters)
        turn_on = self._share, self._decide_orders
        return Peering(node, peers, self.fetches, self.depth, *turn_on, core.on_client_gone)

    def _turn_on_for(self, order: Order) -> None:
        if order.shares:
            self._share()
        if order.grows:
            self._decide_orders()

    def _decide_orders(self) -> None:
        """Turn on online orders if they are off."""
        if self.online is not None:
            return
        from brand.node.decide.online.online_orders import OnlineOrders

        epochs, peering = self.core.epochs, self.peering
        self.online = OnlineOrders(epochs.runs, epochs.lives, self.core.residents, self.members)
        epochs.features.turn_on(self.online)
        if peering is not None:
            from brand.node.decide.online.order_messages import OrderMessages

            announcements, node = peering.announcements, self.members.node
            peering.set_orders(OrderMessages(node, epochs.runs, peering.peers, announcements, self.online))

    def _share(self) -> None:
        """Turn on shared reads if they are off."""
        if self.sharing is not None:
            return
        from brand.node.decide.sharing.job_sharing import JobSharing

        core, epochs = self.core, self.core.epochs
        self.sharing = JobSharing(core.residents, epochs, self.members)
        core.reads.share(self.sharing.early)
        if self.peering is not None:
            from brand.node.decide.sharing.join_messages import JoinAnnouncements

            peering, sharing = self.peering, self.sharing
            talk = JoinAnnouncements(epochs, peering.peers, peering.announcements, sharing)
            peering.set_talk(talk)

    # -- stimuli -----------------------------------------------------------------------------------------------------

    def handle(self, stimulus: stimuli.Stimulus, now_s: float) -> list[Instruction]:
        """Take a stimulus, and return the instructions that follow from it.

        Raises `UsageError` or `ProtocolError` if a request cannot be served. The server then ends that connection.
        """
        core, instructions = self.core, list[Instruction]()
        match stimulus:
            case stimuli.ClientRegisters(client, order, name, tag, turn):
                instructions.append(Number(client, core.epochs.runs.register(client, order, name, tag, turn)))
            case stimuli.ClientBegins():
                core.epochs.begin_here(stimulus)
            case stimuli.ClientDraws(client, key, positions, drawer):
                core.draws.ask(client, key, positions, now_s, drawer)
            case stimuli.ClientTakes(_, key, positions, right, drawer):
                core.draws.record_direct(key, positions, right, now_s, drawer)
            case stimuli.ClientReleases(client, lease, checked, wrong):
                leased = core.draws.leases.release(client, lease, checked=checked)
                core.caching.forget_wrong(leased[np.isin(leased, wrong)])
            case stimuli.ClientDivides(client, key, rank):
                self.divisions.ask(client, key, rank, now_s)
            case stimuli.ClientFetches(client, places):
                self.fetches.want(client, places, now_s)
            case stimuli.ClientJoins(client, key, joins):
                if self.sharing is None:
                    raise UsageError(NO_JOINS)
                instructions.append(Joined(client, self.sharing.learn(key, joins)))
            case stimuli.ClientOrders():
                instructions.append(self._decide_order(stimulus, now_s))
            case stimuli.ClientLeaves(client):
                core.on_client_gone(client)
                if self.preparing is not None:
                    self.preparing.specs.remove_client(client)
                self.divisions.on_client_gone(client)
                self.fetches.on_client_gone(client)
            case stimuli.PlanMade(key, plan, read_of, joins):
                core.epochs.on_plan(key, plan, read_of, joins)
                core.draws.settle(now_s)
            case stimuli.WindowMade(key, number, window, open_reads):
                core.epochs.on_window(key, number, window, open_reads)
                core.draws.settle(now_s)
            case stimuli.KeptChosen():
                core.on_choice(stimulus)
            case stimuli.ReadEnded():
                core.reads.on_read_ended(stimulus, now_s)
                core.draws.settle(now_s)
            case stimuli.WriteEnded(write, held, stopped):
                core.caching.on_write_ended(write, held, stopped)
            case stimuli.ReadForEnded(read_for, data, error):
                if read_for.node == self.members.node:
                    self.fetches.on_read_ended(read_for, data, error)
                else:
                    self._among().answering.on_read(read_for, data)
            case stimuli.StreamOpens(node, asks):
                instructions += self._among().on_stream_open(node, now_s, asks=asks)
            case stimuli.StreamEnds(node, asks):
                self._among().on_stream_end(node, asks=asks)
            case stimuli.NodeRefuses(reason):
                self._among().announcements.disagreements.refuse_all(reason)
            case stimuli.NodeSays(node, message):
                instructions += self._among().on_message(node, message, now_s)
                if isinstance(message, OrderKnown | OrderGrown):  # draws may wait for nothing more
                    core.draws.settle(now_s)
            case _:
                instructions += self._on_decoding(stimulus, now_s)
        if self.preparing is not None and not isinstance(stimulus, stimuli.OfBatches):
            self.preparing.on_news()
        self._plans = core.epochs.plans_of_use()
        return instructions + list(core.draws.answers())

    def _on_decoding(self, stimulus: stimuli.OfDecoding, now_s: float) -> Iterator[Instruction]:
        preparing = self.preparing
        assert preparing is not None
        match stimulus:
            case stimuli.ClientPrepares(client, run, wants):
                numbers = preparing.register(client, run, wants)
                yield Numbers(client, numbers or (), "" if numbers else TOO_MANY)
            case stimuli.PreparerReady(preparer):
                preparing.workers.mark_idle(preparer, now_s)
            case stimuli.PreparerSized(preparer, number, sizes):
                yield from preparing.on_sizes(preparer, number, sizes, now_s)
            case stimuli.PreparedFilled(number):
                preparing.on_copied(number, now_s)
            case stimuli.PreparerEnded(preparer):
                preparing.on_worker_end(preparer, now_s)

    def _decide_order(self, said: stimuli.ClientOrders, now_s: float) -> OrderDecided:
        """Record the samples that a client knows of an online order, and answer the decided ones."""
        if self.online is None:
            if len(said.places):
                raise UsageError(NOT_ONLINE)
            return OrderDecided(said.client, 0, np.empty(0, np.int32))
        if len(said.places):
            self.online.learn(said.key, said.first, said.places, said.sure, now_s)
        self.online.want(said.key, said.wanted, now_s)
        told = self.online.orders.publish(said.key, said.first, MOST_PLACES)
        return OrderDecided(said.client, self.online.orders.final(said.key), told)

    def _among(self) -> Peering:
        assert self.peering is not None, "a single node gets no message of another node"
        return self.peering

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, now_s: float, unsent: Mapping[NodeNumber, int]) -> list[Instruction]:
        """Return everything that the node can do now. `unsent`: bytes that each asking node has not received yet."""
        core, instructions = self.core, list[Instruction]()
        core.epochs.build_more()
        instructions += core.epochs.plans_to_make(now_s, core.bridge)
        instructions += core.epochs.windows_to_make()
        core.epochs.features.step(now_s, core.bridge)
        core.keeping.cache_again()
        choice = core.keeping.next_choice(now_s)
        if choice is not None:
            instructions.append(choice)
        instructions += self._reads(now_s)
        instructions += core.caching.instructions()
        if self.preparing is not None:
            instructions += self.preparing.step(now_s)
        core.tend(now_s)
        instructions += core.draws.answers()
        if self.peering is not None:
            instructions += self.peering.say(now_s, unsent, stuck=core.reads.stuck)
        instructions += self.fetches.done()
        instructions += core.epochs.features.refusals(now_s)
        instructions += self.divisions.answers(now_s)
        self._plans = core.epochs.plans_of_use()
        return instructions

    def _reads(self, now_s: float) -> Iterator[Read | ReadFor]:
        """Yield reads to start: first those that clients wait for, then those for other nodes, at most half of all."""
        reads = self.core.reads
        yield from self.fetches.reads(self._free)
        if self.peering is not None:
            yield from self.peering.answering.start_reads(self._free)
        left, together, self._starting = AT_ONCE, AT_ONCE if self._starting else reads.together(), False
        while self._free > 0 and not self._starting:
            read = reads.next(now_s, min(left, self._free, together))
            if read is not None:
                left -= read.count
                self._starting = left == 0
                yield read
            elif self.core.idle or not self.core.unblock(now_s):
                return

    @property
    def _free(self) -> int:
        others = 0 if self.peering is None else self.peering.answering.on_the_way
        return self.depth - self.core.reads.under_way - others - self.fetches.on_the_way


def _peers(members: Members) -> PeerTable:
    from brand.node.decide.peers.peers import PeerTable

    return PeerTable(members.others)


def _preparing(start: DecodingStart, residents: Residents, epochs: Epochs) -> ServerDecoding:
    from brand.node.decide.decoding.server_decoding import ServerDecoding

    return ServerDecoding(start.allocator, start.workers, residents, epochs, start.least_runs, start.allotment)
