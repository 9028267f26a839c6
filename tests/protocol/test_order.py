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
from brand.protocol.order import MAX_EPOCH, Order
from brand.protocol.slots import plan_slots
from brand.protocol.stripes import plan_stripes
from tests.protocol.models import epochs, orders, reads_of

GOOD = Order("set", 1000, 16, 5, 42, "stripes", 4)


@given(orders())
def test_an_order_survives_json(order: Order) -> None:
    """To text and back, every field is the same and so is the order."""
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


@given(orders(), epochs)
def test_an_order_plans_what_its_protocol_plans(order: Order, epoch: int) -> None:
    """The plan is that of the protocol's own function."""
    if order.protocol == "slots":
        expected = plan_slots(order.mapping, order.refill, order.seed, epoch)  # type: ignore[arg-type]
    else:
        expected = plan_stripes(order.mapping, order.stripe, order.seed, epoch)
    plan = order.plan(epoch)
    assert plan.mapping == order.mapping == Mapping(order.samples, order.chunk_size, order.group_chunks)
    assert plan.sample_of.tolist() == expected.sample_of.tolist()
    assert reads_of(plan) == reads_of(expected)


def test_plain_values_name_every_field() -> None:
    """A state has these fields, by these names: other versions read it."""
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


def test_defaults() -> None:
    """Without more than sizes it is protocol `stripes`, seed 0."""
    assert Order("set", 1000, 16, 5) == Order("set", 1000, 16, 5, 0, "stripes", 1, "fill_rate")


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
        for name in ("samples", "chunk_size", "group_chunks", "seed", "stripe")
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


def made_with(make: str, name: str, value: Any) -> Order:
    """The good order with one other value, made by the class or from plain values."""
    if make == "from_json":
        return Order.from_json({**GOOD.to_json(), name: value})
    return dataclasses.replace(GOOD, **{name: value})


@pytest.mark.parametrize("name", GOOD.to_json())
def test_a_missing_field_is_refused(name: str) -> None:
    """An order lacks nothing; the message lists what it has."""
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
