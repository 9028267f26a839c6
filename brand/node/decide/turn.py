"""What does a node server do next? All its decisions, pure: a stimulus or a moment in, instructions out.

    handle(stimulus, now_s) -> instructions        something has happened
    step(now_s, unsent) -> instructions            what the node can do now

No socket, thread, clock or byte is here: the server, tests and simulations execute the instructions in their own ways.
The same stimuli lead to the same instructions, so a log of stimuli replays a server (`brand.node.serve.recording`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np

from brand.errors import ProtocolError
from brand.node.decide.answering import Answering
from brand.node.decide.caching import CacheStart
from brand.node.decide.choosing import Choice
from brand.node.decide.core import Core, PreparedStart
from brand.node.decide.divisions import Divisions
from brand.node.decide.fetches import Fetches
from brand.node.decide.gaps import NOTHING_KNOWN, StorageFacts
from brand.node.decide.joinings import Joinings
from brand.node.decide.members import Members
from brand.node.decide.peers import Peer, Reach
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDivides,
    ClientDraws,
    ClientFetches,
    ClientJoins,
    ClientLeaves,
    ClientOrders,
    ClientPrepares,
    ClientRegisters,
    ClientReleases,
    ClientTakes,
    KeptChosen,
    NodeRefuses,
    NodeSays,
    PlanMade,
    PreparedFilled,
    PreparerEnded,
    PreparerReady,
    PreparerSized,
    ReadEnded,
    ReadForEnded,
    Stimulus,
    StreamEnds,
    StreamOpens,
    WriteEnded,
)
from brand.node.decide.tasks import (
    Decided,
    Instruction,
    Joined,
    MakePlan,
    Number,
    Numbers,
    Read,
    ReadFor,
    Refuse,
    Rows,
    Say,
)
from brand.node.decide.telling import Telling
from brand.node.memory.residents import Residents
from brand.node.wire.joining import JoinVote, LeadingOffset
from brand.node.wire.messages import MOST_PLACES
from brand.node.wire.numbers import NodeNumber
from brand.node.wire.peer_messages import (
    EpochAnnounced,
    EpochReleased,
    Fetch,
    FetchReply,
    PeerCapacity,
    Push,
    Question,
    Refused,
    Reply,
    SampleRequest,
)
from brand.orders.base.mapping import Mapping as Places

Preparation = ClientPrepares | PreparerReady | PreparerSized | PreparedFilled | PreparerEnded

MAX_UNSENT: Final = 16 << 20
"""A node sends no more samples on a stream that holds so many bytes that the other side has not taken."""
AT_ONCE: Final = 8
"""The most reads ahead that one step starts. Each takes the loop up to a millisecond, and clients wait meanwhile."""
TOO_MANY: Final = "it prepares as many different things as it can"
_FRONT: Final = 64
"""About how many bytes a message has beside its samples."""


class Turn:
    """The state of one node, and its decisions.

    At most `depth` reads are under way at a time. Other nodes may fill `remote_pages` of the memory. `cache` says what
    the cache folder holds; None: there is none. `prepared` is what it prepares with; None: clients prepare for
    themselves.
    """

    def __init__(
        self,
        index: Rows,
        residents: Residents,
        chunk_size: int,
        members: Members,
        depth: int,
        remote_pages: int = 0,
        cache: CacheStart | None = None,
        storage: StorageFacts = NOTHING_KNOWN,
        prepared: PreparedStart | None = None,
    ) -> None:
        self.members, self.depth = members, depth
        self.core = Core(index, residents, chunk_size, members, remote_pages, cache, storage, prepared)
        self.telling = Telling(self.core, members.node)
        self.joinings = Joinings(self.core, self.telling)
        self.divisions = Divisions(self.core.epochs)
        samples = len(residents.pages_of)
        by_share = members.owners(Places(samples, chunk_size, 1))
        each_has_all = members.share_chunks is None
        self.fetches = Fetches(index, by_share, samples, self.core.counters.nodes, reads_here=each_has_all)
        self.answering = Answering(members.others, depth)
        self._starting = False
        """Whether the last step has started `AT_ONCE` reads, so that the next one may start more, as one."""

    def __repr__(self) -> str:
        return f"Turn({self.core!r}, {self.telling!r}, {self.divisions!r}, {self.answering!r})"

    @property
    def idle(self) -> bool:
        """Whether no client and no other node waits for anything."""
        preparing = self.core.preparing
        waits = preparing is not None and preparing.preparers.waited_for
        return self.core.idle and self.divisions.idle and self.fetches.idle and not waits

    @property
    def hurries(self) -> bool:
        """Whether there is more to decide, though nothing happens."""
        epochs = self.core.epochs
        return self._starting or len(epochs.makings) > 0 or (not self.idle and epochs.growth.hurries)

    def wants_plan(self, instruction: MakePlan) -> bool:
        """Whether the plan that an instruction asks for is still of use. The planner's thread may call this."""
        epochs, key = self.core.epochs, instruction.key
        life = epochs.lives.get(key)
        return life is not None and (life.planned or epochs.sharing.wants(key, instruction.joins))

    def wants_choice(self, choice: Choice) -> bool:
        """Whether a choice is still of use."""
        return self.core.keeping.wants(choice.number)

    # -- something happens -------------------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now_s: float) -> list[Instruction]:
        """Take a stimulus, and return the instructions that follow from it.

        Raises `UsageError` or `ProtocolError` for what cannot be done; the server then ends that connection.
        """
        core, instructions = self.core, list[Instruction]()
        match stimulus:
            case ClientRegisters(client, order, name, tag, turn):
                instructions.append(Number(client, core.epochs.runs.register(client, order, name, tag, turn)))
            case ClientBegins():
                core.epochs.begin_here(stimulus)
            case ClientDraws(client, key, positions, drawer):
                core.draws.ask(client, key, positions, now_s, drawer)
            case ClientTakes(_, key, positions, right, drawer):
                core.draws.taking.by_themselves(key, positions, right, now_s, drawer)
            case ClientReleases(client, lease, checked, wrong):
                leased = core.draws.leases.release(client, lease, checked=checked)
                core.caching.distrust(leased[np.isin(leased, wrong)])
            case ClientDivides(client, key, rank):
                self.divisions.ask(client, key, rank, now_s)
            case ClientFetches(client, places):
                self.fetches.want(client, places, now_s)
            case ClientJoins(client, key, joins):
                if core.epochs.leading.learns(key, joins):
                    self.joinings.plan_anew(key)
                instructions.append(Joined(client, core.epochs.leading.known(key)))
            case ClientOrders(client, key, first, places, sure, wanted):
                growth = core.epochs.growth
                if len(places):
                    growth.learns(key, first, places, sure, now_s)
                growth.wants(key, wanted, now_s)
                told = growth.orders.tells(key, first, MOST_PLACES)
                instructions.append(Decided(client, growth.orders.decided(key), told))
            case ClientPrepares() | PreparerReady() | PreparerSized() | PreparedFilled() | PreparerEnded():
                instructions += self._prepares(stimulus, now_s)
            case ClientLeaves(client):
                core.left(client)
                self.divisions.left(client)
                self.fetches.left(client)
            case PlanMade():
                core.plan_ready(stimulus, now_s)
            case KeptChosen():
                core.kept_chosen(stimulus)
            case ReadEnded(read, failed, left, chunks):
                core.read_done(read, failed, left, chunks, now_s)
            case WriteEnded(write, held, stopped):
                core.caching.written(write, held, stopped)
            case ReadForEnded(read_for, data, error):
                if read_for.node == self.members.node:
                    self.fetches.have_read(read_for, data, error)
                else:
                    self.answering.have_read(read_for, data)
            case StreamOpens(node, asks):
                instructions += self._opened(node, now_s, asks=asks)
            case StreamEnds(node, asks):
                self._ended(node, asks=asks)
            case NodeRefuses(reason):
                self.telling.disagreements.refuse_all(reason)
            case NodeSays(node, message):
                instructions += self._heard(node, message, now_s)
        if core.preparing is not None and not isinstance(stimulus, ClientDraws | ClientTakes | ClientReleases):
            core.preparing.news()
        return instructions + list(core.draws.answers())

    def _prepares(self, stimulus: Preparation, now_s: float) -> Iterator[Instruction]:
        """Something happens that is about preparation."""
        preparing = self.core.preparing
        assert preparing is not None
        match stimulus:
            case ClientPrepares(client, run, wants):
                numbers = preparing.register(client, run, wants)
                yield Numbers(client, numbers or (), "" if numbers else TOO_MANY)
            case PreparerReady(preparer):
                preparing.preparers.is_ready(preparer, now_s)
            case PreparerSized(preparer, number, sizes):
                yield from preparing.sized(preparer, number, sizes, now_s)
            case PreparedFilled(number):
                preparing.filled(number, now_s)
            case PreparerEnded(preparer):
                preparing.ended(preparer, now_s)

    def _opened(self, node: NodeNumber, now_s: float, *, asks: bool) -> Iterator[Say]:
        self.joinings.opened(node)
        if asks:
            self.core.receiving.opened(node, now_s)
            for message in self.telling.begin_anew(node):
                yield Say(node, asks=True, message=message)
        else:
            peer = self.core.peers[node]
            peer.greets()
            self.answering.opened(node, peer.opening)

    def _ended(self, node: NodeNumber, *, asks: bool) -> None:
        if asks:
            self.core.receiving.lost(node)
            self.fetches.lost(node)
        else:
            peer = self.core.peers[node]
            peer.leaves()
            self.answering.opened(node, peer.opening + 1)  # reads that are under way now belong to no stream
            self.telling.gone(node)

    def _heard(self, node: NodeNumber, message: Question | Reply, now_s: float) -> Iterator[Say]:
        """Raises `ProtocolError`, `UsageError`."""
        core, peer = self.core, self.core.peers[node]
        match message:
            case EpochAnnounced():
                refused = self.telling.take_drawing(node, message)
                if refused is not None:
                    yield Say(node, asks=False, message=refused)
            case EpochReleased():
                self.telling.take_forget(node, message)
            case JoinVote():
                self.joinings.take(node, message, now_s)
            case LeadingOffset():
                self.joinings.take_front(node, message, now_s)
            case PeerCapacity(pages):
                peer.allows(pages)
            case SampleRequest(number, room, positions):
                peer.allows(room)
                key = self.telling.key_of(node, number)
                if key is not None:
                    if positions.min() < 0 or positions.max() >= len(core.residents.pages_of):
                        raise ProtocolError("positions that the data set does not have")
                    core.epochs.lives[key].ask(node, positions)
            case Fetch(_, places):
                self.answering.ask(node, message, self.fetches.check(places, self.members.node))
            case Push(number, places, missed, data):
                live = [live for _, live in core.epochs.lives.live() if live.epoch.number == number]
                core.receiving.came(node, live[0].epoch if live else None, places, missed, data, now_s)
            case FetchReply():
                self.fetches.came(node, message)
            case Refused(about, reason):
                self.telling.disagreements.refuse(about.name, about.order, reason)

    # -- time goes on ------------------------------------------------------------------------------------------------

    def step(self, now_s: float, unsent: Mapping[NodeNumber, int]) -> list[Instruction]:
        """All that the node can do now. `unsent`: bytes that each asking node has not taken yet, by node."""
        core, instructions = self.core, list[Instruction]()
        core.epochs.makings.make_more()
        instructions += core.epochs.plans_wanted(now_s, core.bridge)
        core.epochs.growth.step(now_s, core.bridge)
        choice = core.keeping.choice_wanted()
        if choice is not None:
            instructions.append(choice)
        instructions += self._reads(now_s)
        instructions += core.caching.instructions()
        if core.preparing is not None:
            instructions += core.preparing.step(now_s)
        core.tend(now_s)
        instructions += core.draws.answers()
        instructions += self._say(now_s, unsent)
        instructions += self.fetches.done()
        instructions += (Refuse(client, error) for client, error in self.telling.disagreements.clients(now_s))
        instructions += core.epochs.sharing.lockstep.refused(now_s)
        instructions += self.divisions.answers(now_s)
        return instructions

    def _reads(self, now_s: float) -> Iterator[Read | ReadFor]:
        """Reads to start. Reads that a client waits for come first, then those for other nodes, at most half of all."""
        reads = self.core.reads
        yield from self.fetches.reads(self._free)
        yield from self.answering.reads(self._free)
        left, together, self._starting = AT_ONCE, AT_ONCE if self._starting else reads.under_way.together(), False
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
        """How many more reads may be under way."""
        return self.depth - self.core.reads.under_way.count - self.answering.on_the_way - self.fetches.on_the_way

    def _say(self, now_s: float, unsent: Mapping[NodeNumber, int]) -> Iterator[Say]:
        """Messages to other nodes: news, requests, questions, answers and samples."""
        if not len(self.core.peers):
            return
        receiving = self.core.receiving
        for node, news in chain(self.telling.news(), self.joinings.news(now_s)):
            yield Say(node, asks=True, message=news)
        for asking in receiving.requests():
            room = receiving.room_for(asking.node, now=True)
            yield Say(asking.node, asks=True, message=SampleRequest(asking.number, room or 0, asking.positions))
        for peer in self.core.peers:
            if peer.reach is Reach.OPEN:
                room = receiving.room_for(peer.node)
                if room is not None:
                    yield Say(peer.node, asks=True, message=PeerCapacity(room))
                for question in self.fetches.questions(peer.node):
                    yield Say(peer.node, asks=True, message=question)
            if peer.asks:
                yield from self._replies(peer, unsent.get(peer.node, 0))
        self.fetches.give_up(now_s, self.core.peers.reachable)

    def _replies(self, peer: Peer, unsent: int) -> Iterator[Say]:
        """Answers and samples for a node, as many as its stream takes."""
        while unsent < MAX_UNSENT:
            part = self.answering.next_part(peer.node)
            if part is not None:
                unsent += _FRONT + len(part.part)
                yield Say(peer.node, asks=False, message=part)
                continue
            batch = self.core.sending.next(peer, stuck=self.core.reads.stuck)
            if batch is None:
                return
            number = self.telling.number_of(peer.node, batch.key)
            unsent += _FRONT + batch.data.nbytes + 8 * (len(batch.places) + len(batch.missed))
            yield Say(peer.node, asks=False, message=Push(number, batch.places, batch.missed, batch.data))
