"""Threads that copy: all pieces once, about equal parts, and nobody is left copying."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.storage.io import crew as crew_module
from brand.storage.io.crew import Crew
from tests.rounds import examples


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), threads=st.integers(1, 4), least=st.integers(1, 2000))
@examples(100)
def test_parts_have_all_pieces_once(sizes: list[int], threads: int, least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "PART_BYTES", least)
        parts = Crew(threads).parts(np.array(sizes, np.int64))
        even = Crew(threads).even(len(sizes), 7)
    for some in (parts, even):
        assert [number for part in some for number in range(part.start, part.stop)] == list(range(len(sizes)))
        assert len(some) <= threads
    most = max(sizes, default=0)
    for part in parts:
        assert sum(sizes[part]) <= sum(sizes) / len(parts) + most


def test_parts_are_done_at_the_same_time() -> None:
    crew, together = Crew(3), threading.Barrier(3)

    def do(number: int, part: slice) -> tuple[int, int]:
        together.wait(60)
        return number, part.start

    assert crew.each(do, [slice(0, 1), slice(1, 2), slice(2, 3)]) == [(0, 0), (1, 1), (2, 2)]
    assert crew.each(lambda number, _: number, [slice(0, 9)]) == [0]


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_comes_when_nobody_copies_any_more(fails: int) -> None:
    crew, go, done = Crew(2), threading.Event(), list[int]()

    def do(number: int, _: slice) -> None:
        if number == fails:
            go.set()
            raise ValueError("no")
        assert go.wait(60)
        done.append(number)

    with pytest.raises(ValueError, match="no"):
        crew.each(do, [slice(0, 1), slice(1, 2)])
    assert done == [1 - fails]
