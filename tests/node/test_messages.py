"""Messages: each is what was packed, and whatever else comes is a `ProtocolError`, never another one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from brand.errors import ProtocolError, UsageError
from brand.node.wire import looping, messages
from brand.node.wire.client_messages import (
    ClientBegins,
    ClientJoins,
    ClientOrders,
    ClientRegisters,
    ClientReleases,
    Deliver,
    Joined,
    Number,
    Numbers,
    OrderDecided,
    OrderFound,
    Places,
    PositionsDivided,
    Request,
    pack,
    unpack,
)
from brand.node.wire.draw_messages import Held, Lease, pack_lease, unpack_draw, unpack_lease, unpack_taken
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import LoopReport
from brand.node.wire.messages import HEAD, MAX_DRAW, MAX_REPLICAS, MOST_PLACES, PREPARED, Chains, Kind
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.orders.base.joins import Join, Joins
from brand.orders.base.part import Subset
from brand.orders.order import Order
from brand.orders.policies.uniform import UniformPolicy
from tests.node.packing import pack_begin, pack_draw, pack_release
from tests.rounds import examples

REPLIES = (Number, OrderFound, PositionsDivided, Deliver, Joined, OrderDecided, Numbers, Places)
U32 = st.integers(0, (1 << 32) - 1)


def body_of(message: bytes, kind: Kind) -> bytes:
    """The body of a message of this kind, which it must be."""
    found, length = messages.parse_head(message[: HEAD.size], 1 << 30)
    assert found == kind
    assert len(message) == HEAD.size + length
    return message[HEAD.size :]


@given(U32, U32, st.integers(0, (1 << 64) - 1), st.integers(1, MAX_REPLICAS), U32, st.integers(0, 99), st.data())
def test_begin(run: int, epoch: int, position: int, replicas: int, batch: int, processes: int, data: Any) -> None:
    """`BEGIN` there and back; a rank is below the number of ranks. 0 processes: as many as before, and only then it may
    have drawn.
    """
    rank, front = data.draw(st.tuples(st.integers(0, replicas - 1), st.integers(0, (1 << 64) - 1)))
    announced = Announcement(epoch, position, rank, replicas, batch, processes, 0 if processes else front)
    begins = ClientBegins(NO_CLIENT, RunNumber(run), announced)
    assert unpack(ClientBegins, body_of(pack(begins), Kind.BEGIN)) == begins
    for wrong in ((replicas, replicas), (0, 0), (rank, MAX_REPLICAS + 1), (rank, replicas, batch, MAX_REPLICAS + 1)):
        with pytest.raises(ProtocolError, match="rank"):
            unpack(ClientBegins, body_of(pack_begin(run, epoch, position, *wrong), Kind.BEGIN))
    with pytest.raises(ProtocolError, match="has fetched"):
        unpack(ClientBegins, body_of(pack_begin(run, epoch, position, rank, replicas, 0, 1, front=1), Kind.BEGIN))


@given(U32, U32, st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=50))
def test_draw(run: int, epoch: int, positions: list[int]) -> None:
    """`DRAW` there and back, whatever the positions are."""
    message = pack_draw(run, epoch, np.array(positions, np.int64))
    key, found = unpack_draw(body_of(message, Kind.DRAW))
    assert (key, found.tolist()) == ((run, epoch), positions)


@pytest.mark.parametrize("samples", [1, 7, 9, 12_000_000])
def test_an_order_of_a_part(samples: int) -> None:
    """There and back with the bits of the part, which fit into a request for any data set."""
    order = Order("set", samples, 1, 0, UniformPolicy(1), Subset.of(np.arange(samples) % 3 == 0))
    registers = ClientRegisters(NO_CLIENT, order, "run", tag=3)
    message = pack(registers)
    assert len(message) - HEAD.size <= messages.longest_order(samples)
    assert unpack(ClientRegisters, body_of(message, Kind.ORDER)) == registers


@pytest.mark.parametrize("bits", [None, 5, "", "AA==", "gA==", "AQE=", "?"])
def test_an_order_with_other_bits(bits: Any) -> None:
    """Without the part that it names, with another one, and with none at all: refused."""
    order = Order("set", 7, 1, 0, UniformPolicy(1), Subset.of(np.arange(7) % 3 == 0))
    with pytest.raises((ValueError, TypeError)):
        messages.unpack_order(messages.order_facts(order) | {"bits": bits})


def test_a_draw_has_so_many_positions() -> None:
    """From one up to a limit, and fits into a message."""
    longest = pack_draw(0, 0, np.arange(MAX_DRAW))
    assert len(longest) - HEAD.size <= messages.MAX_REQUEST
    unpack_draw(body_of(longest, Kind.DRAW))
    for count in (0, MAX_DRAW + 1):
        with pytest.raises(ProtocolError):
            unpack_draw(body_of(pack_draw(0, 0, np.arange(count)), Kind.DRAW))


@st.composite
def leases(draw: Any) -> tuple[Any, ...]:
    """Number, places, state, counts, pages, chains of prepared samples that belong together."""
    state = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 2, 5, 6]), max_size=20))
    places = draw(st.lists(st.integers(0, 1 << 40), min_size=len(state), max_size=len(state)))
    here = sum(s > 0 for s in state)
    counts = draw(st.lists(st.integers(1, 5), min_size=here, max_size=here))
    pages = draw(st.lists(st.integers(0, 1 << 30), min_size=sum(counts), max_size=sum(counts)))
    kinds = (np.int64, np.uint8, np.uint32, np.int32)
    columns = (np.array(c, k) for c, k in zip((places, state, counts, pages), kinds, strict=True))
    wants = draw(st.integers(1, 3)) * sum(s >= PREPARED for s in state)
    more = np.array(draw(st.lists(st.integers(1, 5), min_size=wants, max_size=wants)), np.uint32)
    chains = Chains(more, np.arange(more.sum(), dtype=np.int32))
    held = Held(*(draw(st.integers(0, (1 << 32) - 1)) / 1e6 for _ in Held._fields))
    return draw(st.integers(0, (1 << 64) - 1)), *columns, chains, draw(st.integers(0, 32)), held


@pytest.mark.slow
@given(leases())
def test_lease(lease: tuple[Any, ...]) -> None:
    """`LEASE` there and back."""
    found = unpack_lease(body_of(pack_lease(Lease(*lease)), Kind.LEASE))
    assert found.number == lease[0]
    assert found.joins == lease[-2]
    assert found.held == pytest.approx(lease[-1], abs=2e-6)
    for name, column in zip(("places", "state", "counts", "pages"), lease[1:5], strict=True):
        assert getattr(found, name).tolist() == column.tolist()
    assert found.prepared.counts.tolist() == lease[5].counts.tolist()
    assert found.prepared.pages.tolist() == lease[5].pages.tolist()


@pytest.mark.slow
@given(leases(), st.data())
def test_a_lease_that_was_changed(lease: tuple[Any, ...], data: Any) -> None:
    """Cut, longer, or with other bytes: refused, or its parts still add up."""
    body = bytearray(body_of(pack_lease(Lease(*lease)), Kind.LEASE))
    what = data.draw(st.sampled_from(["cut", "longer", "byte"]))
    if what == "cut":
        del body[data.draw(st.integers(0, max(0, len(body) - 1))) :]
    elif what == "longer":
        body += data.draw(st.binary(min_size=1, max_size=9))
    else:
        at = data.draw(st.integers(0, min(40, len(body)) - 1))
        body[at] ^= data.draw(st.integers(1, 255))
    check_lease(bytes(body))


@given(st.binary(max_size=120))
@example(b"")
@example(bytes(44))
@example(struct.pack("<QIIIII4I", 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, (1 << 32) - 1, 0, *[0] * 4))
@example(struct.pack("<QIIIII4I", 1, 0, 1 << 31, 0, 0, 0, *[0] * 4))
@example(struct.pack("<QIIIII4I", 1, 0, 0, 1, 0, 0, *[0] * 4) + bytes(4))
def test_any_bytes_as_a_lease(body: bytes) -> None:
    """Refused, or its parts add up."""
    check_lease(body)


def check_lease(body: bytes) -> None:
    """What a client may take for granted."""
    try:
        lease = unpack_lease(body)
    except ProtocolError:
        return
    assert len(lease.places) == len(lease.state)
    assert len(lease.counts) == np.count_nonzero(lease.state)
    assert len(lease.pages) == lease.counts.sum(dtype=np.int64)
    assert (lease.counts > 0).all()
    prepared = lease.prepared
    assert len(prepared.pages) == prepared.counts.sum(dtype=np.int64)
    ready = np.count_nonzero(lease.state & PREPARED)
    assert len(prepared) % ready == 0 < len(prepared) if ready else not len(prepared)
    arrays = (lease.places, lease.state, lease.counts, lease.pages, prepared.counts, prepared.pages)
    assert 44 + sum(array.nbytes for array in arrays) == len(body)


@given(st.integers(0, (1 << 64) - 1), st.booleans(), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5))
def test_release(number: int, checked: bool, wrong: list[int]) -> None:
    """`RELEASE` there and back."""
    message = pack_release(number, checked=checked, wrong=np.array(wrong, np.int64))
    found = unpack(ClientReleases, body_of(message, Kind.RELEASE))
    assert (found.lease, found.checked, np.asarray(found.wrong).tolist()) == (number, checked, wrong)


def test_joins() -> None:
    """`JOINS` there and back, in both directions."""
    joins = Joins((Join(0, 3, 5120, 1024), Join(800, 4, 17, 0)), 4)
    joined, known = Joined(NO_CLIENT, joins), ClientJoins(NO_CLIENT, (RunNumber(7), 2), joins)
    assert unpack(Joined, body_of(pack(joined), Kind.JOINS)) == joined
    assert unpack(ClientJoins, body_of(pack(known), Kind.JOINS)) == known
    with pytest.raises(ProtocolError, match="ascending"):
        unpack(Joined, body_of(pack(joined), Kind.JOINS) + bytes(32))


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5), *[st.integers(0, (1 << 64) - 1)] * 3)
def test_decided(places: list[int], first: int, sure: int, wanted: int) -> None:
    """`DECIDED` there and back, in both directions."""
    some = np.array(places, np.int32)
    message = pack(ClientOrders(NO_CLIENT, (RunNumber(7), 2), first, some, sure, wanted))
    found = unpack(ClientOrders, body_of(message, Kind.DECIDED))
    assert (found.key, found.first, found.places.tolist()) == ((7, 2), first, places)
    assert (found.sure, found.wanted) == (sure, wanted)
    decided = unpack(OrderDecided, body_of(pack(OrderDecided(NO_CLIENT, first, some)), Kind.DECIDED))
    assert (decided.decided, decided.places.tolist()) == (first, places)
    with pytest.raises(ProtocolError, match="places of"):
        unpack(OrderDecided, bytes(8 + 4 * (MOST_PLACES + 1)))


@pytest.mark.parametrize(
    "unpack",
    [
        unpack_draw,
        unpack_taken,
        *(partial(unpack, cls) for cls in (*get_args(Request), *REPLIES)),
    ],
)
@given(body=st.binary(max_size=60))
@examples(60)
@example(body=b"{}")
def test_any_bytes_as_a_request(unpack: Callable[[bytes], Any], body: bytes) -> None:
    """Refused or taken; no other error. An order that does not fit the data set is wrong use of a client."""
    with suppress(ProtocolError, UsageError):
        unpack(body)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_json(value: dict[str, Any]) -> None:
    """Objects there and back."""
    assert messages.unpack_json(body_of(messages.pack_json(Kind.STATS, value), Kind.STATS)) == value


TALLIES = st.lists(st.tuples(st.sampled_from(looping.ALL), st.floats(0, 200), st.floats(0, 200)), max_size=8)
WAITINGS = st.one_of(st.none(), st.builds(looping.Waiting, U32, st.floats(0, 1e9), st.sampled_from(looping.ALL)))


@given(TALLIES, WAITINGS, WAITINGS, U32, U32)
def test_loop(steps: list[tuple[str, float, float]], worst: Any, now: Any, epoch: int, step: int) -> None:
    """`LOOP` there and back."""
    tally = looping.StepTally()
    for cause, wait_s, trained_s in steps:
        tally.count(cause, wait_s, wait_s + trained_s, samples=step)
    extent = looping.IterationExtent(epoch, 2 * epoch, step)
    report = LoopReport("run", 1, 3, epoch, step, 8 * step, extent, tally, worst, now)
    found = unpack(LoopReport, body_of(pack(report), Kind.LOOP))
    assert replace(found, tally=tally) == report
    assert (found.tally.seconds, found.tally.waits, found.tally.samples) == (tally.seconds, tally.waits, tally.samples)


@pytest.mark.slow
@given(st.data())
def test_a_loop_that_was_changed(data: Any) -> None:
    """Refused or taken; no other error, and what is taken can be added up."""
    tally = looping.StepTally()
    tally.count("storage", 0.5, 1.0)
    extent = looping.IterationExtent(0, 100, 50)
    report = LoopReport("run", 1, 3, 0, 7, 14, extent, tally, looping.Waiting(6, 0.5, "storage"))
    value = json.loads(body_of(pack(report), Kind.LOOP))
    name = data.draw(st.sampled_from(sorted(value)))
    inner = data.draw(st.one_of(VALUES, st.just({"storage": data.draw(VALUES)}), st.just({"storage": [0, [[-1, 1]]]})))
    value[name] = inner
    with suppress(ProtocolError):
        looping.StepTally().add(unpack(LoopReport, json.dumps(value).encode()).tally)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=40), VALUES.map(lambda value: json.dumps(value).encode())))
@example(b"[]")
@example(b'"x"')
@example(b"{")
@example(b"\xff\xfe{}")
@example(b'{"a":' * 100_000)
@example(b'{"a":' + b"1" * 5000 + b"}")
@example("{}".encode("utf-16"))
def test_any_bytes_as_json(body: bytes) -> None:
    """An object, or refused."""
    with suppress(ProtocolError):
        assert isinstance(messages.unpack_json(body), dict)


@given(U32, st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 1 << 32))
@example(5, Kind.DRAW, messages.VERSION, 5)
@example(6, Kind.DRAW, messages.VERSION, 5)
def test_heads(length: int, kind: int, version: int, limit: int) -> None:
    """A kind that there is, of this version, not too long; or refused."""
    good = version == messages.VERSION and kind in list(Kind) and length <= limit
    head = HEAD.pack(length, kind, version)
    if good:
        assert messages.parse_head(head, limit) == (kind, length)
    else:
        with pytest.raises(ProtocolError):
            messages.parse_head(head, limit)


@given(st.lists(st.binary(max_size=20), max_size=4))
def test_a_frame_is_its_parts(parts: list[bytes]) -> None:
    """Head, then the parts side by side."""
    assert body_of(messages.frame(Kind.STATS, *parts), Kind.STATS) == b"".join(parts)
