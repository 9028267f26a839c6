"""`Residents` against a dictionary of who refers to what."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.node.memory import tables
from brand.node.memory.allocator import Allocator
from brand.node.memory.pages import ROW_BYTES, EqualPages, IndexedPages, NoMemory, PagePool
from brand.node.memory.residents import Residents
from tests.rounds import examples

SAMPLES = 24
PAGE = 64
PLACES = st.sets(st.integers(0, SAMPLES - 1), max_size=6)


def indexed(pages_of: NDArray[np.uint8]) -> IndexedPages:
    """The same pages, by the sizes in an index."""
    rows = np.zeros(len(pages_of), ROW)
    rows["size"] = rows["raw_size"] = pages_of.astype(np.int64) * PAGE - ROW_BYTES
    largest, total = int(rows["raw_size"].max()), int(pages_of.sum())
    most = int(pages_of.max())
    return IndexedPages(lambda first, end: rows[first:end], rows.__getitem__, len(rows), PAGE, largest, most, total)


def peak_of(act: Callable[[], object]) -> int:
    """The most memory that it takes at a time, in bytes."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_all_samples_at_once_need_little_memory() -> None:
    """A server whose memory is its limit goes on when an epoch ends early, or other samples are to be cached."""
    count = 1 << 20
    residents = Residents(PagePool(Allocator((count + 1) * PAGE, PAGE), NoMemory(PAGE), EqualPages(count, 1)))
    every = np.arange(count, dtype=np.int32)
    residents.put(every, residents.pool.take(every)[0])
    assert peak_of(lambda: residents.keep(np.ones(count, np.bool_))) < 12 * count
    assert residents.kept_pages == count
    assert peak_of(lambda: residents.let_go(every)) < 4 * count
    assert residents.present(every).all()
    assert peak_of(lambda: residents.keep(np.zeros(count, np.bool_))) < 24 * count  # with the places that were cached
    assert residents.pool.allocator.free == count
    residents.put(every, residents.pool.take(every)[0])
    assert peak_of(lambda: residents.let_go(every)) < 12 * count
    assert residents.pool.allocator.free == count


class ResidentsMachine(RuleBasedStateMachine):
    """Samples come, are referred to, kept and let go."""

    @initialize(
        pages_of=st.lists(st.integers(1, 4), min_size=SAMPLES, max_size=SAMPLES),
        pages=st.integers(5, 100),
        by_index=st.booleans(),
        small=st.booleans(),
    )
    def start(self, pages_of: list[int], pages: int, *, by_index: bool, small: bool) -> None:
        self.pages_of = np.array(pages_of, np.uint8)
        self.allocator = Allocator((pages + 1) * PAGE, PAGE)
        counts = indexed(self.pages_of) if by_index else self.pages_of
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "SMALL", SAMPLES if small else 0)
            self.residents = Residents(PagePool(self.allocator, NoMemory(PAGE), counts))
        self.references = Counter[int]()
        """References but the one of being kept."""
        self.chosen, self.to_keep, self.kept, self.checked = set[int](), set[int](), set[int](), set[int]()

    def here(self) -> set[int]:
        return {place for place, count in self.references.items() if count} | self.kept

    def forget(self) -> None:
        """What nobody refers to has gone."""
        self.checked &= self.here()

    @rule(places=PLACES)
    def put(self, places: set[int]) -> None:
        new = np.array(sorted(places - self.here()), np.int64)
        if len(new) and int(self.pages_of[new].sum()) <= self.allocator.free:
            heads, _ = self.residents.pool.take(new)
            self.residents.put(new, heads)
            self.references.update(new.tolist())
            self.kept |= set(new.tolist()) & self.to_keep

    @rule(places=PLACES)
    def refer(self, places: set[int]) -> None:
        known = sorted(places & self.here())
        self.residents.refer(np.array(known, np.int64))
        self.references.update(known)

    @rule(places=PLACES)
    def let_go(self, places: set[int]) -> None:
        known = sorted(place for place in places if self.references[place])
        self.residents.let_go(np.array(known, np.int64))
        self.references.subtract(known)
        self.forget()

    @rule(places=PLACES)
    def mark_checked(self, places: set[int]) -> None:
        known = sorted(places & self.here())
        self.residents.mark_checked(np.array(known, np.int64))
        self.checked |= set(known)

    @rule(places=st.sets(st.integers(0, SAMPLES - 1)))
    def keep(self, places: set[int]) -> None:
        mask = np.zeros(SAMPLES, np.bool_)
        mask[sorted(places)] = True
        before = self.here()
        self.residents.keep(mask)
        self.chosen = self.to_keep = places
        self.kept = places & before
        self.forget()

    @rule()
    def keep_chosen(self) -> None:
        """What `keep_less` has left out is kept again, as far as it is here."""
        self.residents.keep_chosen()
        self.to_keep, self.kept = self.chosen, self.chosen & self.here()

    @rule(chunk_size=st.integers(1, 9), pages=st.integers(1, 12))
    def keep_less(self, chunk_size: int, pages: int) -> None:
        before = self.kept
        evicted = self.residents.keep_less(chunk_size, pages).tolist()
        if not before:
            return
        self.kept = {place for place in before if self.residents.kept()[place]}
        gone = before - self.kept
        assert sorted(evicted) == sorted(gone)
        freed = int(self.pages_of[sorted(gone)].sum())
        assert freed >= pages or not self.kept
        chunks = {place // chunk_size for place in gone}
        assert not chunks & {place // chunk_size for place in self.kept}, "half of a chunk is kept"
        sizes = [sum(int(self.pages_of[p]) for p in gone if p // chunk_size == chunk) for chunk in chunks]
        assert freed - min(sizes) < pages, "more is let go of than is asked for"
        self.to_keep = {place for place in self.to_keep if place // chunk_size not in chunks}
        self.forget()

    @precondition(lambda self: hasattr(self, "residents"))
    @invariant()
    def agrees(self) -> None:
        residents, every = self.residents, np.arange(SAMPLES)
        here = self.here()
        assert set(np.flatnonzero(residents.present(every)).tolist()) == here
        assert set(np.flatnonzero(residents.checked(every)).tolist()) == self.checked
        assert set(np.flatnonzero(residents.kept()).tolist()) == self.kept
        assert set(np.flatnonzero(residents.to_keep(every)).tolist()) == self.to_keep
        assert residents.kept_pages == int(self.pages_of[sorted(self.kept)].sum())
        places = np.array(sorted(here), np.int64)
        counts, pages = residents.chains(places)
        assert counts.tolist() == self.pages_of[places].tolist()
        assert len(set(pages.tolist())) == len(pages) == self.allocator.count - 1 - self.allocator.free


ResidentsMachine.TestCase.settings = examples(60, stateful_step_count=30)
TestResidents = pytest.mark.slow(ResidentsMachine.TestCase)
