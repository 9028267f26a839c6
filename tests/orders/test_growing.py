"""An order that grows: what is decided stands, what is open comes exactly once, whatever is decided in which pieces."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from brand.orders.base.mapping import Mapping
from brand.orders.base.part import Subset
from brand.orders.joader.growing import Growing
from tests.rounds import examples


def check(growing: Growing, decided: list[int], part: set[int]) -> None:
    """It is as the obvious model: a list of what is decided, and a set of what is open."""
    count, samples = len(decided), len(growing.position_of)
    assert growing.decided == count
    assert growing.complete == (count == len(part))
    assert growing.sample_of[:count].tolist() == decided
    assert set(growing.sample_of[count:].tolist()) == part - set(decided)
    assert set(np.flatnonzero(growing.open()).tolist()) == part - set(decided)
    assert growing.position_of[growing.sample_of].tolist() == list(range(len(part)))
    every = np.arange(samples)
    assert (growing.position_of < 0).tolist() == [place not in part for place in range(samples)]
    drawn = np.array(sorted(part))
    positions = growing.positions(every[drawn]).tolist()
    assert positions == [decided.index(place) if place in decided else np.inf for place in drawn.tolist()]


@given(st.data())
@examples(150)
def test_it_is_a_list_of_the_decided_and_a_set_of_the_open(data: st.DataObject) -> None:
    """Decided, skipped, said by others and begun anew, in any order."""
    samples = data.draw(st.integers(1, 30))
    part = data.draw(st.sets(st.integers(0, samples - 1), min_size=1))
    mask = np.isin(np.arange(samples), sorted(part))
    mapping = Mapping(samples, 4, 1)
    growing = Growing.of(mapping, None if mask.all() else Subset.of(mask))
    decided: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        left = sorted(part - set(decided))
        match data.draw(st.sampled_from(["decide", "decide", "agree", "skip", "restart"])):
            case "decide":
                some = data.draw(st.lists(st.sampled_from(left), unique=True)) if left else []
                growing.decide(np.array(some, np.int32))
                decided += some
            case "skip":
                position = data.draw(st.integers(0, len(part)))
                growing.skip_to(position)
                decided += growing.sample_of[len(decided) : position].tolist()
            case "restart":
                growing.restart()
                decided = []
            case "agree":
                first = data.draw(st.integers(0, len(decided)))
                said = decided[first : data.draw(st.integers(first, len(decided)))]
                said += data.draw(st.lists(st.sampled_from(range(samples)), max_size=len(part) - first - len(said)))
                end = first
                for place in said:  # one by one
                    if end < len(decided):
                        if decided[end] != place:
                            break
                    elif place in part and place not in decided:
                        decided.append(place)
                    else:
                        break
                    end += 1
                assert growing.agree(first, np.array(said, np.int32)) == end
        check(growing, decided, part)
