"""A policy is added by its class and its name alone: a state and a real server take it, and all samples come.

This is the recipe of CONTRIBUTING, carried out.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from brand.node.wire.drawing import Announcement
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy, check_number
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.order import Order
from brand.orders.policies.registry import POLICIES
from brand.orders.policies.slots import whole_reads
from brand.testing.node import attached, running_server
from brand.torch import BrandLoader, BrandSampler
from tests.made_orders import STRIPES, order_of
from tests.node.support import drawing
from tests.node.training import draw_all


@dataclass(frozen=True)
class InSequence(Policy):
    """Samples come as they are stored, and each chunk is one read."""

    name: ClassVar[str] = "in sequence"
    kept: int = 0
    """Samples of a chunk that are kept together; 0: none are kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("kept", self.kept, 0, MAX_POSITIONS)

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> EpochPlan:
        """The plan of every epoch."""
        del seed, epoch
        chunks = np.arange(mapping.chunks)
        return EpochPlan(mapping, np.arange(mapping.samples), whole_reads(mapping, chunks * mapping.chunk_size, chunks))

    @property
    def kept_unit(self) -> int | None:
        """As it was given."""
        return self.kept or None


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of `policies` that a policy needs."""
    monkeypatch.setitem(POLICIES, InSequence.name, InSequence)


def test_json_has_its_fields_and_nothing_of_other_policies() -> None:
    """Fields with a default only where they differ from it; anything else is refused."""
    order = Order("set", 100, 8, 7, InSequence(2))
    value = order.to_json()
    assert value == {
        "data_set": "set",
        "samples": 100,
        "chunk_size": 8,
        "group_chunks": 2,
        "seed": 7,
        "protocol": "in sequence",
    }
    assert Order.from_json(value) == Order.from_json(value | {"kept": 0}) == order
    assert Order.from_json(value | {"kept": 3}).to_json() == value | {"kept": 3}
    for wrong in ({"kept": -1}, {"kept": "3"}, {"group_chunks": 14}, {"stripe": 1}, {"refill": "fill_rate"}):
        with pytest.raises(ValueError, match="an order"):
            Order.from_json(value | wrong)
    del value["group_chunks"]
    with pytest.raises(ValueError, match="'in sequence': an order has the fields group_chunks, kept"):
        Order.from_json(value)


@pytest.mark.parametrize("policy", [InSequence(1), InSequence(4, kept=8)], ids=repr)
@pytest.mark.parametrize("memory", [0.3, 1.0])
def test_a_server_delivers_every_sample_once(texts: Path, policy: InSequence, memory: float) -> None:
    """Three epochs, all from memory; what is kept is not read again."""
    order = order_of(texts, policy)
    with running_server(texts, memory=memory) as server, closing(attached(server)) as node:
        for epoch in range(3):
            node.begin(order, 1, Announcement(epoch))
            drawn: list[int] = []
            for first in range(0, order.samples, 24):
                positions = range(first, min(first + 24, order.samples))
                drawn += draw_all(node, order, epoch, positions, owner=os.getpid())
            assert drawn == list(range(order.samples))
        facts = server.facts()
        assert facts["direct"] == 0
        assert bool(facts["memory"]["cached"]) == bool(policy.kept)


def test_a_training_goes_on_with_it_from_a_state(texts: Path) -> None:
    """The sampler and the loader know no policy, either."""
    with running_server(texts, memory=0.5) as server, drawing(texts, server.address) as data_set:
        sampler = BrandSampler(data_set)
        sampler.load_state_dict(sampler.state_dict() | {"order": order_of(texts, InSequence(1)).to_json()})
        drawn = [index for _, indices in BrandLoader(data_set, 50, sampler=sampler) for index in indices.tolist()]
        assert drawn == data_set._source.data.indices(np.arange(len(data_set))).tolist()
        assert sampler.state_dict()["order"]["protocol"] == "in sequence"


def test_a_name_that_is_not_there_is_refused(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without the policy says which ones it has."""
    value = order_of(texts, InSequence(1)).to_json()
    monkeypatch.delitem(POLICIES, InSequence.name)
    with pytest.raises(ValueError, match="order 'in sequence' is none of 'stripes', 'slots'"):
        Order.from_json(value)
    assert Order.from_json(order_of(texts, STRIPES).to_json()).policy == STRIPES
