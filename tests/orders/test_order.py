"""`Order`: the few numbers that fix all epochs, kept as JSON and distrusted when read."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import MAX_NODES
from brand.orders.base.plan import EpochPlan
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.order import MAX_EPOCH, MAX_SEED, Order, renewed
from brand.orders.policies.other_systems import JoaderPolicy, PoolPolicy, plan_pool
from brand.orders.policies.slot_policy import MAX_RANKS, SlotPolicy, plan_slots_across_nodes
from brand.orders.policies.slots import plan_slots
from brand.orders.policies.storage_order import StoragePolicy
from brand.orders.policies.stripe_policy import StripePolicy, plan_stripes
from brand.orders.policies.uniform import UniformPolicy
from tests.orders.models import epochs, orders, reads_of
from tests.rounds import examples

GOOD = Order("set", 1000, 16, 42, StripePolicy(5, stripe=4))
ACROSS = Order("set", 1000, 16, 42, SlotPolicy(5, nodes=3, ranks=6, window=50, remote=40))
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
    assert plan.mapping == order.mapping == Mapping(order.samples, order.chunk_size, order.policy.group_chunks)
    assert plan.sample_of.tolist() == expected.sample_of.tolist()
    assert reads_of(plan) == reads_of(expected)
    assert (plan.requests is None) == (expected.requests is None) == (order.policy.foreseen is None)
    if plan.requests is not None and expected.requests is not None:
        for name in ("positions", "prefetched", "ends"):
            assert getattr(plan.requests, name).tolist() == getattr(expected.requests, name).tolist()


def expected_plan(order: Order, epoch: int) -> EpochPlan:
    """What the protocol's own function makes of the fields."""
    mapping, policy = order.mapping, order.policy
    if isinstance(policy, StripePolicy):
        return plan_stripes(mapping, policy.stripe, order.seed, epoch)
    if isinstance(policy, PoolPolicy):
        return plan_pool(mapping, policy.pool, order.seed, epoch)
    if isinstance(policy, UniformPolicy | JoaderPolicy | StoragePolicy):
        return policy.plan(mapping, order.seed, epoch)
    assert isinstance(policy, SlotPolicy)
    if policy.nodes == 1:
        return plan_slots(mapping, policy.refill, order.seed, epoch)
    across = (policy.nodes, policy.ranks, policy.window, policy.remote)
    return plan_slots_across_nodes(mapping, *across, policy.refill, order.seed, epoch)


BYTES = {
    GOOD: (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, '
        '"protocol": "stripes", "stripe": 4, "refill": "fill_rate", "version": 3}'
    ),
    dataclasses.replace(GOOD, policy=SlotPolicy(5, "random")): (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, '
        '"protocol": "slots", "stripe": 1, "refill": "random"}'
    ),
    ACROSS: (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, '
        '"protocol": "slots", "stripe": 1, "refill": "fill_rate", "nodes": 3, "ranks": 6, "window": 50, "remote": 40}'
    ),
    dataclasses.replace(ACROSS, policy=SlotPolicy(5, nodes=3, ranks=6, remote=40)): (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, '
        '"protocol": "slots", "stripe": 1, "refill": "fill_rate", "nodes": 3, "ranks": 6, "remote": 40}'
    ),
}
"""What version 1 of a state has, to the byte: one flat record, which other versions read."""

OF_BASELINES = {
    dataclasses.replace(GOOD, policy=PoolPolicy(5, 8)): (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, '
        '"protocol": "pool", "pool": 8}'
    ),
    dataclasses.replace(GOOD, policy=UniformPolicy(5)): (
        '{"data_set": "set", "samples": 1000, "chunk_size": 16, "group_chunks": 5, "seed": 42, "protocol": "uniform", '
        '"version": 2}'
    ),
}
"""A later policy writes its own fields."""


@pytest.mark.parametrize("order", [*BYTES, *OF_BASELINES])
def test_json_is_that_of_version_1(order: Order) -> None:
    """To the byte, and back."""
    text = (BYTES | OF_BASELINES)[order]
    assert json.dumps(order.to_json()) == text
    assert Order.from_json(json.loads(text)) == order


@pytest.mark.parametrize("policy", [StripePolicy(5, 4), SlotPolicy(5)], ids=["stripes", "slots"])
def test_a_state_that_knows_of_no_nodes_is_one_of_one_node(policy: StripePolicy | SlotPolicy) -> None:
    """States of older versions lack the fields; the order is the same."""
    order = dataclasses.replace(GOOD, policy=policy)
    value = order.to_json()
    assert not set(OF_NODES) & set(value)
    assert Order.from_json(value | {"nodes": 1, "ranks": 1, "window": 0, "remote": 0}) == order


# -- which records are orders ------------------------------------------------------------------------------------------

POOLED, SINGLE = (order.to_json() for order in OF_BASELINES)
STRIPED, SPREAD = GOOD.to_json(), ACROSS.to_json()
SLOTTED = {name: of for name, of in STRIPED.items() if name != "version"} | {"protocol": "slots", "stripe": 1}

ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (STRIPED, {"stripe": 16}),
    (STRIPED, {"refill": "random"}),
    (STRIPED, {"samples": MAX_POSITIONS, "chunk_size": MAX_POSITIONS, "group_chunks": 1, "stripe": MAX_POSITIONS}),
    (STRIPED, {"seed": MAX_SEED}),
    (STRIPED, {"data_set": ""}),
    (STRIPED, {"group_chunks": 63}),
    (SLOTTED, {"stripe": 4}),
    (SLOTTED, {"stripe": MAX_POSITIONS}),  # version 1 refused more than the size of a chunk; it never wrote it
    (SLOTTED, {"refill": "random"}),
    (SLOTTED, {"window": MAX_POSITIONS, "remote": MAX_POSITIONS}),
    (SLOTTED, {"ranks": 5}),
    (SPREAD, {"nodes": MAX_NODES, "ranks": MAX_RANKS}),
    (POOLED, {"pool": 1}),
    (POOLED, {"pool": 63}),
    (SINGLE, {"group_chunks": 63}),
]
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (STRIPED, {"samples": 0}, "samples=0"),
    (STRIPED, {"samples": -5}, "samples=-5"),
    (STRIPED, {"samples": MAX_POSITIONS + 1}, f"samples={MAX_POSITIONS + 1}"),
    (STRIPED, {"chunk_size": 0}, "chunk_size=0"),
    (STRIPED, {"chunk_size": -1}, "chunk_size=-1"),
    (STRIPED, {"group_chunks": 0}, "group_chunks=0"),
    (STRIPED, {"group_chunks": -1}, "group_chunks=-1"),
    (STRIPED, {"group_chunks": 64}, "group_chunks=64 of an order of 63 chunks"),
    (STRIPED, {"stripe": 0}, "stripe=0"),
    (STRIPED, {"stripe": -1}, "stripe=-1"),
    (STRIPED, {"stripe": 17}, "stripe of 17 samples of chunks of 16"),
    (STRIPED, {"seed": -1}, "seed -1"),
    (STRIPED, {"seed": MAX_SEED + 1}, f"seed {MAX_SEED + 1}"),
    (STRIPED, {"protocol": ""}, "order '' is none of 'stripes', 'slots'"),
    (STRIPED, {"protocol": "strips"}, "order 'strips' is none of 'stripes', 'slots'"),
    (STRIPED, {"refill": "best"}, "refill='best'"),
    (STRIPED, {"nodes": 2, "ranks": 2}, "nodes=2|ranks=2"),
    (STRIPED, {"ranks": 2}, "ranks=2 of an order of stripes, which does not depend on it"),
    (STRIPED, {"window": 1}, "window=1 of an order of stripes"),
    (STRIPED, {"remote": 1}, "remote=1 of an order of stripes"),
    (POOLED, {"pool": 0}, "pool=0"),
    (POOLED, {"pool": 64}, "pool=64 of an order of 63 chunks"),
    (POOLED, {"pool": 8.0}, "pool"),
    (POOLED, {"stripe": 1}, "an order has the fields group_chunks, pool"),
    (SINGLE, {"pool": 8}, "an order has the fields group_chunks"),
    (SINGLE, {"group_chunks": 64}, "group_chunks=64 of an order of 63 chunks"),
    (SLOTTED, {"group_chunks": 64}, "group_chunks=64 of an order of 63 chunks"),
    (SLOTTED, {"stripe": 0}, "stripe=0"),
    (SLOTTED, {"refill": "best"}, "refill 'best'"),
    (SLOTTED, {"nodes": 2}, "ranks=1 .*multiple of 2"),
    (SPREAD, {"nodes": 0}, "nodes=0"),
    (SPREAD, {"nodes": -1}, "nodes=-1"),
    (SPREAD, {"nodes": MAX_NODES + 1}, f"nodes={MAX_NODES + 1}"),
    (SPREAD, {"ranks": 0}, "ranks=0"),
    (SPREAD, {"ranks": -3}, "ranks=-3"),
    (SPREAD, {"ranks": 7}, "ranks=7 .*multiple of 3"),
    (SPREAD, {"ranks": 3 * MAX_RANKS}, f"ranks={3 * MAX_RANKS}"),
    *((SPREAD, {name: n}, f"{name}={n}") for name in ("window", "remote") for n in (-1, MAX_POSITIONS + 1)),
]
WRONG_TYPES: list[tuple[str, Any]] = [
    *((name, wrong) for name in ("data_set", "protocol", "refill") for wrong in (None, 1, b"x", ["x"], True)),
    *(
        (name, wrong)
        for name in ("samples", "chunk_size", "group_chunks", "seed", "stripe", *OF_NODES)
        for wrong in (None, "1", 1.0, True, False, [1], np.int64(1))
    ),
]


@pytest.mark.parametrize(("value", "change"), ACCEPTED)
def test_records_that_are_orders(value: dict[str, Any], change: dict[str, Any]) -> None:
    """An order has what its record says, but for what its protocol does not use."""
    found = Order.from_json(value | change)
    assert Order.from_json(found.to_json()) == found
    unused = {"slots": {"stripe"}, "stripes": {"refill"}}.get(value["protocol"], set())
    for name, each in found.to_json().items():
        assert name in unused or each == (value | change)[name]


@pytest.mark.parametrize(("value", "change", "told"), REFUSED)
def test_a_wrong_value_is_refused_by_name(value: dict[str, Any], change: dict[str, Any], told: str) -> None:
    """The message has the field and the value."""
    with pytest.raises(ValueError, match=told):
        Order.from_json(value | change)


@pytest.mark.parametrize("value", [STRIPED, SLOTTED, SPREAD], ids=["stripes", "slots", "slots across nodes"])
@pytest.mark.parametrize(("name", "wrong"), WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(value: dict[str, Any], name: str, wrong: Any) -> None:
    """The message has the field and what was found; True is no number."""
    with pytest.raises(ValueError, match=rf"^{name} of an order is .*not of type (int|str)$"):
        Order.from_json(value | {name: wrong})


@pytest.mark.parametrize("name", [name for name in GOOD.to_json() if name in ACROSS.to_json()])
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


@pytest.mark.parametrize("version", [1, 4, "2", None])
@pytest.mark.parametrize("good", [GOOD, dataclasses.replace(GOOD, policy=UniformPolicy(5))], ids=["stripes", "uniform"])
def test_an_order_of_another_version_is_refused(good: Order, version: Any) -> None:
    """Its epochs are other ones. An older one is renewed between two epochs; a newer one is always refused."""
    value = good.to_json() | {"version": version}
    with pytest.raises(ValueError, match=f"an order '{good.policy.name}' of version {version}; this is"):
        Order.from_json(value)
    told = {1: r"in which epoch 7 has another order: .* set_epoch\(7\)", 4: "a newer release of Brand: install"}
    with pytest.raises(ValueError, match=told.get(version, "version of an order is .*not of type int")):
        renewed(value, epoch=7, begun=True)
    if version == 1:
        assert Order.from_json(renewed(value, epoch=7, begun=False)) == good
    else:
        with pytest.raises(ValueError, match=told.get(version, "version of an order is .*not of type int")):
            renewed(value, epoch=7, begun=False)
    assert renewed(good.to_json(), epoch=7, begun=True) == good.to_json()


few = st.integers(-1, 5)
RECORDS = st.fixed_dictionaries(
    {
        "data_set": st.just("set"),
        "samples": st.integers(0, 40),
        "chunk_size": few,
        "group_chunks": few,
        "seed": few,
        "protocol": st.sampled_from(["stripes", "slots"]),
        "stripe": few,
        "refill": st.sampled_from(["fill_rate", "random", "best"]),
    },
    optional={"nodes": few, "ranks": st.integers(-1, 9), "window": few, "remote": few},
)


@examples(500)
@given(RECORDS)
def test_a_record_is_an_order_by_the_rules_of_version_1(record: dict[str, Any]) -> None:
    """Every record of all fields is taken or refused as they say; what is taken is planned, and written as it was."""
    record = renewed(record, epoch=0, begun=False)
    if not is_order(**record):
        with pytest.raises(ValueError, match=r"of an order|refill|seed|a stripe"):
            Order.from_json(record)
        return
    order = Order.from_json(record)
    assert sorted(order.plan(0).sample_of.tolist()) == list(range(record["samples"]))
    unused = {"stripe": 1} if record["protocol"] == "slots" else {"refill": "fill_rate"}
    absent = {name for name, default in WITHOUT_NODES.items() if record.get(name) == default}
    assert order.to_json() == {name: value for name, value in (record | unused).items() if name not in absent}


WITHOUT_NODES = {"nodes": 1, "ranks": 1, "window": 0, "remote": 0}


def is_order(
    *, samples: int, chunk_size: int, group_chunks: int, seed: int, protocol: str, stripe: int, refill: str, **more: Any
) -> bool:
    """The rules of version 1."""
    if min(samples, chunk_size, group_chunks, stripe) < 1 or seed < 0 or refill == "best":
        return False
    of_nodes = {name: more.get(name, default) for name, default in WITHOUT_NODES.items()}
    if group_chunks > -(-samples // chunk_size):
        return False
    if protocol == "stripes":
        return stripe <= chunk_size and of_nodes == WITHOUT_NODES
    nodes, ranks, window, remote = of_nodes.values()
    return bool(min(nodes, ranks) >= 1 and ranks % nodes == 0 and min(window, remote) >= 0)


# -- from code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        (StripePolicy, {"group_chunks": 0}),
        (StripePolicy, {"group_chunks": True}),
        (StripePolicy, {"stripe": 0}),
        (StripePolicy, {"stripe": 1.0}),
        (SlotPolicy, {"group_chunks": "1"}),
        (SlotPolicy, {"refill": "best"}),
        (SlotPolicy, {"refill": 1}),
        (SlotPolicy, {"nodes": 0}),
        (SlotPolicy, {"nodes": 2}),
        (SlotPolicy, {"ranks": MAX_RANKS + 1}),
        (SlotPolicy, {"window": -1}),
        (SlotPolicy, {"remote": None}),
    ],
)
def test_a_policy_checks_its_fields(policy: Any, change: dict[str, Any]) -> None:
    """As soon as it is made, before there is an order."""
    with pytest.raises(ValueError, match=r"of an order|refill 'best'"):
        policy(**({"group_chunks": 1} | change))


@pytest.mark.parametrize("policy", [None, 5, "stripes", StripePolicy])
def test_an_order_has_a_policy(policy: Any) -> None:
    """Anything else is refused, a class of policies, too."""
    with pytest.raises(ValueError, match=r"^policy of an order is .*not of type Policy"):
        Order("set", 1000, 16, 0, policy)


def test_a_policy_that_does_not_fit_the_data_set_is_refused() -> None:
    """A stripe longer than a chunk, a group of more chunks than there are."""
    with pytest.raises(ValueError, match="stripe of 17 samples of chunks of 16"):
        dataclasses.replace(GOOD, policy=StripePolicy(5, stripe=17))
    for policy in (StripePolicy(64), SlotPolicy(64)):
        with pytest.raises(ValueError, match="group_chunks=64 of an order of 63 chunks"):
            dataclasses.replace(GOOD, policy=policy)


def test_what_the_server_asks_of_a_policy() -> None:
    """Whole stripes may be kept, and nothing of `slots`; only `slots` of several nodes depend on nodes and ranks."""
    assert (GOOD.policy.kept_unit, GOOD.policy.foreseen) == (4, None)
    assert (ACROSS.policy.kept_unit, dataclasses.astuple(ACROSS.policy.foreseen or GOOD.policy)) == (None, (3, 6))
    assert SlotPolicy(5, ranks=6).foreseen is None


def test_the_largest_numbers_of_many_nodes() -> None:
    """The limits themselves are within, and planned."""
    policy = SlotPolicy(5, nodes=MAX_NODES, ranks=MAX_RANKS, window=MAX_POSITIONS, remote=MAX_POSITIONS)
    largest = dataclasses.replace(ACROSS, policy=policy)
    assert sorted(largest.plan(0).sample_of.tolist()) == list(range(1000))


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
