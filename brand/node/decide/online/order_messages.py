"""The messages between nodes about orders that the first node decides for all (JOADER's leader and its followers).

Every other node *follows* each epoch with an online order: it tells the first node how far its ranks have asked, gets
the decided positions, and confirms them. Ranks of the first node are answered only at positions that all nodes which
can ask it have confirmed. So a server that replaces the first node's learns from the others all that any client knows,
before it decides more: an order is decided once, by whichever server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from brand.errors import ProtocolError, UsageError
from brand.node.decide.online.online_orders import OnlineOrders
from brand.node.decide.online.order_table import OnlineOrder
from brand.node.decide.peers.announcements import Announcements, as_client
from brand.node.decide.peers.peers import PeerTable
from brand.node.decide.state.epoch_table import Key
from brand.node.decide.state.runs import Runs
from brand.node.wire.messages import MOST_PLACES
from brand.node.wire.numbers import FIRST_NODE, NodeNumber, RunNumber
from brand.node.wire.peer_messages import EpochReleased, OrderFollowed, OrderGrown, OrderKnown, OrderLeft, Refused
from brand.orders.order import Order
from brand.reprs import Reprs

AGAIN_S: Final = 1.0
"""A node that needs more of an order says again after this time that it follows it: the first node may not know it."""
HEAR_S: Final = 20.0
"""Time for which the first node waits for a node that may know more of an order."""
MOST_FOLLOWED: Final = 1024
"""Limit on the orders that a node follows at a time, with those that the first node has forgotten."""


@dataclass(eq=False, slots=True)
class _FollowingNode:
    """A node that follows an order, as the first node knows it."""

    key: Key
    of: OrderFollowed
    """The message by which it follows."""
    sent: int = 0
    """Positions before this one were sent to it, or it knows them."""
    confirmed: int = 0
    """It knows the positions before this one."""
    greeted: bool = False
    """Whether it has got an answer."""

    def confirm(self, position: int) -> None:
        """Note that it knows the positions before this one."""
        self.confirmed, self.sent = max(self.confirmed, position), max(self.sent, position)

    def add_sent(self, positions: int) -> None:
        self.sent, self.greeted = self.sent + positions, True


@dataclass(eq=False, slots=True)
class _Followed:
    """An order that this node follows."""

    number: int
    told: tuple[int, int, int]
    """Known positions, position before which ranks have asked, and largest draw, as the first node was told them."""
    since_s: float
    answered: bool = False

    def tell(self, state: tuple[int, int, int]) -> bool:
        """Note this state as told. Return whether it was not."""
        changed, self.told = self.told != state, state
        return changed

    def hear(self, now_s: float) -> None:
        """Note an answer of the first node."""
        self.answered, self.since_s = True, now_s


class OrderMessages(Reprs, shows="_followers _followed"):
    """The online orders that this node decides for other nodes, or follows."""

    def __init__(
        self, node: NodeNumber, runs: Runs, peers: PeerTable, announcements: Announcements, orders: OnlineOrders
    ) -> None:
        self._decides, self._runs, self._peers = node == FIRST_NODE, runs, peers
        self._announcements, self._orders = announcements, orders
        self._followers: defaultdict[NodeNumber, dict[int, _FollowingNode]] = defaultdict(dict)
        self._followed: dict[Key, _Followed] = {}
        self._shown: dict[RunNumber, EpochReleased] = {}
        """Runs of clients of this node that the first node knows, with the message that releases them there."""
        self._last = 0
        self._told_again: list[int] = []
        """Numbers of orders that the first node has forgotten; it waits until it is told them, if they are known."""
        self._forgotten: defaultdict[NodeNumber, dict[int, OrderFollowed]] = defaultdict(dict)
        """Orders that nodes follow and this node has forgotten, until they are told again."""
        self._unheard: dict[Key, tuple[float, set[NodeNumber]]] = {}
        """Since when this node knows of an epoch, and the nodes that may know more of its order."""
        self._given_up: set[NodeNumber] = set()
        """Nodes that were waited for too long, and have opened no stream since."""
        if self._decides:
            orders.wait_for(self.has_heard_all)

    def on_stream_open(self, node: NodeNumber, *, asks: bool) -> None:
        """Begin again on a new stream, on which this node asks or another one: either may have restarted."""
        if asks and node == FIRST_NODE:
            self._followed.clear()
            self._told_again.clear()
        elif not asks:
            self._followers.pop(node, None)
            self._forgotten.pop(node, None)
            self._given_up.discard(node)

    def on_stream_end(self, node: NodeNumber) -> None:
        self._followers.pop(node, None)
        self._forgotten.pop(node, None)
        self._confirm()

    # -- the first node ----------------------------------------------------------------------------------------------

    def has_heard_all(self, key: Key, now_s: float) -> bool:
        """Return whether no other node may know more of an order, as far as nodes have come back within `HEAR_S`."""
        since_s, unheard = self._unheard.setdefault(key, (now_s, {peer.node for peer in self._peers}))
        unheard -= {peer.node for peer in self._peers if peer.asks and peer.has_reported}
        if now_s - since_s > HEAR_S:
            self._given_up |= unheard
        unheard -= self._given_up
        return not unheard and not self._is_forgotten(key)

    def _is_forgotten(self, key: Key) -> bool:
        """Return whether a node knows an order that this node has forgotten, and has not told it again."""
        run = self._runs[key[0]]
        followers = [follower for each in self._followers.values() for follower in each.values()]
        gone = (follower.of for follower in followers if follower.key[0] not in self._runs)
        forgotten = (of for each in self._forgotten.values() for of in each.values())
        return any(_same(of, run.name, run.order, key[1]) for of in (*gone, *forgotten))

    def on_followed(self, node: NodeNumber, followed: OrderFollowed) -> None:
        """Note that a node follows the order of an epoch. Raises `ProtocolError`, `UsageError`."""
        if not self._decides:
            raise ProtocolError("this node decides no orders")
        run = self._runs.number_of(followed.name, followed.order)
        if followed.draws:
            run = self._runs.register(as_client(node), followed.order, followed.name, None)
        if run is not None:  # if not, its announcement has not arrived yet, and the node will say so again
            key = run, followed.epoch
            followers = {number: each for number, each in self._followers[node].items() if each.key != key}
            if len(followers) + len(self._forgotten[node]) >= MOST_FOLLOWED:
                raise ProtocolError(f"more than {MOST_FOLLOWED} orders are followed")
            self._followers[node] = followers | {followed.number: _FollowingNode(key, followed)}
            self._remember(node, followed)
            self._confirm()

    def on_known(self, node: NodeNumber, known: OrderKnown, now_s: float) -> Refused | None:
        """Note how far a node knows an order, and what its ranks need. Return the refusal if it is another order."""
        follower = self._followers[node].get(known.number)
        run = None if follower is None else self._runs.get(follower.key[0])
        if follower is None or run is None:
            return None
        key, end = follower.key, known.first + len(known.places)
        try:
            if known.most > run.order.draws:
                raise ProtocolError("positions that the epoch does not have")
            if known.first > self._orders.orders.reopen(key).decided:
                return None  # this node has forgotten the order, and the other one will tell all of it again
            self._orders.learn(key, known.first, known.places, end, now_s)
        except UsageError as error:
            return Refused(EpochReleased(run.name, run.order, key[1]), str(error))
        self._orders.orders[key].add_request(known.most, known.largest, now_s)
        follower.confirm(end)
        self._confirm()
        return None

    def replies(self, node: NodeNumber) -> Iterator[OrderGrown | OrderLeft]:
        """Yield the positions that were decided since the last call, for a node that follows.

        If this node has forgotten an order, because its run has ended, the other node has to tell all of it again.
        """
        orders, followers = self._orders.orders, self._followers.get(node, {})
        for number in [number for number, follower in followers.items() if follower.key[0] not in self._runs]:
            self._forgotten[node][number] = followers.pop(number).of
            yield OrderLeft(number)
        for number, follower in followers.items():
            decided = orders[follower.key].decided if follower.key in orders else 0
            while not follower.greeted or follower.sent < decided:
                places = orders.send(follower.key, follower.sent, MOST_PLACES)
                yield OrderGrown(number, follower.sent, places)
                follower.add_sent(len(places))

    def on_left(self, node: NodeNumber, left: OrderLeft) -> None:
        """Note that a node follows an order no longer."""
        self._followers[node].pop(left.number, None)
        self._forgotten[node].pop(left.number, None)
        self._confirm()

    def _remember(self, node: NodeNumber, followed: OrderFollowed) -> None:
        """Note that a node follows an order again that this node had forgotten."""
        name, order, epoch = followed.name, followed.order, followed.epoch
        found = self._forgotten[node].items()
        self._forgotten[node] = {number: of for number, of in found if not _same(of, name, order, epoch)}

    def _confirm(self) -> None:
        """Note what all nodes have confirmed that can ask this one, and follow an order or were told of its epoch."""
        if not self._decides:
            return
        confirmed: defaultdict[Key, dict[NodeNumber, int]] = defaultdict(dict)
        for node, followers in self._followers.items():
            for follower in followers.values():
                confirmed[follower.key][node] = max(follower.confirmed, confirmed[follower.key].get(node, 0))
        asking = [peer.node for peer in self._peers if peer.asks]
        self._unheard = {key: unheard for key, unheard in self._unheard.items() if key in self._orders.orders}
        for key, order in self._orders.orders.items():
            theirs = [node for node in asking if node in confirmed[key] or self._announcements.has_told(node, key)]
            order.confirm(min((confirmed[key].get(node, 0) for node in theirs), default=None))

    # -- nodes that follow -------------------------------------------------------------------------------------------

    def news(self, now_s: float) -> Iterator[OrderFollowed | OrderKnown | OrderLeft | EpochReleased]:
        """Yield what to tell the first node about the orders that this node follows."""
        orders = self._orders.orders
        if self._decides:
            self._confirm()
            return
        if not self._peers.is_reachable(FIRST_NODE):
            return
        for run in [run for run in self._shown if not self._runs.is_drawn_here(run)]:
            yield self._shown.pop(run)
        for key in [key for key in self._followed if key not in orders or key[0] not in self._runs]:
            yield OrderLeft(self._followed.pop(key).number)
        for key, order in orders.items():
            if key[0] not in self._runs:
                continue
            followed, state = self._followed.get(key), (order.decided, order.most, order.largest)
            lacks = followed is not None and (order.most > order.decided or not followed.answered)
            if followed is None or (lacks and now_s - followed.since_s >= AGAIN_S):
                self._last += 1
                self._followed[key] = _Followed(self._last, state, now_s)
                yield from self._introduce(key, order, self._last)
            elif followed.tell(state):
                yield OrderKnown(followed.number, *state, np.empty(0, np.int32))
        yield from map(OrderLeft, self._told_again)
        self._told_again.clear()

    def _introduce(self, key: Key, order: OnlineOrder, number: int) -> Iterator[OrderFollowed | OrderKnown]:
        """Yield that this node follows an order, and all that it knows of it."""
        run = self._runs[key[0]]
        draws = self._runs.is_drawn_here(key[0])
        if draws:
            self._shown[key[0]] = EpochReleased(run.name, run.order, None)
        yield OrderFollowed(run.name, run.order, key[1], number, draws)
        for first in range(0, max(1, order.decided), MOST_PLACES):
            places = self._orders.orders.send(key, first, MOST_PLACES)
            yield OrderKnown(number, first, order.most, order.largest, places)

    def on_forgotten(self, left: OrderLeft) -> None:
        """Tell the first node all of an order again, which it has forgotten."""
        for key in [key for key, followed in self._followed.items() if followed.number == left.number]:
            del self._followed[key]
            self._told_again.append(left.number)

    def on_grown(self, node: NodeNumber, grown: OrderGrown, now_s: float) -> None:
        """Take positions that the first node has decided. Raises `ProtocolError`."""
        found = [(key, followed) for key, followed in self._followed.items() if followed.number == grown.number]
        if node != FIRST_NODE:
            raise ProtocolError(f"node {node} decides no orders")
        for key, followed in found:
            followed.hear(now_s)
            if key[0] not in self._runs:
                continue
            if grown.first > self._orders.orders.reopen(key).decided:
                del self._followed[key]  # this node has forgotten the order since: `news` follows it again
                continue
            try:
                self._orders.learn(key, grown.first, grown.places, grown.first + len(grown.places), now_s)
            except UsageError as error:
                self._announcements.disagreements.refuse_runs([key[0]], str(error))


def _same(of: OrderFollowed, name: str, order: Order, epoch: int) -> bool:
    """Return whether a message is about this order of an epoch."""
    return (of.name, of.order, of.epoch) == (name, order, epoch)
