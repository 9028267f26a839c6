"""Requests of a server's clients. Most requests become stimuli; those that need no decision are answered here."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from brand.errors import MissingExtraError, ProtocolError, SchemaError, UsageError
from brand.formats.preparation import checked, decoders, for_server
from brand.formats.version import number_within
from brand.node.decide.draws.job_stats import held_draws
from brand.node.decide.node_state import NodeState
from brand.node.decide.stimuli import ClientDraws, ClientTakes, Stimulus
from brand.node.memory.arena import Arenas
from brand.node.serve.clients import Clients
from brand.node.serve.lifetime import Lifetime, owner_here
from brand.node.serve.reports import Reports, problems
from brand.node.setup.measure import MemoryLayout
from brand.node.wire import messages
from brand.node.wire.client_messages import (
    AskOrder,
    AskPlaces,
    AskStats,
    ClientBegins,
    ClientDivides,
    ClientFetches,
    ClientJoins,
    ClientOrders,
    ClientPrepares,
    ClientRegisters,
    ClientReleases,
    Hello,
    Numbers,
    OrderFound,
    PeerAddresses,
    Places,
    Replaced,
    ServerFacts,
    pack,
    unpack_request,
)
from brand.node.wire.connection import Channel, peer, pid_namespace
from brand.node.wire.decoding import DecodeSpec
from brand.node.wire.draw_messages import DirectHits, unpack_draw, unpack_taken
from brand.node.wire.drawing import Drawer
from brand.node.wire.looping import LoopReport
from brand.node.wire.messages import MOST_PLACES, Kind
from brand.node.wire.numbers import ClientNumber, Key, RunNumber
from brand.orders.order import MAX_EPOCH, Order
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet

if TYPE_CHECKING:
    from brand.node.serve.exchange import StreamExchange


@dataclass(frozen=True, slots=True)
class Served:
    """A data set, the address at which a server serves it, and the memory for it."""

    data: StoredDataSet
    address: str
    layout: MemoryLayout
    arenas: Arenas


class ClientRequests(Reprs, shows="_served.address greeted"):
    """Answers the clients of a server. `tell` accepts the stimuli."""

    def __init__(
        self,
        served: Served,
        state: NodeState,
        exchange: StreamExchange | None,
        lifetime: Lifetime,
        reports: Reports,
        tell: Callable[[Stimulus], object],
    ) -> None:
        self._served, self._state, self._exchange = served, state, exchange
        self._lifetime, self._reports, self._tell = lifetime, reports, tell
        self._started_s = time.monotonic()
        self._life = secrets.token_hex(8)
        """Distinguishes this server from earlier and later servers at its address."""
        self.greeted = False
        """Whether a client that will draw has connected. A client that only looks does not count."""

    def handle(self, clients: Clients, channel: Channel, kind: Kind, body: bytes) -> None:
        if channel.greeted == (kind == Kind.HELLO):
            raise ProtocolError("the first message must be HELLO, and no other message may be")
        client = channel.number
        match kind:
            case Kind.DRAW:
                key, positions = unpack_draw(body)
                self._tell(ClientDraws(client, self._checked(client, key), positions, channel.drawer))
                return
            case Kind.TAKEN:
                self._take(channel, unpack_taken(body))
                return
        request = unpack_request(kind, body, client, channel.drawer)
        match request:
            case Hello():
                self._greet(clients, channel, request)
            case ClientRegisters(order=order):
                self._check_order(order)
                self._tell(request)
            case AskOrder(name, tag):
                order = self._state.core.epochs.runs.order_by_tag(name, tag)
                clients.send(channel, pack(OrderFound(client, order)))
            case ClientPrepares(run=run, wants=wants):
                self._checked(client, (run, 0))
                why = self._why_not(wants, request.decoders)
                if why:
                    clients.send(channel, pack(Numbers(client, (), why)))
                else:
                    self._tell(request)
            case AskPlaces(key, first):
                places = self._state.core.draws.places(self._checked(client, key), first, MOST_PLACES)
                clients.send(channel, pack(Places(client, places)))
            case PeerAddresses(addresses):
                if self._exchange is not None:
                    self._exchange.connect({node: at for node, at in enumerate(addresses) if at is not None})
            case AskStats(cells):
                clients.send(channel, messages.pack_json(Kind.STATS, self.facts(len(clients), cells)))
            case Replaced():
                self._reports.replaced(request)
            case LoopReport():
                self._reports.loop(request)
            case ClientReleases() | ClientFetches():
                self._tell(request)
            case ClientBegins() | ClientDivides() | ClientJoins() | ClientOrders():
                self._checked(client, request.key)
                self._tell(request)

    def _greet(self, clients: Clients, channel: Channel, hello: Hello) -> None:
        data, layout, arenas, exchange = self._served.data, self._served.layout, self._served.arenas, self._exchange
        asked = hello.data_set
        if asked not in (data.id, None):
            here = f"the server at {self._served.address} serves data set {data.id} ({data.name})"
            number = None if data.version is None else number_within(data.version.collection, asked)
            cure = "" if number is None else f": open that version, or start the server with version {number}"
            raise UsageError(f"{here}, not {asked}{cure}")
        owner = hello.owner
        space, own_space = hello.space or 0, pid_namespace()
        if owner is not None and self._lifetime.owned:
            self._lifetime.own(owner_here(owner, space, peer(channel.socket)[0], own_space))
        self.greeted = self.greeted or asked is not None
        training = owner if owner is None or space in (0, own_space) else owner + (space << 31)
        channel.greet(Drawer.named(training, hello.worker, channel.number))
        facts = ServerFacts(
            data_set=data.id,
            process=os.getpid(),
            life=self._life,
            page=layout.allocator.page,
            pages=layout.allocator.count,
            all_pages=layout.all_pages,
            node=layout.members.node,
            nodes=layout.members.nodes,
            remote_pages=layout.remote_pages,
            listens_at=None if exchange is None else exchange.address,
            joined=exchange is not None and exchange.connected,
            prepared_pages=0 if arenas.prepared is None else len(arenas.prepared.pages),
            entries=0 if arenas.directory is None else len(arenas.directory.pages),
        )
        clients.send(channel, pack(facts), arenas.descriptors)

    def _take(self, channel: Channel, taken: DirectHits) -> None:
        """Pass on the direct hits of a client. The checksums of bytes that it says it has checked count as right."""
        core, key = self._state.core, self._checked(channel.number, (RunNumber(taken.run), taken.epoch))
        right = np.empty(0, np.int64)
        if len(taken.entries):
            places = core.draws.places_at(key, taken.positions)
            right = places[core.residents.shows(places, taken.entries)] if len(places) else places
        self._tell(ClientTakes(channel.number, key, taken.positions, right, channel.drawer))

    def _check_order(self, order: Order) -> None:
        if order.data_set != self._served.data.id:
            raise UsageError(
                f"the order is of data set {order.data_set}, but this server serves {self._served.data.id}"
            )

    def _why_not(self, wants: Sequence[DecodeSpec], theirs: dict[str, Any]) -> str:
        """Return why this server does not decode for a client with these decoders, or "". Raises `UsageError`."""
        try:
            specs = checked({want.field: want.how for want in wants}, self._served.data.header.schema, None)
        except SchemaError as error:
            raise UsageError(str(error)) from None
        if len(for_server(specs, self._served.data.header.schema)) < len(specs):
            return "it does not decode the elements of lists"
        if self._served.arenas.prepared is None:
            return "it does not decode: start it with --decoded-memory"
        for codec in sorted({want.how.codec for want in wants}):
            try:
                mine, other = decoders(codec), theirs.get(codec)
            except MissingExtraError as error:
                return str(error)
            if mine != other:
                return f"it decodes {codec} with {mine}, this process with {other}"
        return ""

    def _checked(self, client: ClientNumber, key: Key) -> Key:
        """Return the key of an epoch if the client may ask for it. Raises `UsageError` if not."""
        run, epoch = key
        if not self._state.core.epochs.runs.knows(client, run):
            raise UsageError(f"run {run} was never registered")
        if epoch > MAX_EPOCH:
            raise UsageError(f"epoch {epoch}: the last possible epoch is {MAX_EPOCH:,}")
        return key

    def facts(self, clients: int, cells: int = 0) -> dict[str, Any]:
        """Return statistics of the server, as plain values; `cells` as for `Reports.facts`."""
        traffic, core = self._served.data.location.traffic, self._state.core
        held = held_draws(core.epochs, time.monotonic())
        work = core.facts(self._served.data.mean_bytes, time.monotonic())
        waits, reads = core.counters.draws.waits_by_cause(), core.counters.reads
        found = {
            "data_set": self._served.data.name,
            "address": self._served.address,
            "process": os.getpid(),
            "uptime_s": time.monotonic() - self._started_s,
            "data_bytes": int(self._served.data.chunk_rows["file_size"].sum()),
            "clients": clients,
            **self._reports.facts(held, waits, reads, work["jobs"], cells),
            **work,
            "pending": held,
            "store": None if traffic is None else traffic.to_json(),
            "cluster": None if self._exchange is None else self._exchange.facts(),
        }
        return found | {"problems": problems(found)}
