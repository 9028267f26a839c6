"""The allocator against a list of who has which page."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brand.errors import UsageError
from brand.node.memory.allocator import LEAP, Allocator
from brand.node.memory.pages import SINK
from tests.rounds import examples

PAGE = 128


class AllocatorMachine(RuleBasedStateMachine):
    """Chains are taken and given back in any order."""

    @initialize(pages=st.integers(2, 40))
    def start(self, pages: int) -> None:
        self.allocator, self.chains = Allocator(pages * PAGE + PAGE - 1, PAGE), list[list[int]]()
        assert (self.allocator.count, self.allocator.bytes) == (pages, pages * PAGE)

    def taken(self) -> int:
        return sum(map(len, self.chains))

    @rule(counts=st.lists(st.integers(1, 6), min_size=1, max_size=6))
    def take(self, counts: list[int]) -> None:
        if sum(counts) > self.allocator.free:
            return
        heads, pages = self.allocator.take(np.array(counts, np.uint32))
        rest = pages.tolist()
        for head, count in zip(heads.tolist(), counts, strict=True):
            chain, rest = rest[:count], rest[count:]
            assert chain[0] == head
            self.chains.append(chain)
        assert not rest

    @precondition(lambda self: self.chains)
    @rule(which=st.lists(st.integers(0, 100), min_size=1, max_size=5))
    def give_back(self, which: list[int]) -> None:
        chosen = sorted({number % len(self.chains) for number in which}, reverse=True)
        gone = [self.chains.pop(number) for number in chosen]
        heads = np.array([chain[0] for chain in gone], np.int32)
        self.allocator.give_back(self.allocator.chains(heads, np.array(list(map(len, gone)), np.uint32)))

    @invariant()
    def every_page_is_somewhere(self) -> None:
        if not hasattr(self, "allocator"):
            return
        used = [page for chain in self.chains for page in chain]
        assert len(set(used)) == len(used)
        assert SINK not in used
        assert self.allocator.free == self.allocator.count - 1 - len(used)
        heads = np.array([chain[0] for chain in self.chains], np.int32)
        counts = np.array(list(map(len, self.chains)), np.uint32)
        assert self.allocator.chains(heads, counts).tolist() == used


AllocatorMachine.TestCase.settings = examples(40, stateful_step_count=25)
TestAllocator = AllocatorMachine.TestCase


@given(st.permutations([1, 2, LEAP - 1, LEAP, LEAP + 1, 2 * LEAP, 2 * LEAP + 1, 5 * LEAP, 700]), st.integers(1, 9))
def test_long_chains(counts: list[int], taken: int) -> None:
    """Around the pages that are linked directly; other chains were taken and given back before."""
    allocator = Allocator(3000 * PAGE, PAGE)
    allocator.give_back(allocator.take(np.array(counts[:taken]))[1][::-1])
    takes = [allocator.take(np.array([count])) for count in counts[:taken]]
    takes.append(allocator.take(np.array(counts[taken:])) if counts[taken:] else (np.empty(0, np.int32),) * 2)
    heads, pages = (np.concatenate(parts) for parts in zip(*takes, strict=True))
    assert allocator.chains(heads, np.array(counts, np.uint32)).tolist() == pages.tolist()
    ends = np.cumsum(counts)
    last = heads[::-1][:taken], np.array(counts[::-1][:taken])
    parts = [pages[end - count : end] for end, count in zip(ends, counts, strict=True)]
    assert allocator.chains(*last).tolist() == np.concatenate(parts[::-1][:taken]).tolist()


@pytest.mark.parametrize("limit", [0, 1, PAGE, 2 * PAGE - 1])
def test_there_are_two_pages_at_least(limit: int) -> None:
    """One of them is the sink."""
    with pytest.raises(UsageError, match="256"):
        Allocator(limit, PAGE)
