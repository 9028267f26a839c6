"""How much can wait in a window of planned batches? What memory has beside mixing, and all where everything fits."""

from __future__ import annotations

import pytest

from brand.node.setup.choose import Facts, choose_order, choose_room

FACTS = Facts("0" * 32, 100_000, 64, 10_000.0, 512 << 10)


def room(share: float | None, memory: float | None = None) -> int:
    """Of the default order with so much memory."""
    order = choose_order(FACTS, 0, "stripes", share, memory)
    return choose_room(FACTS, order, share, memory)


def test_all_samples_have_room_where_all_fit() -> None:
    """By share of a running server, or by memory."""
    assert room(1.0) == room(3.0) == room(None, 1.0) == FACTS.samples


@pytest.mark.parametrize("share", [0.07, 0.1, 0.25, 0.5, 0.9])
def test_what_is_left_beside_mixing_has_room(share: float) -> None:
    """Rounded down by a third at most, and nearly the same for nearly the same memory."""
    order = choose_order(FACTS, 0, "stripes", share, None)
    left = share * FACTS.samples - order.policy.held(order.mapping)
    assert left * 2 / 3 - 1 <= room(share) <= left
    assert room(share) == pytest.approx(room(None, share), rel=0.51)


def test_there_is_always_room_for_one() -> None:
    """Where memory is smaller than what is mixed."""
    assert room(0.0001) == 1
