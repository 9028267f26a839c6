"""What do clients ask of a server? Messages become stimuli; requests that need no decision are answered here."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brand.errors import MissingExtraError, ProtocolError, UsageError
from brand.formats.preparation import decoders
from brand.formats.version import number_within
from brand.node.decide.jobs import held_draws
from brand.node.decide.lives import Key
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDivides,
    ClientDraws,
    ClientFetches,
    ClientJoins,
    ClientOrders,
    ClientPrepares,
    ClientRegisters,
    ClientReleases,
    ClientTakes,
    Stimulus,
)
from brand.node.decide.turn import Turn
from brand.node.memory.arena import Arenas
from brand.node.serve.clients import Clients
from brand.node.serve.lifetime import Lifetime
from brand.node.serve.reports import Reports
from brand.node.setup.measure import Layout
from brand.node.wire import messages
from brand.node.wire.connection import Channel
from brand.node.wire.deciding import unpack_known_order
from brand.node.wire.drawing import Drawer
from brand.node.wire.joining import unpack_known_joins
from brand.node.wire.looping import unpack_loop
from brand.node.wire.messages import Kind
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.node.wire.prepared import Want, pack_numbers, unpack_wants
from brand.node.wire.taking import MOST_PLACES, Taken, pack_places, unpack_taken, unpack_where
from brand.protocol.order import MAX_EPOCH
from brand.protocol.policy import BY_ONE_NODE
from brand.storage.dataset import StoredDataSet

if TYPE_CHECKING:
    from brand.node.serve.exchange import Exchange


class Requests:
    """Answers the clients of a server at `address`. `tell` takes the stimuli."""

    def __init__(
        self,
        data: StoredDataSet,
        address: str,
        layout: Layout,
        arenas: Arenas,
        turn: Turn,
        exchange: Exchange | None,
        lifetime: Lifetime,
        reports: Reports,
        tell: Callable[[Stimulus], object],
    ) -> None:
        self._data, self._address, self._layout, self._arenas = data, address, layout, arenas
        self._turn, self._exchange, self._lifetime, self._tell = turn, exchange, lifetime, tell
        self._started_s = time.monotonic()
        self._life = secrets.token_hex(8)
        """Tells this server from others at its address, before and after."""
        self._greeted, self._reports = False, reports

    def __repr__(self) -> str:
        return f"Requests({self._address}, {'greeted' if self._greeted else 'not greeted'})"

    @property
    def greeted(self) -> bool:
        """Whether a client has come that will draw. A client that only looks does not count."""
        return self._greeted

    def handle(self, clients: Clients, channel: Channel, kind: Kind, body: bytes) -> None:
        """Do what a message asks. Raises `BrandError` where that is impossible."""
        client = channel.number
        if channel.greeted == (kind == Kind.HELLO):
            raise ProtocolError("the first message, and no other, is HELLO")
        match kind:
            case Kind.HELLO:
                self._greet(clients, channel, messages.unpack_json(body))
            case Kind.ORDER:
                self._register(clients, channel, messages.unpack_json(body))
            case Kind.PREPARE:
                run, wants, theirs = unpack_wants(body, self._data.header.schema)
                number, why = self._key(client, run, 0)[0], self._why_not(wants, theirs)
                if why:
                    clients.send(channel, pack_numbers((), why))
                else:
                    self._tell(ClientPrepares(client, number, wants))
            case Kind.BEGIN:
                run, epoch, position, rank, replicas, batch, processes = messages.unpack_begin(body)
                key = self._key(client, run, epoch)
                start = min(position, self._turn.core.epochs.runs[key[0]].order.draws)
                self._tell(ClientBegins(client, key, start, rank, replicas, batch, processes, channel.drawer))
            case Kind.POSITIONS:
                run, epoch, asked = messages.unpack_which(body)
                self._tell(ClientDivides(client, self._key(client, run, epoch), asked))
            case Kind.DRAW:
                run, epoch, positions = messages.unpack_draw(body)
                self._tell(ClientDraws(client, self._key(client, run, epoch), positions, channel.drawer))
            case Kind.PLACES:
                run, epoch, first = unpack_where(body)
                key = self._key(client, run, epoch)
                clients.send(channel, pack_places(self._turn.core.draws.taking.places(key, first, MOST_PLACES)))
            case Kind.TAKEN:
                self._take(channel, unpack_taken(body))
            case Kind.RELEASE:
                self._tell(ClientReleases(client, *messages.unpack_release(body)))
            case Kind.JOINS:
                run, epoch, known = unpack_known_joins(body)
                self._tell(ClientJoins(client, self._key(client, run, epoch), known))
            case Kind.DECIDED:
                run, epoch, first, places, sure, wanted = unpack_known_order(body)
                self._tell(ClientOrders(client, self._key(client, run, epoch), first, places, sure, wanted))
            case Kind.FETCH:
                self._tell(ClientFetches(client, messages.unpack_fetch(body)))
            case Kind.PEERS:
                if self._exchange is not None:
                    self._exchange.connect(messages.unpack_peers(body))
            case Kind.STATS:
                facts = self.facts(len(clients), messages.unpack_stats(body))
                clients.send(channel, messages.pack_json(Kind.STATS, facts))
            case Kind.REPORT:
                self._reports.replaced(messages.unpack_report(body))
            case Kind.LOOP:
                self._reports.loop(unpack_loop(body))
            case _:
                raise ProtocolError(f"clients do not send {kind.name}")

    def _greet(self, clients: Clients, channel: Channel, hello: dict[str, Any]) -> None:
        data, layout, exchange = self._data, self._layout, self._exchange
        if hello.get("data_set") not in (data.id, None):  # None: a client that only looks
            here = f"the server at {self._address} serves data set {data.id} ({data.name})"
            asked = hello.get("data_set")
            number = None if data.version is None else number_within(data.version.collection, asked)
            cure = "" if number is None else f": open that version, or start the server with version {number}"
            raise UsageError(f"{here}, not {asked}{cure}")
        owner = hello.get("owner")
        if owner is not None and self._lifetime.owned:
            if not isinstance(owner, int) or not 1 < owner < 1 << 31:  # process 1 never ends
                raise ProtocolError(f"process {owner} cannot own a server")
            self._lifetime.own(owner)
        self._greeted = self._greeted or hello.get("data_set") is not None
        channel.greet(Drawer.named(owner, hello.get("worker"), channel.number))
        welcome = {
            "data_set": data.id,
            "process": os.getpid(),
            "life": self._life,
            "page": layout.allocator.page,
            "pages": layout.allocator.count,
            "all_pages": layout.all_pages,
            "node": layout.members.node,
            "nodes": layout.members.nodes,
            "remote_pages": layout.remote_pages,
            "listens_at": None if exchange is None else exchange.address,
            "joined": exchange is not None and exchange.connected,
            "prepared_pages": 0 if self._arenas.prepared is None else len(self._arenas.prepared.pages),
            "entries": 0 if self._arenas.directory is None else len(self._arenas.directory.pages),
        }
        clients.send(channel, messages.pack_json(Kind.HELLO, welcome), self._arenas.descriptors)

    def _take(self, channel: Channel, taken: Taken) -> None:
        """A client has taken samples by itself. Their checksums are right where it says which bytes it has checked."""
        core, key = self._turn.core, self._key(channel.number, taken.run, taken.epoch)
        right = np.empty(0, np.int64)
        if len(taken.entries):
            places = core.draws.taking.places_at(key, taken.positions)
            right = places[core.residents.shows(places, taken.entries)] if len(places) else places
        self._tell(ClientTakes(channel.number, key, taken.positions, right, channel.drawer))

    def _register(self, clients: Clients, channel: Channel, value: dict[str, Any]) -> None:
        name, tag, turn = str(value.get("run")), value.get("tag"), value.get("turn")
        if len(name) > messages.MAX_NAME:
            raise ProtocolError(f"the name of a run has at most {messages.MAX_NAME} characters")
        if not isinstance(tag, int | None) or not isinstance(turn, int | None):
            raise ProtocolError(f"tags and turns are numbers, not {tag!r}, {turn!r}")
        if "order" not in value:
            order = self._turn.core.epochs.runs.order_by_tag(name, tag)
            clients.send(channel, messages.pack_order(order))
            return
        try:
            order = messages.unpack_order(value)
        except (ValueError, TypeError) as error:
            raise UsageError(f"no order: {error}") from None
        if order.data_set != self._data.id:
            raise UsageError(f"the order is of data set {order.data_set}, this is {self._data.id}")
        if self._layout.members.nodes > 1 and order.policy.one_node:
            raise UsageError(BY_ONE_NODE)
        self._tell(ClientRegisters(channel.number, order, name, tag, turn))

    def _why_not(self, wants: Sequence[Want], theirs: dict[str, Any]) -> str:
        """Why this server does not prepare for a client with these decoders; empty where it does."""
        if self._arenas.prepared is None:
            return "it prepares nothing: start it with --prepared"
        for codec in sorted({want.how.codec for want in wants}):
            try:
                mine, other = decoders(codec), theirs.get(codec)
            except MissingExtraError as error:
                return str(error)
            if mine != other:
                return f"it decodes {codec} with {mine}, this process with {other}"
        return ""

    def _key(self, client: ClientNumber, run: int, epoch: int) -> Key:
        """The key of an epoch that a client may ask for. Raises `UsageError`."""
        number = RunNumber(run)
        if not self._turn.core.epochs.runs.knows(client, number):
            raise UsageError(f"run {run} was never registered")
        if epoch > MAX_EPOCH:
            raise UsageError(f"epoch {epoch}; the last is {MAX_EPOCH:,}")
        return number, epoch

    def facts(self, clients: int, rows: int = 0) -> dict[str, Any]:
        """Statistics of the server, as plain values; `rows` as for `Loops.facts`."""
        traffic = self._data.location.traffic
        held = held_draws(self._turn.core.epochs, time.monotonic())
        waits = self._turn.core.counters.draws.waits_by_cause()
        return {
            "data_set": self._data.name,
            "address": self._address,
            "process": os.getpid(),
            "uptime_s": time.monotonic() - self._started_s,
            "data_bytes": int(self._data.chunk_rows["file_size"].sum()),
            "clients": clients,
            **self._reports.facts(held, waits, rows),
            **self._turn.core.facts(self._data.mean_bytes, time.monotonic()),
            "held": held,
            "store": None if traffic is None else traffic.to_json(),
            "cluster": None if self._exchange is None else self._exchange.facts(),
        }
