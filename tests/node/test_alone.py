"""A node whose ranks draw only some of the positions, and that no other node sends anything: what its cache is of use.

`Player` plays the decisions of a server: each instruction is done at once, without bytes. The last tests have real
servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.papers import hits
from brand.formats.constants import ROW
from brand.node.decide.cache.caching import CacheStart, FolderStart
from brand.node.decide.node_state import NodeState
from brand.node.decide.planner import make_plan, make_window
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.state import epoch_table
from brand.node.decide.state.choosing import ON_TOP, SLACK_SHARE, ChooseCached, Placement
from brand.node.decide.state.instructions import DrawAnswer, Forget, Instruction, MakePlan, MakeWindow, Read, Write
from brand.node.decide.state.members import ALONE
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientRegisters,
    ClientReleases,
    KeptChosen,
    ReadEnded,
    Stimulus,
    WriteEnded,
)
from brand.node.memory.pages import NoMemory, PagePool
from brand.node.memory.residents import Residents
from brand.node.setup.measure import lay_out, measure_pages
from brand.node.wire.client_messages import Number
from brand.node.wire.draw_messages import Lease
from brand.node.wire.drawing import Announcement
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base import random
from brand.orders.base.policy import Policy
from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy

SIZE = 70_000
UNIFORM = UniformPolicy(1)


class Index:
    """Rows of samples of these sizes."""

    def __init__(self, sizes: NDArray[np.uint32]) -> None:
        self._rows = np.zeros(len(sizes), ROW)
        self._rows["size"] = sizes

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """As `NodeState` asks for them."""
        return self._rows[first:end]

    def rows_at(self, places: NDArray[np.int64]) -> NDArray[np.void]:
        """As `NodeState` asks for them."""
        return self._rows[places]


@dataclass
class Player:
    """One server whose ranks are some of `replicas`. Its folder has room for `room` samples."""

    samples: int
    room: int
    placement: Placement = "auto"
    epochs: int | None = None
    replicas: int = 4
    memory: int = 80
    """Room in memory, in samples."""
    size: int = SIZE
    policy: Policy = UNIFORM
    whole_unit: int = 1
    held: set[int] = field(default_factory=set)
    """What the folder holds."""

    def __post_init__(self) -> None:
        sizes = np.full(self.samples, self.size, np.uint32)
        layout = lay_out(*measure_pages(sizes), f"{self.memory * (self.size + 4096)}B", None, ALONE)
        self.residents = Residents(PagePool(layout.allocator, NoMemory(layout.allocator.page), layout.pages_of))
        self.limit = self.room * (self.size + ON_TOP) * SLACK_SHARE // (SLACK_SHARE - 1) + ON_TOP
        held = np.isin(np.arange(self.samples), list(self.held))
        folder = FolderStart("", held, self.limit)
        start = CacheStart((folder,), sizes, self.placement, self.epochs, self.whole_unit)
        self.turn = NodeState(StoredChunks(Index(sizes), 64), self.residents, ALONE, 4, 0, start)
        self.order = Order("0" * 32, self.samples, 64, 1, self.policy)
        self.now_s = 0.0
        self.jobs: deque[Instruction] = deque()
        self.answers: deque[Lease] = deque()
        self.choices: list[ChooseCached] = []
        self.most = 0
        """The most bytes that the folder has held."""
        self.run = RunNumber(0)

    def begin(self, rank: int, epoch: int, start: int = 0) -> None:
        """A rank begins an epoch."""
        client = ClientNumber(rank + 1)
        (said,) = self.turn.handle(ClientRegisters(client, self.order, "run"), 0.0)
        assert isinstance(said, Number)
        self.run = said.run
        self.tell(ClientBegins(client, self.run, Announcement(epoch, start, rank, self.replicas)))
        self.rest()

    def draw(self, rank: int, epoch: int, positions: NDArray[np.int64]) -> None:
        """A rank draws, and gets each sample from memory."""
        client = ClientNumber(rank + 1)
        self.tell(ClientDraws(client, (self.run, epoch), positions))
        while not self.answers:
            self.step()
        answer = self.answers.popleft()
        assert answer.places.tolist() == self.order.plan(epoch).sample_of[positions].tolist()
        assert answer.state.all()
        self.tell(ClientReleases(client, answer.number, checked=True))
        self.rest()

    def play(self, rank: int, epochs: Sequence[int], batch: int = 4) -> list[tuple[int, int]]:
        """A rank draws epochs. For each, samples that came from the folder and from the storage."""
        found = []
        counters = self.turn.core.counters
        for epoch in epochs:
            self.begin(rank, epoch)
            mine = np.arange(rank, self.samples, self.replicas)
            for first in range(0, len(mine), batch):
                self.draw(rank, epoch, mine[first : first + batch])
            found.append((counters.cache[0].reads, counters.reads.read_samples))
        return [
            (cache - before[0], storage - before[1])
            for (cache, storage), before in zip(found, [(0, 0), *found], strict=False)
        ]

    def tell(self, stimulus: Stimulus) -> None:
        """Something happens."""
        self._take(self.turn.handle(stimulus, self.now_s))

    def step(self) -> None:
        """The loop goes on, and a job is done: the folder's disk is fast, so writes come first."""
        self.now_s += 0.01
        assert self.now_s < 100_000, "a draw is never answered"
        self._take(self.turn.step(self.now_s, {}))
        job = next((job for job in self.jobs if isinstance(job, Write)), self.jobs[0] if self.jobs else None)
        if job is not None:
            self.jobs.remove(job)
            self._do(job)

    def rest(self) -> None:
        """All jobs are done that do not depend on a draw."""
        quiet = 0
        while quiet < 2:
            self.step()
            quiet = 0 if self.jobs else quiet + 1

    def _take(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, DrawAnswer):
                self.answers.append(instruction.lease)
            else:
                self.jobs.append(instruction)

    def _do(self, job: Instruction) -> None:
        match job:
            case MakePlan():
                self.tell(make_plan(job))
            case MakeWindow():
                self.tell(make_window(job))
            case ChooseCached(number):
                if job.foresee():
                    if self.turn.wants_choice(job):
                        self.jobs.append(job)
                    return
                self.choices.append(job)
                kept = job.kept(self.residents.pages_of)
                self.tell(KeptChosen(number, kept, job.cached(kept), job.since, job.whole_unit))
            case Read():
                for piece in np.flatnonzero(job.pieces["folder"]).tolist():
                    assert set(job.places_of(piece).tolist()) <= self.held, "a read of what the folder does not hold"
                self.tell(ReadEnded(job))
            case Write(_, _, places):
                new = set(places.tolist()) - self.held
                fits = (len(self.held) + len(new)) * self.size <= self.limit
                self.held |= new if fits else set()
                self.most = max(self.most, len(self.held))
                self.tell(WriteEnded(job, np.isin(places, list(self.held)), ""))
            case Forget(_, places):
                self.held -= set(places.tolist())

    def ways(self) -> list[tuple[str, int]]:
        """What was chosen: the way, and the epoch."""
        return [("even", 0) if c.follow is None else (c.follow.way, c.follow.epoch) for c in self.choices]


def draws_of(player: Player, rank: int, epochs: int) -> NDArray[np.int64]:
    """What a rank draws, epoch by epoch."""
    rows = [player.order.plan(epoch).sample_of[rank :: player.replicas] for epoch in range(epochs)]
    return np.stack([row[: player.samples // player.replicas] for row in rows]).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "rule", "figure"),
    [
        ("auto", "next use", 59.3),
        pytest.param("frequency", "frequency", 38.0, marks=pytest.mark.tables),
        pytest.param("even", "static", 28.5, marks=pytest.mark.tables),
    ],
)
def test_the_hits_of_one_of_eight_nodes_are_those_of_the_model(placement: Placement, rule: str, figure: float) -> None:
    """29.6 % of the samples in each folder, 50 epochs: within 2 points of the slow model, and of the design's table."""
    samples, epochs, nodes = 1_500, 50, 8
    room = int(0.296 * samples)
    player = Player(samples, room, placement, epochs if placement == "frequency" else None, nodes)
    played = player.play(3, range(epochs))
    model = hits.RULES[rule](draws_of(player, 3, epochs), room)
    found = sum(cache for cache, _ in played) / sum(map(sum, played))
    assert 100 * found == pytest.approx(100 * model.mean(), abs=2)
    assert 100 * found == pytest.approx(figure, abs=2.5)
    assert player.most * SIZE <= player.limit
    steady = sum(cache for cache, _ in played[10:]) / sum(map(sum, played[10:]))
    assert 100 * steady == pytest.approx(100 * model[10:].mean(), abs=2)


def test_a_node_that_draws_everything_holds_a_random_choice() -> None:
    """As soon as all ranks have begun. Nothing ever leaves the folder."""
    player = Player(400, 100, replicas=2)
    player.begin(0, 0)
    assert player.ways()[-1] == ("coming", 0)
    player.begin(1, 0)
    assert player.ways()[-1] == ("even", 0)
    for first in range(0, 400, 8):
        for rank in range(2):
            player.draw(rank, 0, np.arange(first + rank, first + 8, 2))
    assert {way for way, _ in player.ways()} == {"coming", "even"}
    assert len(player.held) > 90


def test_which_ranks_are_here_is_settled_in_the_middle_of_the_first_epoch() -> None:
    """Until then, what comes has a place and nothing leaves the folder, not even what another training has left."""
    before = set(range(0, 400, 5))
    player = Player(400, 100, held=set(before))
    player.begin(2, 0)
    mine = np.arange(2, 400, 4)
    for first in range(0, 40, 4):
        player.draw(2, 0, mine[first : first + 4])
    assert {way for way, _ in player.ways()} == {"coming"}
    assert before <= player.held
    for first in range(40, 100, 4):
        player.draw(2, 0, mine[first : first + 4])
    player.play(2, [1, 2])
    assert player.ways()[1:4] == [("next", 0), ("next", 1), ("next", 2)]
    assert not before <= player.held


def test_each_epoch_is_chosen_for_once_and_in_order() -> None:
    """Also the one that is read ahead, before a rank has begun it."""
    player = Player(800, 200)
    player.play(1, range(5))
    assert player.ways() == [("coming", 0), *(("next", epoch) for epoch in range(6))]


def test_frequency_is_chosen_once() -> None:
    """For all epochs that are left, when the ranks here are settled."""
    player = Player(800, 200, "frequency", 6)
    player.play(1, range(6))
    assert player.ways() == [("coming", 0), ("frequency", 0)]


@pytest.mark.slow
@pytest.mark.parametrize("part", [48, epoch_table.PART], ids=["built in steps", "built at once"])
@pytest.mark.parametrize("ranks", [[1], [0, 2]], ids=["one rank", "two ranks"])
def test_frequency_fills_memory_first(ranks: list[int], part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the samples that are drawn most often, the folder the next ones. The epochs under way lose nothing.

    Memory is chosen in the middle of the first epoch, whose later draws count on other cached samples, and so does the
    second epoch, if it is read ahead by then. `draw` asserts that each sample is in memory.
    """
    epochs, samples = 10, 800
    monkeypatch.setattr(epoch_table, "PART", part)
    if part == 48:
        monkeypatch.setattr(random, "BLOCK", 8)
    player = Player(samples, 100, "frequency", epochs, memory=200)
    for epoch in range(epochs):
        for rank in ranks:
            player.begin(rank, epoch)
        for first in range(0, samples, 16):
            for rank in ranks:
                player.draw(rank, epoch, np.arange(first + rank, first + 16, 4))
        kept = player.residents.kept()
        if epoch == 0:
            first_choice = player.choices[0].kept(player.residents.pages_of)
    counts = np.bincount(np.concatenate([draws_of(player, rank, epochs).ravel() for rank in ranks]), minlength=samples)
    chosen = player.residents.to_keep(np.arange(samples))
    assert isinstance(first_choice, np.ndarray)
    assert chosen.sum() == first_choice.sum() > 120
    assert (chosen != first_choice).sum() > 50
    assert counts[chosen].min() >= counts[~chosen].max()
    assert (kept == chosen).mean() > 0.99
    cached = player.choices[-1].cached(chosen)
    assert cached is not None
    places = np.flatnonzero(cached)
    assert not chosen[places].any()
    rest = np.sort(counts[~chosen])[::-1]
    assert counts[places].min() >= rest[len(places) - 1]
    assert player.turn.core.counters.draws.direct == 0


@pytest.mark.parametrize("case", ["all fits", "small", "stripes"])
def test_where_the_next_use_is_of_no_use_the_choice_is_random(case: str) -> None:
    """The folder has room for all; or what is cached together is drawn by each node. The second is said once."""
    player = Player(400, 100)
    if case == "all fits":
        player = Player(400, 400)
    elif case == "small":
        player = Player(400, 40, size=700)
    elif case == "stripes":
        player = Player(400, 100, policy=StripePolicy(2, 8), memory=300)
    player.play(1, range(3))
    assert player.ways()[-1] == ("even", 0)
    assert {way for way, _ in player.ways()} <= {"coming", "even"}
    notices = player.turn.core.epochs.runs.take_notices()
    assert len(notices) == (case != "all fits")
    assert all("random choice" in notice for notice in notices)


def test_another_rank_that_comes_is_settled_anew() -> None:
    """Until the middle of its epoch nothing leaves the folder."""
    player = Player(800, 200)
    player.play(1, range(2))
    player.begin(3, 2)
    player.begin(1, 2)
    assert player.ways()[-1] == ("coming", 2)
    held = set(player.held)
    player.draw(1, 2, np.arange(1, 16, 4))
    assert held <= player.held
    for first in range(16, 800, 16):
        for rank in (1, 3):
            player.draw(rank, 2, np.arange(first + rank, first + 16, 4))
    assert player.ways()[-1][0] == "next"


def test_a_run_that_is_resumed_in_the_middle_is_settled_soon() -> None:
    """What its ranks do not draw any more in this epoch has no place for its sake."""
    player = Player(800, 200)
    player.begin(1, 3, 600)
    for first in range(601, 800, 20):
        player.draw(1, 3, np.arange(first, first + 19, 4))
    assert player.ways()[:2] == [("coming", 3), ("next", 3)]
    player.play(1, [4])
    assert player.held
