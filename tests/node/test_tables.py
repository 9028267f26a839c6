"""How many bytes a sample do the tables of a server take, with two epochs planned? What is found in it is added up."""

from __future__ import annotations

import gc
from collections import deque
from types import FunctionType, ModuleType
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import DrawAnswer, Instruction, MakePlan, MakeWindow, Read
from brand.node.decide.state.members import ALONE
from brand.node.decide.state.states import FOUND, ReadQueue, SampleStates
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientRegisters,
    ClientReleases,
    KeptChosen,
    ReadEnded,
)
from brand.node.memory.pages import ROW_BYTES, NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.measure import lay_out, measure_pages
from brand.node.wire.client_messages import Number
from brand.node.wire.draw_messages import Lease
from brand.node.wire.drawing import Announcement, Drawer
from brand.node.wire.numbers import ClientNumber
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import EpochPlan
from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from tests import places
from tests.node.test_alone import Index
from tests.rounds import examples

CLIENT, DRAWER = ClientNumber(1), Drawer(1)
CHUNK = 64
BATCH = 1024
BYTES, BYTES_SLOTS = 19, 30
"""The most that a sample may take beside the arena and its pages: where a read holds all that it reads, and else."""
WINDOWS_BYTES = 20
"""The most that the windows of two epochs take of each of the first million samples. They do not grow any more then."""
IN_WINDOWS = BYTES + WINDOWS_BYTES
PAGE_BYTES = 15
"""The most that a page may take: 12 of the allocator, and 3 for the sample that begins there."""
SMALL = 128 << 10
"""The most that all may take that does not grow with the data set."""


class Served:
    """A server with memory for a tenth of the samples, from which one rank draws."""

    def __init__(self, sizes: NDArray[np.uint32], policy: Policy) -> None:
        layout = lay_out(*measure_pages(sizes), 0.1, None, ALONE)
        self.residents = Residents(PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of))
        self.index = Index(sizes)
        self.turn = NodeState(StoredChunks(self.index, CHUNK), self.residents, ALONE, 4, 0)
        self.jobs, self.answers = deque[Instruction](), deque[Lease]()
        order = Order("0" * 32, len(sizes), CHUNK, 1, policy)
        (said,) = self.turn.handle(ClientRegisters(CLIENT, order, "run"), 0.0)
        assert isinstance(said, Number)
        self.key = said.run, 0

    def draw_until_two_are_planned(self) -> None:
        """Draw the first epoch, until all its positions are drawn but those of the last batch."""
        samples = len(self.residents.pages_of)
        self.tell(ClientBegins(CLIENT, self.key[0], Announcement(self.key[1]), DRAWER))
        for first in range(0, samples - BATCH, BATCH):
            self.tell(ClientDraws(CLIENT, self.key, np.arange(first, first + BATCH), DRAWER))
            while not self.answers:
                self.go_on()
            self.tell(ClientReleases(CLIENT, self.answers.popleft().number, checked=True))
        while self.jobs:
            self.go_on()
        assert len(self.turn.core.epochs.lives.live()) == 2

    def go_on(self) -> None:
        """The loop goes on, and a job is done."""
        self.take(self.turn.step(0.0, {}))
        match self.jobs.popleft() if self.jobs else None:
            case MakePlan() as plan:
                self.tell(make_plan(plan))
            case MakeWindow() as window:
                self.tell(make_window(window))
            case ChooseCached(number) as choice:
                kept = choice.kept(self.residents.pages_of)
                self.tell(KeptChosen(number, kept, choice.cached(kept), choice.since, choice.whole_unit))
            case Read() as read:
                self.tell(ReadEnded(read))

    def tell(self, stimulus: Any) -> None:
        """Something happens."""
        self.take(self.turn.handle(stimulus, 0.0))

    def take(self, instructions: list[Instruction]) -> None:
        """Some of them are answers, and the others are jobs."""
        for each in instructions:
            if isinstance(each, DrawAnswer):
                self.answers.append(each.lease)
            else:
                self.jobs.append(each)


def tables(of: object, without: object) -> int:
    """Bytes of all arrays that an object holds, but for what another one holds.

    An array of nothing but zeros does not count: the kernel gives it no memory before something is written.
    """
    seen, todo, total = {id(without)}, [of], 0
    while todo:
        each: Any = todo.pop()
        while isinstance(each, np.ndarray) and isinstance(each.base, np.ndarray):
            each = each.base
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if not isinstance(each, np.ndarray):
            todo += gc.get_referents(each)
        elif each.view(np.uint8).any():
            total += each.nbytes
    return total


STRIPES, UNIFORM, SLOTS = StripePolicy(20, 16), UniformPolicy(20), SlotPolicy(20)
SIZES = {"small": [99, 132], "large": [90_000, 110_000], "of all sizes": [10, 132, 60_000]}


@places.turns("sizes")
@pytest.mark.slow
@pytest.mark.parametrize(("policy", "most"), [(STRIPES, IN_WINDOWS), (UNIFORM, IN_WINDOWS), (SLOTS, BYTES_SLOTS)])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@examples(2)
@given(samples=st.integers(20_000, 60_000))
def test_a_sample_takes_so_many_bytes(policy: Policy, most: int, sizes: list[int], samples: int) -> None:
    """Small and large samples, and such of which one takes more pages than a byte can say."""
    stored = np.resize(np.array(sizes, np.uint32), samples)
    if len(sizes) > 2:
        stored[: samples - 10] = sizes[1]
    served = Served(stored, policy)
    served.draw_until_two_are_planned()
    residents, allocator = served.residents, served.residents.pool.allocator
    pages = tables([allocator, residents._references, residents._checked], None)
    assert pages <= PAGE_BYTES * allocator.count
    assert tables(served.turn, served.index) - pages <= most * samples + SMALL
    if len(sizes) == 2 and max(sizes) < 1000:
        assert tables(served.turn, served.index) <= (most + 2) * samples + SMALL


@pytest.mark.parametrize(("largest", "expected"), [(100, np.uint8), (60_000, np.uint16), (20_000_000, np.uint32)])
def test_the_largest_sample_decides_how_pages_are_counted(largest: int, expected: type) -> None:
    """As many bytes as its number of pages needs, and no number is cut."""
    sizes = np.full(100_000, 10, np.uint32)
    sizes[7] = largest
    page, counts = measure_pages(sizes)
    assert counts.dtype == expected
    assert counts.tolist() == [-(-(size + ROW_BYTES) // page) for size in sizes.tolist()]


@given(st.sets(st.integers(0, 3 * FOUND)), st.data())
def test_reads_to_start_come_in_order(wanted: set[int], data: st.DataObject) -> None:
    """Against a list: what is next, what comes next, and what is left, wherever the queue looks for more."""
    count = 3 * FOUND + 1
    plan = EpochPlan(Mapping(count, CHUNK, 1), np.arange(count, dtype=np.int32), None)
    states, queue = SampleStates(count), ReadQueue(plan)
    states.expect(np.array(sorted(wanted), np.int64))
    assert sum(queue.filling(states, np.arange(count), None)) == count
    left = sorted(wanted)
    while True:
        assert queue.next == (left[0] if left else None)
        assert queue.deadline == (left[0] if left else count)
        assert queue.rest().tolist() == left
        most = data.draw(st.integers(1, 40))
        assert queue.upcoming(most).tolist() == left[:most]
        if not left:
            return
        queue.pop(min(most, len(left)))
        left = left[most:]
