"""The hooks through which several nodes take part in each other's steps: they send samples and announce their draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from brand.errors import ProtocolError
from brand.node.decide.draws.draws import LONGEST_WAIT_S
from brand.node.decide.draws.fetches import Fetches
from brand.node.decide.peers.announcements import Announcements
from brand.node.decide.peers.peers import Peer, PeerTable, Reach
from brand.node.decide.peers.receiving import SILENCE_S, NodeAmongOthers, Receiving
from brand.node.decide.peers.sending import FetchAnswers, Sending
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import Draw
from brand.node.decide.state.features import Feature
from brand.node.decide.state.instructions import Say
from brand.node.wire.numbers import FIRST_NODE, ClientNumber, NodeNumber
from brand.node.wire.peer_messages import (
    EpochAnnounced,
    EpochReleased,
    Fetch,
    FetchReply,
    JoinVote,
    LeadingOffset,
    OrderFollowed,
    OrderGrown,
    OrderKnown,
    OrderLeft,
    PeerCapacity,
    Push,
    PushPart,
    Question,
    Refused,
    Reply,
    SampleRequest,
)
from brand.reprs import Reprs

MAX_UNSENT: Final = 16 << 20
"""A node sends no more samples on a stream that holds this many bytes that the other side has not taken."""
_FRONT: Final = 64
"""Approximate bytes of a message in addition to its samples."""


class JoinTalk(Protocol):
    """Messages between nodes about jobs that share (`brand.node.decide.sharing.join_messages`)."""

    def on_stream_open(self, node: NodeNumber) -> None: ...
    def on_vote(self, node: NodeNumber, joining: JoinVote, now_s: float) -> None: ...
    def on_front(self, node: NodeNumber, front: LeadingOffset, now_s: float) -> None: ...
    def news(self, now_s: float) -> Iterator[tuple[NodeNumber, JoinVote | EpochReleased | LeadingOffset]]: ...


class OrderTalk(Protocol):
    """Messages between nodes about orders that one of them decides (`brand.node.decide.online.order_messages`)."""

    def on_stream_open(self, node: NodeNumber, *, asks: bool) -> None: ...
    def on_stream_end(self, node: NodeNumber) -> None: ...
    def on_followed(self, node: NodeNumber, followed: OrderFollowed) -> None: ...
    def on_known(self, node: NodeNumber, known: OrderKnown, now_s: float) -> Refused | None: ...
    def on_left(self, node: NodeNumber, left: OrderLeft) -> None: ...
    def on_grown(self, node: NodeNumber, grown: OrderGrown, now_s: float) -> None: ...
    def news(self, now_s: float) -> Iterator[OrderFollowed | OrderKnown | OrderLeft | EpochReleased]: ...
    def on_forgotten(self, left: OrderLeft) -> None: ...
    def replies(self, node: NodeNumber) -> Iterator[OrderGrown | OrderLeft]: ...


class Peering(Feature, Reprs, shows="peers announcements answering"):
    """The messages and samples that this node exchanges with all other nodes.

    `share` is called before the first message about jobs that share is taken, and `decide` before the first one about
    an online order. They have to set who takes these messages (`set_talk`, `set_orders`). `left` is called with the
    number of a node among the clients when the node does not ask any more.
    """

    def __init__(
        self,
        node: NodeAmongOthers,
        peers: PeerTable,
        fetches: Fetches,
        depth: int,
        share: Callable[[], None],
        decide: Callable[[], None],
        left: Callable[[ClientNumber], None],
    ) -> None:
        self._epochs, self._members, self.peers = node.epochs, node.members, peers
        self._fetches, self._share, self._decide = fetches, share, decide
        self.receiving = Receiving(node, peers)
        self.announcements = Announcements(node.epochs, peers, node.members.node, left)
        self.sending = Sending(node.residents, node.epochs, node.counters, self.announcements.number_of)
        self.answering = FetchAnswers(node.members.others, depth)
        self._talk: JoinTalk | None = None
        """Messages about jobs that share. None if no job shares."""
        self._orders: OrderTalk | None = None
        """Messages about online orders. None if there are none."""
        for each in (self, self.receiving, self.sending, self.announcements.disagreements):
            node.epochs.features.turn_on(each)

    def set_talk(self, talk: JoinTalk) -> None:
        """Exchange messages about jobs that share from now on."""
        self._talk = talk

    def set_orders(self, orders: OrderTalk) -> None:
        """Exchange messages about online orders from now on."""
        self._orders = orders

    def is_agreed(self, draw: Draw, now_s: float) -> bool:
        """Return whether all ranks have begun the epoch at the same position, or have had long enough to do so.

        If ranks begin at different positions, the server refuses the run before that time is over.
        """
        run, epoch = draw.key
        limit_s = SILENCE_S if self.peers.any_lost else LONGEST_WAIT_S
        return now_s - draw.since_s > limit_s or self._epochs.runs[run].agreed_on(epoch, self._members.node)

    def on_stream_open(self, node: NodeNumber, now_s: float, *, asks: bool) -> Iterator[Say]:
        """Begin an exchange on a stream that has opened, and yield the first messages.

        `asks`: this node asks on the stream; if False, the other node does.
        """
        if self._talk is not None:
            self._talk.on_stream_open(node)
        if self._orders is not None:
            self._orders.on_stream_open(node, asks=asks)
        if asks:
            self.receiving.on_stream_open(node, now_s)
            for message in (*self.announcements.announce_all(node), *self._of_orders(node, now_s)):
                yield Say(node, asks=True, message=message)
        else:
            peer = self.peers[node]
            peer.on_stream_open()
            self.sending.departing.drop(node)
            self.answering.reset(node, peer.opening)

    def on_stream_end(self, node: NodeNumber, *, asks: bool) -> None:
        if asks:
            self.receiving.on_node_lost(node)
            self._fetches.on_node_lost(node)
        else:
            peer = self.peers[node]
            peer.on_stream_end()
            self.sending.departing.drop(node)
            self.answering.reset(node, peer.opening + 1)  # answers to reads under way are dropped
            self.announcements.on_node_gone(node)
            if self._orders is not None:
                self._orders.on_stream_end(node)

    def on_message(self, node: NodeNumber, message: Question | Reply, now_s: float) -> Iterator[Say]:
        """Take a message of another node, and yield the answers. Raises `ProtocolError`, `UsageError`."""
        peer = self.peers[node]
        match message:
            case EpochAnnounced():
                refused = self.announcements.on_announced(node, message)
                if refused is not None:
                    yield Say(node, asks=False, message=refused)
            case EpochReleased():
                self.announcements.on_released(node, message)
            case JoinVote():
                self._talking().on_vote(node, message, now_s)
            case LeadingOffset():
                self._talking().on_front(node, message, now_s)
            case OrderFollowed():
                self._deciding().on_followed(node, message)
            case OrderKnown():
                refused = self._deciding().on_known(node, message, now_s)
                if refused is not None:
                    yield Say(node, asks=False, message=refused)
            case OrderLeft() if node == FIRST_NODE:
                self._deciding().on_forgotten(message)
            case OrderLeft():
                self._deciding().on_left(node, message)
            case OrderGrown():
                self._deciding().on_grown(node, message, now_s)
            case PeerCapacity(pages):
                peer.allow(pages)
            case SampleRequest(number, room, positions):
                peer.allow(room)
                key = self.announcements.key_of(node, number)
                if key is not None:
                    if positions.min() < 0 or positions.max() >= self.receiving.samples:
                        raise ProtocolError("positions that the data set does not have")
                    self._epochs.lives[key].ask(node, positions)
            case Fetch(_, places):
                self.answering.ask(node, message, self._fetches.check(places, self._members.node))
            case Push(number):
                self.receiving.on_samples(node, self._epoch_of(number), message, now_s)
            case PushPart(number):
                self.receiving.on_part(node, self._epoch_of(number), message, now_s)
            case FetchReply():
                self._fetches.on_reply(node, message)
            case Refused(about, reason):
                self.announcements.disagreements.refuse(about.name, about.order, reason)

    def say(self, now_s: float, unsent: Mapping[NodeNumber, int], *, stuck: bool) -> Iterator[Say]:
        """Yield the messages to other nodes: news, requests, questions, answers and samples.

        `unsent`: bytes that each asking node has not taken yet. `stuck`: this node cannot read anything at present.
        """
        self.receiving.arriving.expire(now_s)
        for node, news in self._news(now_s):
            yield Say(node, asks=True, message=news)
        for asking in self.receiving.requests():
            room = self.receiving.grant(asking.node, now=True)
            yield Say(asking.node, asks=True, message=SampleRequest(asking.number, room or 0, asking.positions))
        for peer in self.peers:
            if peer.reach is Reach.OPEN:
                room = self.receiving.grant(peer.node)
                if room is not None:
                    yield Say(peer.node, asks=True, message=PeerCapacity(room))
                for question in self._fetches.questions(peer.node):
                    yield Say(peer.node, asks=True, message=question)
            if peer.asks:
                yield from self._replies(peer, unsent.get(peer.node, 0), stuck=stuck)
        self._fetches.give_up(now_s, self.peers.is_reachable)

    def _news(self, now_s: float) -> Iterator[tuple[NodeNumber, Question]]:
        yield from self.announcements.news()
        if self._talk is not None:
            yield from self._talk.news(now_s)
        for message in self._of_orders(FIRST_NODE, now_s):
            yield FIRST_NODE, message

    def _of_orders(
        self, node: NodeNumber, now_s: float
    ) -> Iterator[OrderFollowed | OrderKnown | OrderLeft | EpochReleased]:
        """Yield what to tell a node about online orders: the first node decides them."""
        if self._orders is not None and node == FIRST_NODE:
            yield from self._orders.news(now_s)

    def _replies(self, peer: Peer, unsent: int, *, stuck: bool) -> Iterator[Say]:
        """Yield answers and samples for a node, as many as its stream takes."""
        if self._orders is not None:
            for grown in self._orders.replies(peer.node):
                yield Say(peer.node, asks=False, message=grown)
        while unsent < MAX_UNSENT:
            part = self.answering.pop_part(peer.node)
            if part is not None:
                unsent += _FRONT + len(part.part)
                yield Say(peer.node, asks=False, message=part)
                continue
            push = self.sending.next(peer, stuck=stuck)
            if push is None:
                return
            unsent += _FRONT + push.data.nbytes
            if isinstance(push, Push):
                unsent += 8 * (len(push.places) + len(push.missed))
            yield Say(peer.node, asks=False, message=push)

    def _epoch_of(self, number: int) -> Epoch | None:
        """Return the active epoch to which this node gave a number. None if it is not active any more."""
        return next((live.epoch for _, live in self._epochs.lives.live() if live.epoch.number == number), None)

    def _deciding(self) -> OrderTalk:
        if self._orders is None:
            self._decide()
        assert self._orders is not None
        return self._orders

    def _talking(self) -> JoinTalk:
        if self._talk is None:
            self._share()
        assert self._talk is not None
        return self._talk
