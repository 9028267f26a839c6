"""A `World` whose node prepares: its preparers do at once, late or never what they are told, or end.

What a preparation makes of a sample is known by want and place, so each answer is compared with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.formats.constants import ROW
from brand.formats.preparation import DecodeImage
from brand.node.decide.core import DecodingStart
from brand.node.decide.state.instructions import EndPreparer, Fill, Instruction, Prepare, StartPreparer
from brand.node.decide.stimuli import ClientPrepares, PreparedFilled, PreparerEnded, PreparerReady, PreparerSized
from brand.node.memory.allocator import Allocator
from brand.node.memory.decoded import MADE, MAKING
from brand.node.memory.pages import ROW_BYTES
from brand.node.wire.client_messages import Numbers
from brand.node.wire.decoding import CANNOT, HEADER, PAGE, UNTRIED, DecodeSpec, pack_values, unpack_chains
from brand.node.wire.draw_messages import Lease
from brand.node.wire.messages import PREPARED
from brand.node.wire.numbers import ClientNumber, RunNumber
from tests.node.world import World, free_pages

WANTS = [
    DecodeSpec("image", DecodeImage(shorter=64)),
    DecodeSpec("other", DecodeImage(shorter=32)),
    DecodeSpec("image", DecodeImage(mode="L")),
]
"""Each makes values of other sizes."""


def values(want: DecodeSpec, place: int) -> NDArray[np.uint8]:
    """What a preparation makes of a sample: up to three pages."""
    size = (1 + WANTS.index(want)) * (97 * place % 3000) + place
    return (np.arange(size) * (place + 3) + WANTS.index(want)).astype(np.uint8)


@dataclass
class Copied:
    """What a client copies of the second memory."""

    places: tuple[int, ...]
    wants: tuple[int, ...]
    pages: NDArray[np.int32]
    content: bytes


@dataclass
class PreparingWorld(World):
    """A node with preparers. `second` pages are in its second memory."""

    second: int = 100
    count: int = 2
    least_runs: int = 1
    allotment: str = "least"
    starting: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    tasks: dict[int, Prepare] = field(default_factory=dict)
    """By preparer."""
    fills: list[tuple[Fill, NDArray[np.uint8], Prepare]] = field(default_factory=list)
    """With the staging memory, and what was prepared."""
    wanted: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """Numbers of wants, by client and run."""
    there: set[tuple[int, int]] = field(default_factory=set)
    """Prepared samples in memory, by number of the want and place."""
    copied: dict[int, Copied] = field(default_factory=dict)
    """By lease."""
    made: dict[tuple[int, int], int] = field(default_factory=dict)
    """How often each sample was prepared."""

    def __post_init__(self) -> None:
        allocator = Allocator(self.second * PAGE, PAGE)
        self.prepared = DecodingStart(allocator, self.count, self.least_runs, self.allotment)
        self.memory = np.zeros((allocator.count, PAGE), np.uint8)
        super().__post_init__()
        assert self.turn.preparing is not None
        self.preparing = self.turn.preparing
        self.named: dict[int, DecodeSpec] = {}

    # -- clients -----------------------------------------------------------------------------------------------------

    def want(self, client: int, run: int, wants: Collection[DecodeSpec]) -> None:
        """A client wants something prepared of a run."""
        where = ClientNumber(client), RunNumber(run)
        (numbers, *_) = self.tell(ClientPrepares(*where, tuple(wants)))
        assert isinstance(numbers, Numbers)
        assert numbers.numbers
        self.wanted[where] = numbers.numbers
        self.named |= dict(zip(numbers.numbers, wants, strict=True))
        assert len(set(self.named.values())) == len(self.named), "a want has two numbers"
        self.check()

    def leave(self, client: int) -> None:
        """A client is gone."""
        for lease in [number for number, held in self.held.items() if held.client == client]:
            self._compare(lease)
        super().leave(client)
        self.wanted = {where: numbers for where, numbers in self.wanted.items() if where[0] != client}

    def release(self, lease: int, *, checked: bool = True) -> None:
        """A client has copied, from both memories."""
        self._compare(lease)
        super().release(lease, checked=checked)

    def _compare(self, lease: int) -> None:
        copied = self.copied.pop(lease, None)
        if copied is not None:
            found = self.memory[copied.pages].tobytes()
            assert found == copied.content, "a prepared sample changed while a client was copying it"

    def _take(self, client: ClientNumber, answer: Lease) -> None:
        run = self.asked[client].key[0]
        super()._take(client, answer)
        ready = answer.places[answer.state & PREPARED > 0].tolist()
        wants = self.wanted.get((client, run), ())
        assert len(answer.prepared) == len(ready) * len(wants)
        counts = answer.prepared.counts.astype(np.int64).reshape(-1, max(1, len(ready)))
        memory, first = self.memory[answer.prepared.pages].reshape(-1), 0
        for number, mine in zip(wants, counts, strict=False):
            indices = self.index.table["index"][ready]
            for place, found in zip(ready, unpack_chains(memory[first:], mine, PAGE, number, indices), strict=True):
                assert found is not None
                assert np.array_equal(found, values(self.named[number], place)), f"{place} is not what it should be"
            first += int(mine.sum()) * PAGE
        self.copied[answer.number] = Copied(tuple(ready), wants, answer.prepared.pages, memory.tobytes())

    # -- preparers ---------------------------------------------------------------------------------------------------

    def _do(self, instruction: Instruction) -> bool:
        match instruction:
            case StartPreparer(number):
                assert number not in self.running
                assert number not in self.starting
                self.starting.append(number)
            case EndPreparer(number):
                self._gone(number)
            case Prepare(number):
                assert number in self.running
                assert number not in self.tasks, "a preparer has two batches"
                for place in self.places(instruction):
                    self.there.discard((instruction.wanted, place))  # it has gone in this step
                    others = [each for each in self.tasks.values() if each.wanted == instruction.wanted]
                    assert all(place not in self.places(each) for each in others), "a sample is prepared twice"
                self.tasks[number] = instruction
            case Fill(number, batch):
                staging, task = self._staged.pop(batch)
                self.fills.append((instruction, staging, task))
            case _:
                return super()._do(instruction)
        return True

    def places(self, task: Prepare) -> list[int]:
        """Places of the samples of a batch, by their pages: they must be what was read."""
        heads = np.cumsum(task.chains.counts.astype(np.int64)) - task.chains.counts
        rows = self.arena.pages[task.chains.pages[heads], :ROW_BYTES].reshape(-1).view(ROW)
        found: list[int] = (len(self.sizes) - 1 - rows["index"].astype(np.int64)).tolist()
        return found

    def being_prepared(self) -> list[NDArray[Any]]:
        """Places of the samples that preparers look at."""
        return [np.array(self.places(task)) for task in self.tasks.values()]

    def is_ready(self, which: int = 0) -> None:
        """A preparer has started."""
        number = self.starting.pop(which)
        self.running.add(number)
        self.tell(PreparerReady(number))
        self.check()

    def finish_batch(self, number: int, *, cannot: Collection[int] = (), untried: int = 0) -> None:
        """A preparer has prepared its batch, but for the places `cannot` and the last `untried` samples."""
        task = self.tasks.pop(number)
        places, sizes = self.places(task), list[int]()
        staging = list[NDArray[np.uint8]]()
        for position, place in enumerate(places):
            if position and position >= len(places) - untried:
                sizes.append(UNTRIED)
            elif place in cannot:
                sizes.append(CANNOT)
            else:
                header, data = pack_values(task.wanted, int(self.index.table["index"][place]), values(task.want, place))
                sizes.append(HEADER.itemsize + len(data))
                staging.append(np.frombuffer(header + data.tobytes() + bytes(-sizes[-1] % PAGE), np.uint8))
                self.right.add(place)
        self._staged = {task.number: (np.concatenate([np.empty(0, np.uint8), *staging]).reshape(-1, PAGE), task)}
        self.tell(PreparerSized(number, task.number, np.array(sizes, np.int64)))
        self.check()

    def finish_fill(self, which: int = 0) -> None:
        """What a preparer has made is copied."""
        fill, staging, task = self.fills.pop(which)
        self.memory[fill.pages] = staging[fill.source]
        batch = self.preparing._batches[fill.number]
        for place in batch.places.tolist():
            self.there.add((task.wanted, place))
            self.made[task.wanted, place] = self.made.get((task.wanted, place), 0) + 1
        self.tell(PreparedFilled(fill.number))
        self.check()

    def end(self, number: int) -> None:
        """A preparer ends, whatever it did."""
        self._gone(number)
        self.tell(PreparerEnded(number))
        self.check()

    def _gone(self, number: int) -> None:
        self.running.discard(number)
        self.starting = [each for each in self.starting if each != number]
        self.tasks.pop(number, None)

    def _finish_one(self) -> bool:
        if super()._finish_one():
            return True
        if self.starting:
            self.is_ready()
        elif self.tasks:
            self.finish_batch(next(iter(self.tasks)))
        elif self.fills:
            self.finish_fill()
        else:
            return False
        return True

    # -- what must always hold ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every page of the second memory has one owner, and no copied sample has gone."""
        super().check()
        memory = self.preparing.memory
        allocator = memory.allocator
        owner = np.zeros(allocator.count, np.int64)
        owner[0] += 1
        np.add.at(owner, free_pages(allocator), 1)
        for fill, *_ in self.fills:
            np.add.at(owner, fill.pages, 1)
        here = set[tuple[int, int]]()
        for want in memory:
            shelf, leases = memory[want], np.zeros(len(self.sizes), np.int64)
            made = shelf.all(MADE)
            here |= {(want, place) for place in made.tolist()}
            np.add.at(owner, allocator.chains(shelf._head[made], shelf._count[made]), 1)
            for copied in self.copied.values():
                if want in copied.wants:
                    leases[list(copied.places)] += 1
            assert (leases == shelf._leases).all(), "a lease that nobody has, or the other way round"
            tasks = [place for task in self.tasks.values() if task.wanted == want for place in self.places(task)]
            filling = [b for b in self.preparing._batches.values() if b.heads is not None and b.want == want]
            making = sorted([*tasks, *(place for batch in filling for place in batch.places.tolist())])
            assert making == shelf.all(MAKING).tolist()
        assert (owner == 1).all(), f"pages with no owner or several: {np.flatnonzero(owner != 1)}"
        assert here <= self.there
        self.there = here
