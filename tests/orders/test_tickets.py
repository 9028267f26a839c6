"""Tickets: every draw of every epoch is an int of its own, which no index is."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.base.tickets import (
    MAX_POSITIONS,
    TAGS,
    TICKET,
    TICKETS_END,
    positions_of,
    tag_and_epoch,
    tickets,
    tickets_of,
)
from brand.orders.order import MAX_EPOCH

tags = st.integers(0, TAGS - 1)
all_epochs = st.integers(0, MAX_EPOCH)
all_positions = st.lists(st.integers(0, MAX_POSITIONS - 1), min_size=1, max_size=20)


@pytest.mark.slow
@given(tags, all_epochs, all_positions)
def test_a_ticket_tells_tag_epoch_and_position(tag: int, epoch: int, positions: list[int]) -> None:
    """What went in comes out, for every ticket of an array."""
    made = tickets(tag, epoch, np.array(positions, np.int64))
    assert made.dtype == np.int64
    assert positions_of(made).tolist() == positions
    assert {tag_and_epoch(ticket) for ticket in made.tolist()} == {(tag, epoch)}


@pytest.mark.slow
@given(tags, all_epochs, all_positions)
def test_a_ticket_is_larger_than_any_index(tag: int, epoch: int, positions: list[int]) -> None:
    """Every ticket is above 2**48, where no data set has an index, below the end of tickets, and fits int64."""
    made = tickets(tag, epoch, np.array(positions, np.int64)).tolist()
    assert all(2**48 < TICKET <= ticket < TICKETS_END < 2**63 for ticket in made)


@pytest.mark.parametrize("tag", [0, 1, TAGS - 1])
@pytest.mark.parametrize("epoch", [0, 1, MAX_EPOCH])
def test_the_corners_are_tickets_too(tag: int, epoch: int) -> None:
    """First and last tag, epoch and position, laid out bit by bit as documented."""
    corners = [0, 1, 2**31 - 1, 2**31, MAX_POSITIONS - 1]
    made = tickets(tag, epoch, np.array(corners, np.int64))
    assert made.tolist() == [int(f"01{tag:014b}{epoch:016b}{position:032b}", 2) for position in corners]
    assert positions_of(made).tolist() == corners


def test_the_largest_ticket_is_just_below_the_end() -> None:
    """Last tag, epoch and position make the last ticket there is; first ones make the first."""
    assert tickets(TAGS - 1, MAX_EPOCH, np.array([MAX_POSITIONS - 1])).tolist() == [TICKETS_END - 1]
    assert tickets(0, 0, np.array([0])).tolist() == [TICKET]


def test_no_two_draws_share_a_ticket() -> None:
    """Tickets of different tags, epochs and positions are all different."""
    made = [tickets(tag, epoch, np.arange(10)) for tag in range(0, TAGS, 999) for epoch in (0, 1, 2, MAX_EPOCH)]
    assert len(set(np.concatenate(made).tolist())) == 10 * len(made)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_positions_may_be_of_any_int_type(dtype: type[np.integer[np.typing.NBitBase]]) -> None:
    """The tickets are the same int64 for all types of positions."""
    made = tickets(3, 5, np.array([0, 7, 2**31 - 1], dtype))
    assert made.dtype == np.int64
    assert made.tolist() == tickets(3, 5, np.array([0, 7, 2**31 - 1])).tolist()


def test_tickets_of_several_orders_are_those_of_each() -> None:
    """Of a mixture: the tags, epochs and positions of its members."""
    tags, epochs, positions = (
        np.array(each) for each in ([5, TAGS - 1, 5], [0, MAX_EPOCH, 9], [1, MAX_POSITIONS - 1, 3])
    )
    facts = zip(tags.tolist(), epochs.tolist(), positions, strict=True)
    expected = [int(tickets(tag, epoch, position[None])[0]) for tag, epoch, position in facts]
    assert tickets_of(tags, epochs, positions).tolist() == expected


def test_the_shape_stays() -> None:
    """Tickets of a table of positions, also of none, have its shape."""
    assert tickets(0, 0, np.arange(6).reshape(2, 3)).shape == (2, 3)
    assert positions_of(tickets(0, 0, np.arange(0))).shape == (0,)


def test_a_ticket_may_go_through_lists_and_pickles() -> None:
    """As a plain int, as a number of numpy and after a pickle round trip it says the same."""
    (made,) = tickets(9, 1234, np.array([56]))
    for ticket in (made, int(made), pickle.loads(pickle.dumps(made)), np.array([int(made)])[0]):
        assert tag_and_epoch(int(ticket)) == tag_and_epoch(ticket) == (9, 1234)
        assert positions_of(np.array([ticket])).tolist() == [56]


def test_tickets_sort_as_the_draws_come() -> None:
    """Within a tag, later epochs and positions have larger tickets."""
    made = np.concatenate([tickets(2, epoch, np.arange(100)) for epoch in range(5)])
    assert (np.diff(made) > 0).all()
