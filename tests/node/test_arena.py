"""The arena against a list of who has which page; and its vectors against a plain copy."""

from __future__ import annotations

import ctypes
import os

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brand.errors import UsageError
from brand.formats.constants import ROW
from brand.node.arena import IOVEC, ROW_BYTES, SINK, Arena
from tests.rounds import examples

PAGE = 128


class ArenaMachine(RuleBasedStateMachine):
    """Chains are taken and given back in any order."""

    @initialize(pages=st.integers(2, 40))
    def start(self, pages: int) -> None:
        self.arena, self.chains = Arena(pages * PAGE + PAGE - 1, PAGE), list[list[int]]()
        assert (self.arena.count, self.arena.bytes) == (pages, pages * PAGE)

    def taken(self) -> int:
        return sum(map(len, self.chains))

    @rule(counts=st.lists(st.integers(1, 6), min_size=1, max_size=6))
    def take(self, counts: list[int]) -> None:
        if sum(counts) > self.arena.free:
            return
        heads, pages = self.arena.take(np.array(counts, np.uint32))
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
        self.arena.give_back(self.arena.chains(heads, np.array(list(map(len, gone)), np.uint32)))

    @invariant()
    def every_page_is_somewhere(self) -> None:
        if not hasattr(self, "arena"):
            return
        used = [page for chain in self.chains for page in chain]
        assert len(set(used)) == len(used)
        assert SINK not in used
        assert self.arena.free == self.arena.count - 1 - len(used)
        heads = np.array([chain[0] for chain in self.chains], np.int32)
        counts = np.array(list(map(len, self.chains)), np.uint32)
        assert self.arena.chains(heads, counts).tolist() == used

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            self.arena.close()


ArenaMachine.TestCase.settings = examples(40, stateful_step_count=25)
TestArena = pytest.mark.slow(ArenaMachine.TestCase)


@pytest.mark.slow
@given(
    samples=st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=12),
    page=st.sampled_from([64, 128, 512]),
)
@examples(80)
def test_a_vector_puts_each_byte_where_it_belongs(samples: list[tuple[int, bool]], page: int) -> None:
    """Rows and bytes of the samples that are held follow each other in their chains; the others leave no trace."""
    sizes = np.array([size for size, _ in samples])
    held = np.array([hold for _, hold in samples])
    counts = -(-(sizes[held] + ROW_BYTES) // page)
    arena = Arena((int(counts.sum()) + 3) * page, page)
    rng = np.random.default_rng(int(sizes.sum()))
    data = rng.integers(0, 256, int(sizes.sum()), np.uint8)
    rows = np.zeros(len(samples), ROW)
    rows["size"], rows["index"] = sizes, np.arange(len(samples)) + 1000
    heads, pages = arena.take(counts) if held.any() else (np.empty(0, np.int32), np.empty(0, np.int32))
    untouched = np.setdiff1d(np.arange(arena.count), [*pages.tolist(), SINK])
    arena.pages[untouched] = 0xAA
    arena.write_rows(heads, rows[held])
    vector = arena.vector(sizes, held, pages)
    assert vector.dtype == IOVEC
    assert int(vector["length"].sum()) == len(data)
    assert (vector["length"] <= page).all()
    start, base = 0, arena.pages.ctypes.data
    for address, length in vector.tolist():
        assert 0 <= address - base <= arena.bytes - length
        assert length == 0 or (address - base) // page == (address - base + length - 1) // page
        part = data[start : start + length]
        ctypes.memmove(address, part.ctypes.data, length)
        start += length
    begins = np.cumsum(sizes) - sizes
    at = 0
    for number in np.flatnonzero(held).tolist():
        count = int(counts[np.count_nonzero(held[:number])])
        content = arena.pages[pages[at : at + count]].tobytes()
        size, begin = int(sizes[number]), int(begins[number])
        assert content[:ROW_BYTES] == rows[number].tobytes()
        assert content[ROW_BYTES : ROW_BYTES + size] == data[begin : begin + size].tobytes()
        at += count
    assert (arena.pages[untouched] == 0xAA).all()
    arena.close()


@pytest.mark.parametrize("limit", [0, 1, PAGE, 2 * PAGE - 1])
def test_an_arena_has_two_pages_at_least(limit: int) -> None:
    """One of them is the sink."""
    with pytest.raises(UsageError, match="256"):
        Arena(limit, PAGE)


def test_the_memory_is_sealed_and_gone_when_it_is_closed() -> None:
    """Its size is fixed, others cannot write, and its descriptor is not inherited."""
    arena = Arena(4 * PAGE, PAGE)
    assert not os.get_inheritable(arena.descriptor)
    for size in (0, PAGE, 100 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        os.pwrite(arena.descriptor, b"x", 0)
    arena.pages[1] = 7
    assert os.pread(arena.descriptor, PAGE, PAGE) == bytes([7]) * PAGE
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena.descriptor)
