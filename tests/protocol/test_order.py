"""`Order`: the few numbers that fix all epochs, kept as JSON and distrusted when read."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from brand.protocol.mapping import Mapping
from brand.protocol.order import MAX_EPOCH, MAX_RANKS, Order
from brand.protocol.owners import MAX_NODES
from brand.protocol.plan import Plan
from brand.protocol.prefetch import plan_slots_across_nodes
from brand.protocol.slots import Refill, plan_slots
from brand.protocol.stripes import plan_stripes
from brand.protocol.tickets import MAX_POSITIONS
from tests.protocol.models import epochs, orders, reads_of

GOOD = Order("set", 1000, 16, 5, 42, "stripes", 4)
ACROSS = Order("set", 1000, 16, 5, 42, "slots", nodes=3, ranks=6, window=50, remote=40)
OF_NODES = ("nodes", "ranks", "window", "remote")


@given(orders())
def test_an_order_survives_json(order: Order) -> None:
    """To text and back, every field is the same and so is the order."""
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


@given(orders(), epochs)
def test_an_order_plans_what_its_protocol_plans(order: Order, epoch: int) -> None:
    """The plan is that of the protocol's own function."""
    expected = expected_plan(order, epoch)
    plan = order.plan(epoch)
    assert plan.mapping == order.mapping == Mapping(order.samples, order.chunk_size, order.group_chunks)
    assert plan.sample_of.tolist() == expected.sample_of.tolist()
    assert reads_of(plan) == reads_of(expected)
    assert (plan.requests is None) == (expected.requests is None) == (order.nodes == 1)
    if plan.requests is not None and expected.requests is not None:
        for name in ("positions", "prefetched", "ends"):
            assert getattr(plan.requests, name).tolist() == getattr(expected.requests, name).tolist()


def expected_plan(order: Order, epoch: int) -> Plan:
    """What the protocol's own function makes of the fields."""
    if order.protocol == "stripes":
        return plan_stripes(order.mapping, order.stripe, order.seed, epoch)
    refill: Refill = order.refill  # type: ignore[assignment]
    if order.nodes == 1:
        return plan_slots(order.mapping, refill, order.seed, epoch)
    across = (order.nodes, order.ranks, order.window, order.remote)
    return plan_slots_across_nodes(order.mapping, *across, refill, order.seed, epoch)


def test_plain_values_name_every_field() -> None:
    """A state has these fields, by these names: other versions read it, also those that know of one node only."""
    assert GOOD.to_json() == {
        "data_set": "set",
        "samples": 1000,
        "chunk_size": 16,
        "group_chunks": 5,
        "seed": 42,
        "protocol": "stripes",
        "stripe": 4,
        "refill": "fill_rate",
    }


def test_plain_values_across_nodes_name_them() -> None:
    """The order of several nodes has four fields more, and of these only what is not as on one node."""
    more = {"protocol": "slots", "stripe": 1, "nodes": 3, "ranks": 6, "window": 50, "remote": 40}
    assert ACROSS.to_json() == GOOD.to_json() | more
    without = dataclasses.replace(ACROSS, window=0)
    assert without.to_json() == {name: value for name, value in ACROSS.to_json().items() if name != "window"}


def test_defaults() -> None:
    """Without more than sizes it is protocol `stripes`, seed 0, on one node."""
    assert Order("set", 1000, 16, 5) == Order("set", 1000, 16, 5, 0, "stripes", 1, "fill_rate", 1, 1, 0, 0)


@pytest.mark.parametrize("protocol", ["stripes", "slots"])
def test_a_state_that_knows_of_no_nodes_is_one_of_one_node(protocol: str) -> None:
    """States of older versions lack the fields; the order is the same."""
    value = dataclasses.replace(GOOD, protocol=protocol).to_json()
    assert not set(OF_NODES) & set(value)
    order = Order.from_json(value)
    assert (order.nodes, order.ranks, order.window, order.remote) == (1, 1, 0, 0)
    assert order == Order.from_json(value | {"nodes": 1, "ranks": 1, "window": 0, "remote": 0})


@pytest.mark.parametrize("name", OF_NODES)
def test_stripes_do_not_depend_on_nodes(name: str) -> None:
    """So an order of them that says otherwise is refused, by the name of the field."""
    wrong = {"nodes": 2, "ranks": 2, "window": 1, "remote": 1}[name]
    with pytest.raises(ValueError, match=f"^{name}={wrong} .*stripes"):
        Order.from_json(GOOD.to_json() | {"ranks": wrong if name == "nodes" else 1, name: wrong})


WRONG_OF_NODES: list[tuple[str, int, str]] = [
    ("nodes", 0, "nodes=0"),
    ("nodes", -1, "nodes=-1"),
    ("nodes", MAX_NODES + 1, f"nodes={MAX_NODES + 1}"),
    ("ranks", 0, "ranks=0"),
    ("ranks", -3, "ranks=-3"),
    ("ranks", 7, "ranks=7 .*multiple of 3"),
    ("ranks", 3 * MAX_RANKS, f"ranks={3 * MAX_RANKS}"),
    *((name, wrong, f"{name}={wrong}") for name in ("window", "remote") for wrong in (-1, MAX_POSITIONS + 1)),
]


@pytest.mark.parametrize("make", ["Order", "from_json"])
@pytest.mark.parametrize(("name", "wrong", "told"), WRONG_OF_NODES)
def test_a_wrong_number_of_many_nodes_is_refused_by_name(make: str, name: str, wrong: int, told: str) -> None:
    """The message has the field and the value, from code and from JSON."""
    with pytest.raises(ValueError, match=told):
        made_with(make, name, wrong, ACROSS)


def test_the_largest_numbers_of_many_nodes() -> None:
    """The limits themselves are within, and planned."""
    largest = dataclasses.replace(ACROSS, nodes=MAX_NODES, ranks=MAX_RANKS, window=MAX_POSITIONS, remote=MAX_POSITIONS)
    assert sorted(largest.plan(0).sample_of.tolist()) == list(range(1000))


WRONG_VALUES: list[tuple[str, Any, str]] = [
    ("samples", 0, "samples=0"),
    ("samples", -5, "samples=-5"),
    ("group_chunks", 0, "group_chunks=0"),
    ("group_chunks", -1, "group_chunks=-1"),
    ("stripe", 0, "stripe of 0"),
    ("stripe", -1, "stripe of -1"),
    ("stripe", 17, "stripe of 17"),
    ("seed", -1, "seed -1"),
    ("seed", 1 << 128, f"seed {1 << 128}"),
    ("protocol", "", "protocol ''"),
    ("protocol", "strips", "protocol 'strips'"),
    ("refill", "best", "refill 'best'"),
]
WRONG_TYPES: list[tuple[str, Any]] = [
    *((name, wrong) for name in ("data_set", "protocol", "refill") for wrong in (None, 1, b"x", ["x"], True)),
    *(
        (name, wrong)
        for name in ("samples", "chunk_size", "group_chunks", "seed", "stripe", *OF_NODES)
        for wrong in (None, "1", 1.0, True, False, [1], np.int64(1))
    ),
]


@pytest.mark.parametrize("make", ["Order", "from_json"])
@pytest.mark.parametrize(("name", "wrong", "told"), WRONG_VALUES)
def test_a_wrong_value_is_refused_by_name(make: str, name: str, wrong: Any, told: str) -> None:
    """The message has the field and the value, from code and from JSON."""
    with pytest.raises(ValueError, match=told):
        made_with(make, name, wrong)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_wrong_chunk_size_is_refused_by_name(wrong: int) -> None:
    """The message has the field and the value."""
    with pytest.raises(ValueError, match=f"chunk_size.*{wrong}"):
        Order("set", 1000, wrong, 5)


@pytest.mark.parametrize("make", ["Order", "from_json"])
@pytest.mark.parametrize(("name", "wrong"), WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(make: str, name: str, wrong: Any) -> None:
    """The message has the field and what was found; True is no number."""
    with pytest.raises(ValueError, match=rf"^{name} of an order is .*not of type (int|str)$"):
        made_with(make, name, wrong)


def made_with(make: str, name: str, value: Any, order: Order = GOOD) -> Order:
    """A good order with one other value, made by the class or from plain values."""
    if make == "from_json":
        return Order.from_json({**order.to_json(), name: value})
    return dataclasses.replace(order, **{name: value})


@pytest.mark.parametrize("name", GOOD.to_json())
def test_a_missing_field_is_refused(name: str) -> None:
    """An order lacks nothing that orders always had; the message lists what it has."""
    value = GOOD.to_json()
    del value[name]
    with pytest.raises(ValueError, match=f"order has the fields .*{name}"):
        Order.from_json(value)


@pytest.mark.parametrize("value", [None, 1, "order", [], [1], {}, {**GOOD.to_json(), "more": 1}, {1: 2}])
def test_something_else_is_refused(value: Any) -> None:
    """What is no order, or has more fields than one, is a ValueError."""
    with pytest.raises(ValueError, match="order has the fields"):
        Order.from_json(value)


def test_any_mapping_will_do() -> None:
    """`from_json` takes read-only mappings too."""
    assert Order.from_json(MappingProxyType(GOOD.to_json())) == GOOD


@pytest.mark.parametrize("epoch", [-1, MAX_EPOCH + 1, 1 << 64])
def test_epochs_that_no_ticket_holds_are_refused(epoch: int) -> None:
    """The message has the epoch."""
    with pytest.raises(ValueError, match=f"epoch {epoch}"):
        GOOD.plan(epoch)


def test_the_last_epoch_is_planned() -> None:
    """The largest epoch is one."""
    assert sorted(GOOD.plan(MAX_EPOCH).sample_of.tolist()) == list(range(1000))


def test_the_data_set_is_no_part_of_the_shuffle() -> None:
    """The id only says to what the order belongs; two sets of equal sizes are shuffled alike."""
    assert GOOD.plan(1).sample_of.tolist() == dataclasses.replace(GOOD, data_set="b").plan(1).sample_of.tolist()


def test_an_order_is_a_value() -> None:
    """Equal orders are equal and hash alike, and none can be changed."""
    assert {GOOD, dataclasses.replace(GOOD)} == {GOOD}
    with pytest.raises(dataclasses.FrozenInstanceError):
        GOOD.seed = 1  # type: ignore[misc]
