"""The simulated work of nodes is what data servers do."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.counters import Counters
from brand.node.decide.state.instructions import DrawAnswer, Instruction, MakePlan, MakeWindow, Read
from brand.node.decide.state.members import ALONE
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientRegisters,
    ClientReleases,
    KeptChosen,
    ReadEnded,
    Stimulus,
)
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.measure import lay_out, measure_pages, stored_sizes
from brand.node.wire.client_messages import Number
from brand.node.wire.drawing import Announcement
from brand.node.wire.numbers import ClientNumber
from brand.orders.base.policy import Policy
from brand.orders.order import MAX_EPOCH, Order
from brand.orders.policies.other_systems import PoolPolicy
from brand.orders.policies.slot_policy import SlotPolicy
from brand.orders.policies.storage_order import StoragePolicy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from brand.simulate.running import EpochWork, SimulatedRun, work_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.made_orders import STRIPES, order_of, slots_across
from tests.rounds import examples
from tests.several_nodes.support import Rank, all_open, draw_in_step, node_of
from tests.support import wait_until
from tests.tools.cluster import running_cluster

CLIENT = ClientNumber(1)


class _Index:
    """Rows of samples of these sizes."""

    def __init__(self, sizes: NDArray[np.uint32]) -> None:
        self._rows = np.zeros(len(sizes), ROW)
        self._rows["size"] = sizes

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        return self._rows[first:end]

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        return self._rows[places]


class _Server:
    """One node that plays a run: plans, choices and reads are done at once, one batch is drawn after the other."""

    def __init__(self, run: SimulatedRun) -> None:
        layout = lay_out(*measure_pages(run.sizes), run.memory, None, ALONE)
        residents = Residents(PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of))
        self.run = run
        self.turn = NodeState(StoredChunks(_Index(run.sizes), run.order.chunk_size), residents, ALONE, 4)
        self.now_s = 0.0
        self.answers: list[DrawAnswer] = []
        (said,) = self.turn.handle(ClientRegisters(CLIENT, run.order, "played"), 0.0)
        assert isinstance(said, Number)
        self.number = said.run
        self.plans: list[MakePlan] = []
        """Plans to make when their epoch begins, and not before."""
        self.evicted = False
        """Whether cached samples were evicted, because memory was short."""

    def play(self, epochs: Iterable[int]) -> Counters:
        for epoch in epochs:
            self._tell(ClientBegins(CLIENT, self.number, Announcement(epoch)))
            self._step()
            for wanted in self.plans:
                self._tell(make_plan(wanted))
            self.plans.clear()
            for first in range(0, len(self.run.sizes), self.run.batch):
                positions = np.arange(first, min(first + self.run.batch, len(self.run.sizes)))
                self._tell(ClientDraws(CLIENT, (self.number, epoch), positions))
                while not self.answers:
                    self._step()
                self._tell(ClientReleases(CLIENT, self.answers.pop().lease.number, checked=True))
        return self.turn.core.counters

    def _step(self) -> None:
        self.now_s += 0.01
        assert self.now_s < 1000, "a draw is never answered"
        kept = self.turn.core.residents.kept_pages
        self._do(self.turn.step(self.now_s, {}))
        self.evicted |= self.turn.core.residents.kept_pages < kept

    def _tell(self, stimulus: Stimulus) -> None:
        self._do(self.turn.handle(stimulus, self.now_s))

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case MakePlan():
                    self.plans.append(instruction)
                case MakeWindow():
                    self._tell(make_window(instruction))
                case ChooseCached(number):
                    self._tell(KeptChosen(number, instruction.kept(self.turn.core.residents.pages_of)))
                case Read():
                    self._tell(ReadEnded(instruction))
                case DrawAnswer():
                    self.answers.append(instruction)
                case _:
                    pass


@st.composite
def runs(draw: st.DrawFn) -> SimulatedRun:
    """Runs of one node over small data sets."""
    samples, chunk_size = draw(st.integers(40, 400)), draw(st.integers(4, 32))
    sizes = np.random.default_rng(draw(st.integers(0, 99))).integers(50, 3000, samples).astype(np.uint32)
    chunks = -(-samples // chunk_size)
    group = draw(st.integers(1, min(4, chunks)))
    policy: Policy = StripePolicy(group, stripe=draw(st.integers(1, min(chunk_size, 8))))
    other = draw(st.sampled_from(["stripes", "slots", "pool", "uniform"]))
    if other == "slots":
        policy = SlotPolicy(group, draw(st.sampled_from(["fill_rate", "random"])))
    elif other == "pool":
        policy = PoolPolicy(group, group)
    elif other == "uniform":
        policy = UniformPolicy(group)
    order = Order("0" * 32, samples, chunk_size, draw(st.integers(0, 9)), policy)
    return SimulatedRun(sizes, order, draw(st.sampled_from([0.5, 0.7, 0.9, 1.0])), batch=draw(st.integers(4, 32)))


@examples(60)
@given(runs())
def test_one_node_reads_what_it_is_said_to_read(run: SimulatedRun) -> None:
    """Over three epochs, where no later epoch is planned before the end of one."""
    works = [work for (work,) in work_of(run, range(3))]
    server = _Server(run)
    played, residents = server.play(range(3)), server.turn.core.residents
    # Where memory is too small for a plan, the server evicts cached samples, or leaves samples to exact reads.
    assume(not server.evicted)
    assert residents.kept_pages * residents.pool.allocator.page == works[-1].kept_bytes
    assume(played.draws.direct <= _sum(works, "direct"))
    assert (played.reads.reads, played.reads.read_bytes) == (_sum(works, "reads"), _sum(works, "read_bytes"))
    assert played.reads.read_samples == _sum(works, "read_samples")
    assert played.reads.buffered == _sum(works, "buffered")
    assert played.draws.direct == _sum(works, "direct")


@pytest.mark.parametrize(("busy_share", "free"), [(1 / 16, 1 / 8), (1 / 6, 1 / 6), (1 / 2, 1 / 4)])
def test_kept_samples_leave_room_for_what_keeps_the_storage_busy(busy_share: float, free: float) -> None:
    """At least an eighth of the arena, and at most a quarter."""
    run = SimulatedRun(np.full(4096, 4000, np.uint32), Order("0" * 32, 4096, 16, 0, StripePolicy(16, 4)), 0.5)
    memory, kept = _memory_and_kept(run)
    _, left = _memory_and_kept(replace(run, busy_bytes=int(busy_share * memory)))
    assert kept - left == pytest.approx((free - 1 / 8) * memory, abs=memory / 100)


def _memory_and_kept(run: SimulatedRun) -> tuple[int, int]:
    """Bytes of memory, and of the samples that it keeps after the first epoch."""
    _, later = (work for (work,) in work_of(run, range(2)))
    return later.memory_bytes, later.kept_bytes


@examples(60)
@given(runs(), st.floats(0, 1))
def test_what_the_cache_folder_holds_is_not_read_from_the_storage(run: SimulatedRun, share: float) -> None:
    """The first epoch reads as without a folder. Later ones make the same reads, from one source or the other."""
    room = int(share * run.sizes.sum())
    without, found = ([work for (work,) in work_of(replace(run, cache_bytes=cache), range(3))] for cache in (0, room))
    assert found[0].reads == without[0].reads
    assert found[0].cached_bytes == found[0].cache_reads == 0
    for before, after in zip(without[1:], found[1:], strict=True):
        assert after.reads + after.cache_reads == before.reads
        assert after.read_bytes + after.cache_bytes == before.read_bytes
        assert after.cached_bytes <= room
        if isinstance(run.order.policy, StripePolicy):  # each read is a unit
            assert after.cache_bytes == after.cached_bytes
        if share == 1:
            assert after.reads == 0


def _sum(works: list[EpochWork], name: str) -> int:
    return sum(getattr(work, name) for work in works)


def _epochs(
    path: Path, policy: Policy, epochs: range, *, memory: float, nodes: int = 1
) -> tuple[SimulatedRun, list[list[EpochWork]]]:
    run = SimulatedRun(stored_sizes(StoredDataSet(path)), order_of(path, policy), memory, None, nodes, nodes, 16)
    return run, list(work_of(run, epochs))


@pytest.mark.parametrize("memory", [0.4, 1.0])
@pytest.mark.parametrize(
    "policy",
    [STRIPES, PoolPolicy(2, 8), UniformPolicy(2), StoragePolicy(2, 4)],
    ids=["stripes", "pool", "uniform", "storage"],
)
def test_a_real_server_counts_the_same(texts: Path, memory: float, policy: Policy) -> None:
    """In the last epoch that there is, so that the server reads nothing ahead for a next one."""
    run, [[work]] = _epochs(texts, policy, range(MAX_EPOCH, MAX_EPOCH + 1), memory=memory)
    with running_server(texts, memory=memory) as server, closing(node_of(texts, server.address)) as client:
        draw_in_step([Rank(client, run.order, 0, 1)], [MAX_EPOCH])
        facts = server.facts()
    assert (facts["reads"], facts["read_bytes"]) == (work.reads, work.read_bytes)
    assert (facts["read_samples"], facts["buffered"]) == (work.read_samples, work.buffered)
    assert facts["direct"] == work.direct


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "policy", [STRIPES, slots_across(3, 3), StoragePolicy(3, 4, 3)], ids=["stripes", "slots", "storage"]
)
def test_three_real_nodes_count_the_same(texts: Path, policy: Policy) -> None:
    """What each of them reads, sends, gets and asks for in the last epoch that there is."""
    run, [works] = _epochs(texts, policy, range(MAX_EPOCH, MAX_EPOCH + 1), memory=0.6, nodes=3)
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.6) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        draw_in_step([Rank(client, run.order, rank, 3) for rank, client in enumerate(clients)], [MAX_EPOCH])
        facts = [cluster.facts(node) for node in range(3)]
    for fact, work in zip(facts, works, strict=True):
        assert (fact["reads"], fact["read_bytes"]) == (work.reads, work.read_bytes)
        assert (fact["sent"], fact["sent_bytes"], fact["received"]) == (work.sent, work.sent_bytes, work.received)
        assert (fact["direct"], fact["requests"]) == (work.direct, work.requests)
