"""A data server without sockets, threads or a clock: `NodeState` with a data set made of bytes that tell what they are.

`World` executes the instructions that the server executes, when it is told to: so a test decides in which order reads
end, plans are made and clients speak. After every call it checks what must always hold. With a network it is one node
of several.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, UnreachableError, UsageError
from brand.formats.constants import ROW
from brand.node.decide.cache.caching import WRITES, CacheStart, FolderStart
from brand.node.decide.core import LARGEST_SHARE, DecodingStart
from brand.node.decide.node_state import NodeState
from brand.node.decide.online.online_epoch import OnlineEpoch
from brand.node.decide.online.online_orders import OnlineOrders
from brand.node.decide.planner import make_window
from brand.node.decide.reads.operations import StorageFacts, StoredChunks
from brand.node.decide.sharing.joins import JobJoins
from brand.node.decide.state.choosing import ChooseCached, Placement
from brand.node.decide.state.epoch import Epoch
from brand.node.decide.state.epoch_table import ActiveEpoch, Key
from brand.node.decide.state.instructions import (
    DrawAnswer,
    Forget,
    Instruction,
    MakePlan,
    MakeWindow,
    Read,
    ReadFor,
    Refuse,
    Say,
    Write,
)
from brand.node.decide.state.members import ALONE, Members
from brand.node.decide.state.states import COMING, DUE, EARLY, HELD, UNWANTED
from brand.node.decide.state.windowed import WindowedEpoch
from brand.node.decide.stimuli import (
    ClientBegins,
    ClientDraws,
    ClientFetches,
    ClientLeaves,
    ClientRegisters,
    ClientReleases,
    ClientTakes,
    KeptChosen,
    PlanMade,
    ReadEnded,
    ReadForEnded,
    Stimulus,
    WriteEnded,
)
from brand.node.memory.allocator import Allocator
from brand.node.memory.arena import Arena
from brand.node.memory.directory import Directory, Entries, are_checked, unchanged
from brand.node.memory.pages import ROW_BYTES, PagePool, pages_needed
from brand.node.memory.residents import MAX_LEASES, Chosen, Residents
from brand.node.serve.exchange import StreamExchange
from brand.node.serve.recording import Recorder
from brand.node.wire.client_messages import Deliver, Number, pack_samples, unpack_samples
from brand.node.wire.draw_messages import Lease
from brand.node.wire.drawing import Announcement
from brand.node.wire.messages import PREPARED
from brand.node.wire.network import Network
from brand.node.wire.numbers import ClientNumber, RunNumber
from brand.orders.base.dtypes import smallest
from brand.orders.base.joins import Join, Joins
from brand.orders.base.part import Subset
from brand.orders.base.plan import EpochPlan, read_of_sample
from brand.orders.base.rank_rule import RankRule
from brand.orders.mixtures.weights import WeightedMember, expectations, members_of
from brand.orders.order import Order, renewed
from tests.node.packing import pages_of

PAGE = 128
DATA_SET = "0" * 32


def free_pages(allocator: Allocator) -> NDArray[np.int32]:
    """The pages that can be allocated, each once."""
    fresh = np.arange(allocator._fresh, allocator.count, dtype=np.int32)
    return np.concatenate((allocator._returned[: allocator._top], fresh))


def content(place: int, size: int) -> NDArray[np.uint8]:
    """The stored bytes of a sample, which differ from those of every other one."""
    return ((np.arange(size) + 1) * (2 * place + 1) + (np.arange(size) // 7) * (place + 3) + place).astype(np.uint8)


class Index:
    """The rows of a data set with samples of these sizes, and its chunk files."""

    def __init__(self, sizes: Sequence[int], chunk_size: int) -> None:
        self.sizes, self.chunk_size = np.array(sizes, np.int64), chunk_size
        self.table = np.zeros(len(sizes), ROW)
        self.chunks: list[NDArray[np.uint8]] = []
        for first in range(0, len(sizes), chunk_size):
            part = self.sizes[first : first + chunk_size]
            front = np.full(64 + 32 * len(part), 255, np.uint8)
            offsets = len(front) + np.cumsum(part) - part
            self.table["offset"][first : first + chunk_size] = offsets
            self.chunks.append(
                np.concatenate([front, *(content(first + k, size) for k, size in enumerate(part.tolist()))])
            )
        self.table["size"] = self.table["raw_size"] = sizes
        self.table["checksum"] = np.arange(len(sizes)) * 1_000_003
        self.table["index"] = np.arange(len(sizes))[::-1]

    def rows(self, first: int, end: int) -> NDArray[np.void]:
        """As `Core` asks for them."""
        return self.table[first:end]

    def rows_at(self, places: NDArray[Any]) -> NDArray[np.void]:
        """As `Core` asks for them."""
        rows: NDArray[np.void] = self.table[places]
        return rows


def some_pieces(rng: random.Random, read: Read, share: float) -> list[int]:
    """The pieces of a read that fail: any number of them in this share of the cases, else none."""
    pieces = range(len(read.pieces))
    return rng.sample(pieces, rng.randint(1, len(pieces))) if rng.random() < share else []


@dataclass
class Held:
    """An answer that a client has not released."""

    client: ClientNumber
    lease: Lease
    contents: dict[int, bytes]


@dataclass
class Asked:
    """A draw that was not answered yet."""

    key: Key
    positions: NDArray[np.int64]


@dataclass
class Looked:
    """Kept samples that a client is copying by itself: their entries when it looked first, and the bytes of their first
    pages, which it has copied."""

    key: Key
    positions: NDArray[np.int64]
    places: NDArray[np.int64]
    entries: Entries
    begun: list[bytes]


@dataclass
class Run:
    """A run, as it should be known."""

    order: Order
    name: str
    clients: set[int]


def weighted_members(samples: int, k: int) -> list[WeightedMember]:
    """The orders of a sampler whose weights are 1 to `k`, again and again, with epochs of two draws a sample."""
    return members_of(expectations((1 + np.arange(samples) % k).astype(np.float64), 2 * samples))


@dataclass
class World:
    """A core, its arena, and what is on its way."""

    sizes: Sequence[int]
    chunk_size: int
    pages: int
    depth: int = 2
    members: Members = ALONE
    remote_pages: int = 0
    network: Network | None = None
    """Where it meets the other nodes; None: it is alone."""
    plans: dict[tuple[Order, int, tuple[Join, ...]], EpochPlan] = field(default_factory=dict)
    """Plans that are made, by order, epoch and joins; the nodes of a cluster share them."""
    given: dict[Key, dict[int, int]] = field(default_factory=dict)
    """What clients got of each epoch: place by position."""
    now_s: float = 1000.0
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    read_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes of large reads, by the number of their epoch and of the cache folder that they came from; 0 for none."""
    jobs: list[MakePlan | MakeWindow | ChooseCached | ReadFor] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    """Leases by number."""
    asked: dict[int, Asked] = field(default_factory=dict)
    """What each client has asked for and not got."""
    looked: dict[int, Looked] = field(default_factory=dict)
    """What each client is copying by itself."""
    answered: list[Lease] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    """Clients that left; a number is never used again."""
    runs: dict[int, Run] = field(default_factory=dict)
    right: set[int] = field(default_factory=set)
    """Places whose checksums a client has found right since they came into memory."""
    unanswered: int = 0
    """Positions that were asked for by clients who left before the answer."""
    refused: dict[int, str] = field(default_factory=dict)
    """Why clients cannot go on."""
    fetching: dict[int, list[int]] = field(default_factory=dict)
    """Places that clients want by name and have not got."""
    cache: int | None = None
    """Room of its cache folder in bytes; None: it has none."""
    second: int | None = None
    """Room of a slower cache folder in bytes; None: it has none."""
    placement: Placement = "auto"
    epochs_of_runs: int | None = None
    """How many epochs the user has said that a run takes."""
    whole_unit: int = 1
    """Samples that the storage reads faster at once than one by one."""
    stored: set[int] = field(default_factory=set)
    """Places whose bytes are in the cache folder, which may outlive a server."""
    stored_second: set[int] = field(default_factory=set)
    """Those in the slower one."""
    gap_bytes: int = 1 << 40
    """Larger gaps between the samples of a read are not read through."""
    prepared: DecodingStart | None = None
    """What it prepares with (`tests.node.preparing`)."""
    whole: bool = False
    """Whether all its plans are made as a whole."""
    measures: bool = False
    """Whether a test only counts what is read: then it leaves the checks to other tests, as they take long."""

    def __post_init__(self) -> None:
        self.index = Index(self.sizes, self.chunk_size)
        self.pages_of = smallest(pages_needed(self.index.sizes, PAGE))
        self.allocator = Allocator(self.pages * PAGE, PAGE)
        self.arena = Arena(self.allocator.count, PAGE)
        self.entries = np.zeros(len(self.sizes), np.uint64)
        shows = self.members is ALONE and self.prepared is None
        residents = Residents(
            PagePool(self.allocator, self.arena, self.pages_of),
            self.members.nodes,
            Directory(self.entries) if shows else None,
        )
        self.turn = NodeState(
            StoredChunks(self.index, self.chunk_size, StorageFacts(0, self.gap_bytes)),
            *(residents, self.members, self.depth, self.remote_pages, self._cache_start(), self.prepared),
        )
        self.core = self.turn.core
        self.exchange: StreamExchange | None = None
        if self.network is not None:
            self.exchange = StreamExchange(self.turn, self.network, PAGE, self.tell)
        self._last_run = 0
        self.recorder: Recorder | None = None
        """Where a test wants all decisions logged."""

    def tell(self, stimulus: Stimulus) -> list[Instruction]:
        """Something happens to the node, which does at once what follows from it."""
        instructions, refused = list[Instruction](), None
        try:
            instructions = self.turn.handle(stimulus, self.now_s)
        except BrandError as error:
            refused = error
            raise
        finally:
            if self.recorder is not None:
                self.recorder.told(self.now_s, stimulus, instructions, refused)
        for instruction in instructions:
            self._do(instruction)
        return instructions

    def _cache_start(self) -> CacheStart | None:
        if self.cache is None:
            return None
        every, rooms = np.arange(len(self.sizes)), [room for room in (self.cache, self.second) if room is not None]
        folders = tuple(
            FolderStart(f"/cache{number or ''}", np.isin(every, list(self.store(number + 1))), room)
            for number, room in enumerate(rooms)
        )
        sizes = self.index.sizes.astype(np.uint32)
        return CacheStart(folders, sizes, self.placement, self.epochs_of_runs, self.whole_unit)

    def store(self, folder: int) -> set[int]:
        """Places whose bytes are in a cache folder, by its number."""
        return self.stored_second if folder == 2 else self.stored

    # -- what clients do ---------------------------------------------------------------------------------------------

    def register(
        self, client: int, name: str = "run", *, tag: int | None = None, turn: int | None = None, **order: Any
    ) -> RunNumber:
        """Make a run known; its number. `part=k` draws all samples but each k-th, `part=-k` only each k-th.

        `weighted=(k, n)`: the n-th order of a sampler whose weights are 1 to k, again and again.
        """
        chunks = -(-len(self.sizes) // self.chunk_size)
        facts: dict[str, Any] = {"group_chunks": 1, "protocol": "stripes", "seed": 0} | order
        facts["group_chunks"] = min(facts["group_chunks"], chunks)
        if facts["protocol"] in ("stripes", "slots", "shared", "coordl", "storage"):
            facts |= {"stripe": min(facts.get("stripe", 1), self.chunk_size)}
        if facts["protocol"] in ("stripes", "slots"):
            facts = {"refill": "fill_rate"} | facts
        sizes = {"data_set": DATA_SET, "samples": len(self.sizes), "chunk_size": self.chunk_size}
        left_out, weighted = facts.pop("part", None), facts.pop("weighted", None)
        wanted = Order.from_json(renewed(sizes | facts, epoch=0, begun=False))
        if left_out is not None and len(self.sizes) > 1:
            mask = (np.arange(len(self.sizes)) % left_out == 0) == (left_out < 0)
            wanted = replace(wanted, subset=Subset.of(mask))
        if weighted is not None:
            member = weighted_members(len(self.sizes), weighted[0])[weighted[1]]
            wanted = replace(wanted, seed=wanted.seed + weighted[1], subset=member.samples, times=member.times)
        (numbered,) = self.tell(ClientRegisters(ClientNumber(client), wanted, name, tag, turn))
        assert isinstance(numbered, Number)
        number = numbered.run
        known = [n for n, run in self.runs.items() if (run.order, run.name) == (wanted, name)]
        if known:
            assert [number] == known
        else:
            assert number > self._last_run, "the number of a run is used again"
            self._last_run = number
            self.runs[number] = Run(wanted, name, set())
        self.runs[number].clients.add(client)
        if tag is not None:
            assert self.core.epochs.runs.order_by_tag(name, tag) == wanted
        self.check()
        return number

    def draws(self, run: int) -> int:
        """Positions of an epoch of a run."""
        return self.runs[RunNumber(run)].order.draws

    def begin(  # noqa: PLR0913 - as an announcement
        self,
        client: int,
        run: int,
        epoch: int,
        position: int = 0,
        *,
        rank: int = 0,
        replicas: int = 1,
        batch: int = 0,
        processes: int = 1,
        front: int = 0,
        rule: RankRule | None = None,
        copies: int = 1,
        spans: int = 1,
        part: int = 0,
    ) -> None:
        """A rank is about to draw. An order that the server has forgotten begins anew."""
        if self.is_over((RunNumber(run), epoch)):
            del self.given[RunNumber(run), epoch]
        announcement = Announcement(epoch, position, rank, replicas, batch, processes, front, copies, spans, part)
        self.tell(ClientBegins(ClientNumber(client), RunNumber(run), announcement, rule=rule))
        self.check()

    def begun(self, client: int, **order: Any) -> RunNumber:
        """A client begins the first epoch of a new run, and its plan is made."""
        run = self.register(client, **order)
        self.begin(client, run, 0)
        self.step()
        self.finish_plan()
        return run

    def draw(self, client: int, run: int, epoch: int, positions: Sequence[int]) -> bool:
        """A client asks for samples; whether it may: not before it got what it asked for, nor with too many leases."""
        asked, key = np.array(positions, np.int64), (RunNumber(run), epoch)
        leases = sum(held.client == client for held in self.held.values())
        allowed = client not in self.asked and leases < MAX_LEASES and not self.is_over(key)
        if allowed:
            self.asked[client] = Asked(key, asked)
        try:
            self.tell(ClientDraws(ClientNumber(client), key, asked))
        except UsageError:
            assert not allowed
            self.check()
            return False
        assert allowed
        self.check()
        return True

    def look(self, client: int, run: int, epoch: int, positions: Sequence[int]) -> bool:
        """A client looks whether it can take samples by itself, and begins to copy; whether it can."""
        key, asked = (RunNumber(run), epoch), np.array(positions, np.int64)
        some = self.core.draws.places(key, 0, len(self.sizes))
        if client in self.asked or asked.max() >= len(some) or not self.entries[some[asked]].all():
            return False
        places = some[asked].astype(np.int64)
        assert places.tolist() == self.plan(self.runs[run].order, epoch).sample_of[asked].tolist()
        entries = self.entries[places]
        counts, pages = pages_of(entries)
        assert (counts == self.pages_of[places]).all()
        firsts = pages[np.cumsum(counts, dtype=np.int64) - counts]
        begun = [self.arena.pages[page].tobytes() for page in firsts.tolist()]
        self.looked[client] = Looked(key, asked, places, entries, begun)
        return True

    def take(self, client: int, *, checked: bool = True) -> bool:
        """A client has copied, looks again, and tells what it has taken; whether it has got its samples."""
        looked = self.looked.pop(client)
        counts, pages = pages_of(looked.entries)
        copied, at = list[bytes](), 0
        for first, count in zip(looked.begun, counts.tolist(), strict=True):
            copied.append(first + self.arena.pages[pages[at + 1 : at + count]].tobytes())
            at += count
        if not unchanged(self.entries[looked.places], looked.entries).all():
            return False
        given = self.given.setdefault(looked.key, {})
        for position, place, data in zip(looked.positions.tolist(), looked.places.tolist(), copied, strict=True):
            assert self._is(place, data), f"{place} was taken and is not what was read"
            assert given.setdefault(position, place) == place, f"another sample at position {position} than before"
        assert len(set(given.values())) == len(given), "a sample at two positions of an epoch"
        assert set(looked.places[are_checked(looked.entries)].tolist()) <= self.right
        right = looked.places if checked else looked.places[:0]
        self.right |= set(right.tolist())
        self.tell(ClientTakes(ClientNumber(client), looked.key, looked.positions, right))
        self.check()
        return True

    def _is(self, place: int, data: bytes) -> bool:
        """Whether pages hold the row, with the place in it, and the bytes of a sample."""
        size = int(self.index.sizes[place])
        row, stored = self.index.table[place : place + 1].copy(), content(place, size).tobytes()
        row["offset"] = place
        return data[:ROW_BYTES] == row.tobytes() and data[ROW_BYTES : ROW_BYTES + size] == stored

    def fetch(self, client: int, places: Sequence[int]) -> None:
        """A client wants samples that only other nodes have, by name."""
        self.fetching[client] = list(places)
        self.tell(ClientFetches(ClientNumber(client), np.array(places, np.int64)))
        self.check()

    def release(self, lease: int, *, checked: bool = True) -> None:
        """A client has copied; what it was given must still be what it was."""
        held = self.held.pop(lease)
        assert self.contents(held.lease) == held.contents, "a sample changed while a client was copying it"
        self.tell(ClientReleases(held.client, lease, checked))
        if checked:
            self.right |= set(held.lease.places[held.lease.state > 0].tolist())
        self.check()

    def leave(self, client: int) -> None:
        """A client is gone."""
        for lease in [number for number, held in self.held.items() if held.client == client]:
            assert self.contents(self.held[lease].lease) == self.held[lease].contents
            del self.held[lease]
        self.looked.pop(client, None)
        unanswered = self.asked.pop(client, None)
        self.unanswered += 0 if unanswered is None else len(unanswered.positions)
        self.gone.add(client)
        self.tell(ClientLeaves(ClientNumber(client)))
        for number, run in list(self.runs.items()):
            run.clients.discard(client)
            if not run.clients:
                del self.runs[number]
        self.check()

    # -- what threads do ---------------------------------------------------------------------------------------------

    def finish_read(
        self,
        number: int = 0,
        *,
        failed: Collection[int] = (),
        left: Collection[int] = (),
        whole: bool = False,
        ahead: Collection[int] = (),
        seconds: tuple[float, ...] = (),
    ) -> None:
        """A read ends. Its pieces have the bytes of the file; those of `failed`, as far as it has them, an error
        half-way. Those of `left` are left in the page cache, where their job shares nothing, and where `whole`, all of
        their chunks and those that were found `ahead`. `seconds` that each piece took, if that is measured.
        """
        read = self.reads.pop(number)
        lost = tuple(sorted(piece for piece in failed if piece < len(read.pieces)))
        (epoch, _), *others = self.waits_for(read)
        may = not read.plan.shares and not others
        aside = tuple(p for p in sorted(left) if may and p not in lost and not read.pieces["folder"][p])
        for piece, vector in enumerate(read.vectors):
            if piece not in aside:
                self._fill(read, piece, vector, failed=piece in lost)
        found = {*read.pieces["chunk"][list(aside)].tolist(), *ahead} if whole and aside else ()
        chunks = tuple(sorted(found))
        self.tell(ReadEnded(read, lost, aside, chunks, seconds))
        for piece in lost + aside:
            places = read.places_of(piece)
            if not read.pieces["folder"][piece] and not set(places.tolist()) <= self.stored | self.stored_second:
                states = epoch.states
                left = states.waited_for(places) & ~states.due(places)  # what came early comes again when it is due
                assert not left.any(), "what could not be read is still waited for"
        self.check()

    def _fill(self, read: Read, piece: int, vector: NDArray[np.void], *, failed: bool) -> None:
        """A piece of a read brings its bytes."""
        chunk, offset, size, *_, folder = read.pieces[piece].item()
        data = self.index.chunks[chunk][offset : offset + size]
        if folder:
            places = read.places_of(piece).tolist()
            assert failed or set(places) <= self.store(folder), "a read of what is not in the cache folder"
            data = self._part(chunk, folder)[offset : offset + size]
        if not failed:
            source = self.waits_for(read)[0][0].number, folder
            self.read_bytes[source] = self.read_bytes.get(source, 0) + size
        assert len(data) == size, "a read beyond the end of the file"
        assert int(vector["length"].sum()) == size
        done, stop = 0, size // 2 if failed else size
        for base, length in vector.tolist():
            if length and done < stop:
                part = np.ascontiguousarray(data[done : done + length])
                ctypes.memmove(base, part.ctypes.data, length)
            done += length

    def finish_write(self, number: int = 0, *, wrong: Sequence[int] = (), stopped: str = "") -> None:
        """A write ends: the folder has the samples, but for those that were `wrong`."""
        write = self.writes.pop(number)
        held = ~np.isin(write.places, wrong)
        chunk_of = write.pages.reshape(-1)
        ends = np.cumsum(write.counts.astype(np.int64))
        for place, end, count in zip(write.places.tolist(), ends.tolist(), write.counts.tolist(), strict=True):
            pages = self.arena.pages[chunk_of[end - count : end]].tobytes()
            size = int(self.index.sizes[place])
            assert pages[ROW_BYTES : ROW_BYTES + size] == content(place, size).tobytes(), "pages were used again"
        if stopped:
            held[:] = False
        self.store(write.folder).update(write.places[held].tolist())
        self.tell(WriteEnded(write, held, stopped))
        self.check()

    def _part(self, number: int, folder: int) -> NDArray[np.uint8]:
        """A chunk's part: holes, and the bytes of samples that were written."""
        part = np.full(len(self.index.chunks[number]), 238, np.uint8)
        for place in self.store(folder):
            if place // self.chunk_size == number:
                span = slice(int(self.index.table["offset"][place]), None)
                part[span][: self.index.sizes[place]] = self.index.chunks[number][span][: self.index.sizes[place]]
        return part

    def finish_job(self, *, looks: bool = True) -> None:
        """The planner has done the oldest of its jobs, as `NodeServer` would have it do.

        `looks`: it looks whether the plan is still wanted just when it is not any more.
        """
        job = self.jobs.pop(0)
        match job:
            case ChooseCached(number):
                if job.foresee():
                    if self.turn.wants_choice(job):
                        self.jobs.append(job)
                else:
                    kept = job.kept(self.pages_of)
                    self.tell(KeptChosen(number, kept, job.cached(kept), job.since, job.whole_unit))
            case ReadFor():
                samples = [content(place, int(self.index.sizes[place])).tobytes() for place in job.places.tolist()]
                self.tell(ReadForEnded(job, pack_samples(list(samples))))
            case MakeWindow():
                self.tell(make_window(job))
            case MakePlan(key, order, joins):
                if self.turn.wants_plan(job) or not looks:
                    windows = order.windows(key[1]) if job.in_windows and not self.whole else None
                    plan = self.plan(order, key[1], joins) if windows is None else windows
                    read_of = read_of_sample(plan) if isinstance(plan, EpochPlan) else None
                    self.tell(PlanMade(key, plan, read_of, joins))
        self.check()

    def finish_plan(self) -> None:
        """The planner has made the plan of the epoch that has just begun, or its first window."""
        (job, *_) = self.jobs
        self.finish_job()
        if isinstance(job, MakePlan) and job.in_windows and not self.whole and job.order.windows(0) is not None:
            self.step()
            (window,) = (number for number, job in enumerate(self.jobs) if isinstance(job, MakeWindow))
            self.jobs.insert(0, self.jobs.pop(window))
            self.finish_job()

    def plan(self, order: Order, epoch: int, joins: tuple[Join, ...] = ()) -> EpochPlan:
        """The plan of an epoch."""
        if (order, epoch, joins) not in self.plans:
            self.plans[order, epoch, joins] = order.plan(epoch, joins)
        return self.plans[order, epoch, joins]

    # -- the loop ----------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Take what has come from other nodes."""
        assert self.exchange is not None
        self.exchange.take_events()
        self.check()

    def step(self, later_s: float = 0.0) -> bool:
        """What the loop does after events; whether anything happened."""
        self.now_s += later_s
        before, ready = self._given_up(), self._ready()
        unsent = {} if self.exchange is None else self.exchange.unsent()
        instructions = self.turn.step(self.now_s, unsent)
        if self.recorder is not None:
            self.recorder.stepped(self.now_s, unsent, instructions)
        happened = [self._do(instruction) for instruction in instructions]
        assert self.reads or not self._ready(), "a draw waits for nothing"
        others = sum(isinstance(job, ReadFor) for job in self.jobs)
        reading = sum(read.count for read in self.reads)
        assert reading + others <= self.depth, "more reads at a time than there are threads"
        self._check_given_up(before, ready=ready)
        self.check()
        return any(happened) or self.turn.core.epochs.is_building

    def _do(self, instruction: Instruction) -> bool:
        """Execute an instruction; whether it is something for this node's clients and threads."""
        match instruction:
            case MakePlan() | MakeWindow() | ChooseCached() | ReadFor():
                self.jobs.append(instruction)
            case Read():
                self.reads.append(instruction)
            case Write():
                self.writes.append(instruction)
                assert len(self.writes) <= WRITES, "more writes at a time than are allowed"
            case Forget(folder, forgotten, parts):
                chunks, store = set((forgotten // self.chunk_size).tolist()) if parts else set(), self.store(folder)
                store.difference_update(forgotten.tolist())
                store.difference_update([place for place in store if place // self.chunk_size in chunks])
            case DrawAnswer(client, answer):
                if client not in self.gone:
                    self._take(client, answer)
            case Say():
                assert self.exchange is not None
                self.exchange.say(instruction)
                return False
            case Deliver(client, data):
                places = self.fetching.pop(client)
                present, samples = unpack_samples(memoryview(data), self.index.sizes[places])
                assert present.all()
                for place, sample in zip(places, samples, strict=True):
                    assert sample == content(place, len(sample)).tobytes(), f"{place} is not what was fetched"
            case Refuse(client, error):
                if self.fetching.pop(client, None) is None:
                    self.refused[client] = str(error)
                else:
                    assert isinstance(error, UnreachableError)
                return False
            case _:
                return False
        return True

    def being_prepared(self) -> list[NDArray[Any]]:
        """Places of the samples that preparers look at."""
        return []

    def quiet(self) -> None:
        """Let the threads go on until there is nothing to do for them; nobody draws or releases."""
        for _ in range(200 * (len(self.sizes) + 10)):
            happened = self.step()
            if not self._finish_one() and not happened:
                return
        raise AssertionError("the loop never comes to rest")

    def settle(self) -> None:
        """Let everything happen, without errors, until every draw is answered and every lease released."""
        for _ in range(200 * (len(self.sizes) + 10)):
            happened = self.step()
            if self._finish_one():
                continue
            if self.held:
                self.release(next(iter(self.held)))
            elif not happened:
                if self.core.idle:
                    assert not self.asked
                    return
                self.now_s += 0.5
        raise AssertionError(f"a draw is never answered: {self.core.facts(1.0, 0.0)}")

    def _finish_one(self) -> bool:
        """The planner or a reader has done the oldest of its work; whether there was any."""
        if self.jobs:
            self.finish_job()
        elif self.writes:
            self.finish_write()
        elif self.reads:
            self.finish_read()
        else:
            return False
        return True

    def contents(self, answer: Lease) -> dict[int, bytes]:
        """What a client would copy: the row and the bytes of each sample that is present, by position in the answer."""
        at = np.cumsum(answer.counts.astype(np.int64)) - answer.counts
        found = {}
        for position, first, count in zip(
            np.flatnonzero(answer.state).tolist(), at.tolist(), answer.counts.tolist(), strict=True
        ):
            found[position] = self.arena.pages[answer.pages[first : first + count]].tobytes()
        return found

    def epochs(self) -> dict[Key, ActiveEpoch]:
        """Live epochs."""
        return dict(self.core.epochs.lives.live())

    def waits_for(self, read: Read) -> list[tuple[Epoch, NDArray[Any]]]:
        """The epochs that wait for a read, each with its places: first the one that it is for."""
        waits = self.core.reads.waits[read.number]
        return [(waits.epoch, read.places), *waits.others]

    @property
    def sharing(self) -> JobJoins:
        """Where jobs join each other, once one has come that shares."""
        assert self.turn.sharing is not None
        return self.turn.sharing.joins

    @property
    def online(self) -> OnlineOrders:
        """Orders that are decided while jobs draw, once a job has come that has one."""
        assert self.turn.online is not None
        return self.turn.online

    def joins(self, key: Key) -> tuple[Join, ...]:
        """Where a run has joined others in an epoch."""
        return () if self.turn.sharing is None else self.sharing.joined(key)

    def known(self, key: Key) -> Joins:
        """What clients are told of the joins of an epoch."""
        return Joins() if self.turn.sharing is None else self.sharing.known(key)

    def is_over(self, key: Key) -> bool:
        """Whether the order of an epoch is forgotten."""
        return self.turn.online is not None and self.online.is_over(key)

    def _given_up(self) -> tuple[dict[Key, tuple[ActiveEpoch, int]], int, Chosen]:
        """What making room may change: which epochs are live and where they start, how much is kept, of what choice."""
        live = {key: (live, live.epoch.progress.start) for key, live in self.epochs().items()}
        return live, self.core.residents.kept_pages, self.core.residents._chosen

    def _check_given_up(self, before: tuple[dict[Key, tuple[ActiveEpoch, int]], int, Chosen], *, ready: bool) -> None:
        """What is given up is given up as a whole, and not where a draw could be answered as it stood.

        A new choice may keep fewer samples, but all that it names.
        """
        epochs, kept, chosen = before
        now = self.epochs()
        if ready:
            assert all(now.get(key) is live for key, (live, _) in epochs.items()), "dropped though a draw was ready"
            residents = self.core.residents
            if residents._chosen is chosen:
                assert residents.kept_pages >= kept, "less is kept though a draw was ready"
            else:
                assert residents._to_keep is residents._chosen, "less is kept than was chosen though a draw was ready"
        for key, live in now.items():
            known, start = epochs.get(key, (None, 0))
            if known is live and live.epoch.progress.start > start:
                given_up = live.epoch.known[: max(0, live.epoch.progress.start - live.epoch.known.start)]
                skipped, states = live.epoch.plan.sample_of[np.array(given_up, np.int64)], live.epoch.states
                assert not states.are(HELD, skipped).any(), "held for positions that were given up"
                assert not states.waited_for(skipped).any(), "to be read for positions that were given up"

    def _ready(self) -> bool:
        """Whether a draw waits though nothing that it asks for is still to come."""
        epochs = self.epochs()
        for draw in self.core.draws.waiting:
            live = epochs.get(draw.key)
            leading = None if self.turn.sharing is None else self.turn.sharing.consensus
            stands = leading is None or draw.key in leading._committed or not leading.needs_votes(draw.key)
            if live is None or not stands or not live.epoch.decides(draw.positions):
                continue
            if self.core.epochs.runs[draw.key[0]].agreed_on(draw.key[1], self.members.node):
                places = live.epoch.plan.sample_of[draw.positions]
                preparing = self.turn.preparing
                prepares = preparing is not None and preparing.waits(draw.client, draw.key[0], places)
                sharing = self.turn.sharing
                in_step = sharing is not None and sharing.lockstep.is_held_back(draw, self.now_s)
                if not live.epoch.states.waited_for(places).any() and not prepares and not in_step:
                    return True
        return False

    def _take(self, client: ClientNumber, answer: Lease) -> None:
        """A client gets an answer: it must be the right one to its question."""
        asked = self.asked.pop(client)
        order = self.runs[asked.key[0]].order
        plan = self.plan(order, asked.key[1], self.joins(asked.key))
        drawn = self.online.orders.publish(asked.key, 0, len(self.sizes)) if order.grows else plan.sample_of
        assert answer.places.tolist() == drawn[asked.positions].tolist()
        drawn_in = order.drawn_in(asked.key[1])
        assert drawn_in is None or drawn_in.mask[answer.places].all()
        given = self.given.setdefault(asked.key, {})
        for position, place in zip(asked.positions.tolist(), answer.places.tolist(), strict=True):
            assert given.setdefault(position, place) == place, f"another sample at position {position} than before"
        assert len(set(given.values())) == len(given), "a sample at two positions of an epoch"
        assert answer.number not in self.held
        here = answer.places[answer.state > 0]
        assert len(set(here.tolist())) == len(here), "a sample is present twice"
        assert (answer.counts == self.pages_of[here]).all()
        assert len(answer.pages) == answer.counts.sum()
        state = answer.state[answer.state > 0] & ~np.uint8(PREPARED)
        assert state.tolist() == [1 + (place in self.right) for place in here.tolist()]
        got = self.contents(answer)
        for position, data in got.items():
            place = int(answer.places[position])
            assert self._is(place, data), f"{place} is not what was read"
        self.held[answer.number] = Held(client, answer, got)
        self.answered.append(answer)

    # -- what must always hold ---------------------------------------------------------------------------------------

    def _check_directory(self) -> None:
        """What is kept is shown where it lies, if its pages lie side by side, and nothing else is shown."""
        residents, shown = self.core.residents, np.flatnonzero(self.entries)
        counts, pages = pages_of(self.entries[shown])
        chains = residents.chains(shown)
        assert counts.tolist() == chains[0].tolist()
        assert pages.tolist() == chains[1].tolist(), "a sample lies elsewhere than the directory says"
        assert are_checked(self.entries[shown]).tolist() == residents.checked(shown).tolist()
        assert residents.kept()[shown].all(), "a sample is shown that may go"
        if residents._directory is not None:
            hidden = np.flatnonzero(residents.kept() & (self.entries == 0))
            for place in hidden.tolist():
                steps = np.diff(residents.chains(np.array([place]))[1])
                assert (steps != 1).any(), "a sample that is kept is not shown"

    def _to_come(self, epoch: Epoch) -> NDArray[np.bool_]:
        """The samples of reads that have not started."""
        if not isinstance(epoch, WindowedEpoch):
            return np.isin(read_of_sample(epoch.plan), epoch.reads.rest())
        found, queued = np.ones(len(self.sizes), np.bool_), set(epoch.reads.rest().tolist())
        for number in epoch.known if epoch.plan.reads is None else range(epoch.plan.read_count):
            found[slice(*epoch.plan.places_read(number))] = number in queued
        return found

    def check(self) -> None:
        """Every page has one owner; every reference has a reason; what is due can still come."""
        present = np.flatnonzero(self.core.residents._head)
        self.right &= set(present.tolist())
        if self.measures:
            return
        core, allocator = self.core, self.allocator
        residents, epochs = core.residents, {key: live.epoch for key, live in self.epochs().items()}
        owner = np.zeros(allocator.count, np.int64)
        owner[0] += 1
        np.add.at(owner, free_pages(allocator), 1)
        np.add.at(owner, residents.chains(present)[1], 1)
        reads = [*self.reads, *core.reads._again]
        for read in reads:
            np.add.at(owner, allocator.chains(read.heads, self.pages_of[read.places]), 1)
        peering = self.turn.peering
        arriving = {} if peering is None else peering.receiving.arriving._samples
        for sample in arriving.values():
            owner[sample.pages] += 1
        assert (owner == 1).all(), f"pages with no owner or several: {np.flatnonzero(owner != 1)}"

        reasons = residents.kept().astype(np.int64)
        for epoch in epochs.values():
            reasons[epoch.states.all(HELD)] += 1
        queued = [*core.caching.writing._queue, *(write.places for write in self.writes)]
        departing = [] if peering is None else list(peering.sending.departing._samples.values())
        in_parts = [np.array([sample.place]) for sample in departing]
        for places in (*core.draws.leases.places(), *queued, *self.being_prepared(), *in_parts):
            np.add.at(reasons, places, 1)
        found = residents.references(np.arange(len(reasons)))
        assert (reasons == found).all(), "a reference without a reason, or the other way round"
        assert ((reasons > 0) == residents.present(slice(None))).all()
        assert residents.kept_pages == int(self.pages_of[residents.kept()].sum())
        assert core.caching.writing._pages == sum(int(self.pages_of[places].sum()) for places in queued)
        self._check_directory()
        giants = self.pages_of > max(1, (allocator.count - 1) // LARGEST_SHARE)
        assert not giants[present].any(), "a sample is held that is too large to be"

        for node in self.members.others:
            from_node = residents._sender[residents._head] == node + 1
            reserved = len(arriving[node].pages) if node in arriving else 0
            assert residents.sent_pages[node] == int(self.pages_of[from_node].sum()) + reserved

        for epoch in epochs.values():
            to_come = self._to_come(epoch)
            if isinstance(epoch, OnlineEpoch):
                order = epoch.growing
                assert order.position_of[order.sample_of].tolist() == list(range(len(order.sample_of)))
                assert (epoch.reads.rest() < order.decided).all(), "a read of what is not decided"
                to_come |= order.open()
            on_the_way = np.zeros(len(self.sizes), np.int64)
            for read in reads:
                for waits, places in self.waits_for(read):
                    if waits is epoch:
                        on_the_way[places] += 1
            assert (on_the_way <= 1).all(), "a sample is read twice at the same time"
            every = np.arange(len(self.sizes))
            mine = np.ones(len(every), np.bool_) if epoch.mine is None else epoch.mine(every)
            coming = np.zeros(len(self.sizes), np.bool_)
            coming[np.concatenate([epoch.states.all(state) for state in (COMING, UNWANTED, EARLY)])] = True
            assert ((on_the_way > 0) == (coming & mine)).all(), "a read that no state tells of, or the other way round"
            due = np.concatenate((epoch.states.all(DUE), epoch.states.all(EARLY)))
            assert (to_come[due] | ~mine[due]).all(), "a sample is due that no read will bring"
        assert {draw.client for draw in core.draws.waiting} == set(self.asked)
        for draw in core.draws.waiting:
            life = core.epochs.lives.get(draw.key)
            assert life is not None, "a draw waits for an epoch that is not there"
            assert life.live is not None or life.planned, "a draw waits for an epoch that is never made"
        assert set(core.draws.leases._leases) == set(self.held)
        assert core.reads.under_way == sum(read.count for read in self.reads)
        for folder in (1, 2):
            held = np.flatnonzero(core.caching._held == folder).tolist()
            assert set(held) <= self.store(folder), "a sample counts as cached that the folder does not hold"

        known = set(self.runs) if self.network is None else set(core.epochs.runs)  # other nodes are clients, too
        assert {run for run, _ in core.epochs.lives} <= known
        given = core.counters.draws.from_memory + core.counters.draws.direct
        waiting = sum(len(draw.positions) for draw in core.draws.waiting)
        assert core.counters.draws.fetched == given + waiting + self.unanswered
