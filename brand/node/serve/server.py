"""The data server: one process per node and data set, which reads ahead and answers draws.

One loop owns all state and never waits for storage or for other nodes. Clients (`Clients`, `ClientRequests`), threads
(`BackgroundWork`) and other nodes (`StreamExchange`) report to it; `NodeState` decides; the loop executes.

The server ends when all its client processes have ended (see `Lifetime`), or when it is stopped.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from brand.errors import BrandError
from brand.node.decide.core import DecodingStart
from brand.node.decide.node_state import NodeState
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.state.choosing import ChooseCached
from brand.node.decide.state.instructions import (
    DrawAnswer,
    EndPreparer,
    Fill,
    Forget,
    Instruction,
    MakePlan,
    MakeWindow,
    Prepare,
    Read,
    ReadFor,
    Refuse,
    Say,
    StartPreparer,
    Write,
)
from brand.node.decide.stimuli import ClientLeaves, Stimulus
from brand.node.memory.arena import Arena, Arenas
from brand.node.memory.directory import ENTRY_BYTES, Directory
from brand.node.memory.pages import PagePool
from brand.node.memory.residents import Residents
from brand.node.serve.clients import Clients
from brand.node.serve.executor import Executor, Readers
from brand.node.serve.gauges import Gauges
from brand.node.serve.lifetime import Lifetime
from brand.node.serve.reports import Reports
from brand.node.serve.requests import ClientRequests, Served
from brand.node.serve.troubles import Troubles
from brand.node.serve.work import BackgroundWork, IsWanted, Storing, Workers
from brand.node.setup.caching import cache_reader, open_caches
from brand.node.setup.choose import choose_depth, use_page_cache
from brand.node.setup.measure import lay_out, measure_pages, members_of, pages_in, stored_sizes
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire import messages
from brand.node.wire.client_messages import Deliver, Joined, Number, Numbers, OrderDecided, PositionsDivided, pack
from brand.node.wire.draw_messages import pack_lease
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs
from brand.storage.dataset.cached import cached_samples
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import vector_reader
from brand.storage.profile.profile import load_profile
from brand.timeline import Timeline

if TYPE_CHECKING:
    from brand.node.serve.decode_workers import DecodeWorkerProcesses
    from brand.node.serve.exchange import StreamExchange, Watch
    from brand.node.serve.recording import Recorder
    from brand.node.wire.network import Network

_POLL_S: Final = 0.05
_LOOK_S: Final = 1.0
DRAIN_S: Final = 20.0
"""Seconds after SIGTERM for which a server still serves its clients. Schedulers kill a job 30 s after SIGTERM."""
FACTS_LIMIT_S: Final = 5.0


class NodeServer(Reprs, shows="address _clients _state"):
    """Serves one data set at an abstract socket address, alone or as one of several nodes.

    If the server is one of several, `network` creates the network, for the data set and the page size of the arena.
    Raises `UsageError` (memory too small, a log that cannot be written), OSError (EADDRINUSE: the address is taken),
    `FormatError` (no data set), `CacheError` (no cache folder).
    """

    def __init__(self, spec: ServerSpec, network: Callable[[StoredDataSet, int], Network] | None = None) -> None:
        data, member, prepared = StoredDataSet(spec.where), spec.member, spec.prepared
        self.address = spec.address
        self._selector = selectors.DefaultSelector()
        self._clients = Clients(
            spec.address,
            self._selector,
            lambda *asked: self._requests.handle(*asked),
            lambda number: self._tell(ClientLeaves(number)),
            messages.longest_order(data.header.samples, 1 if member is None else member.nodes),
        )
        try:
            node, nodes, peer_memory = (member.node, member.nodes, member.peer_memory) if member else (0, 1, None)
            sizes = stored_sizes(data) if spec.cache else None
            page, pages_of = pages_in(data) if sizes is None else measure_pages(sizes)
            layout = lay_out(page, pages_of, spec.memory, peer_memory, members_of(data, node, nodes))
            folders, cached = ([], None) if sizes is None else open_caches(spec.cache, data, sizes)
            arena = Arena(layout.allocator.count, page)
            decoding = second = None
            if prepared is not None:
                decoding = DecodingStart(prepared.allocator, prepared.count, prepared.least_runs, prepared.allotment)
                second = Arena(decoding.allocator.count, decoding.allocator.page)
            # Decoded samples are sent with a draw, so clients read nothing directly if the server decodes.
            shown = Arena(data.header.samples, ENTRY_BYTES) if layout.holds_all and second is None else None
            self._arenas = Arenas(arena, second, shown)
            joined = None if network is None else network(data, page)
        except BaseException:
            self._clients.close()
            raise
        profile = load_profile(data.name)
        best_depth, storage = choose_depth(data, profile, [cache.folder for cache in spec.cache])
        chunk_size = data.header.chunk_size
        through = use_page_cache(data, layout.allocator.bytes) if spec.page_cache is None else spec.page_cache

        def readers() -> Readers:
            near = (None if folder is None else cache_reader(folder, page_cache=through) for folder in folders)
            return Readers(vector_reader(data.location, page_cache=through), tuple(near))

        self._executor = Executor(spec.depth or best_depth, readers)
        directory = None if shown is None else Directory(shown.pages.view(np.uint64)[:, 0])
        residents = Residents(PagePool(layout.allocator, arena, layout.pages_of), nodes, directory)
        chunks, depth = StoredChunks(data, chunk_size, storage), self._executor.most
        self._state = NodeState(chunks, residents, layout.members, depth, layout.remote_pages, cached, decoding)
        # Only some servers need these modules, so that a plain server starts without them.
        self._recorder: Recorder | None = None
        if spec.record is not None:
            from brand.node.serve.recording import Recorder

            self._recorder = Recorder(spec.record, self._state)
        self._exchange: StreamExchange | None = None
        if joined is not None:
            from brand.node.serve.exchange import StreamExchange

            self._exchange = StreamExchange(self._state, joined, page, self._tell)
            self._selector.register(self._exchange.wake, selectors.EVENT_READ, self._exchange.take_events)
        decode_workers: DecodeWorkerProcesses | None = None
        if second is not None:
            from brand.node.serve.decode_workers import DecodeWorkerProcesses

            decode_workers = DecodeWorkerProcesses(
                self._selector, data, arena, second, self._executor.post, self._tell, spec.plugins
            )
        storing = tuple(
            None if folder is None else Storing(folder, data, arena, self._executor.post) for folder in folders
        )
        self._troubles = Troubles(data.location.chunk_file, self._clients.process_of, chunk_size, layout.members.node)
        self._work = BackgroundWork(
            data,
            layout.pages_of,
            Workers(self._executor, storing, decode_workers),
            IsWanted(self._state.wants_plan, self._state.wants_choice),
            self._tell,
            self._troubles,
            layout.members.node,
            leaves=shown is not None and not any(folders) and cached_samples(data) is not None,
        )
        self._lifetime = Lifetime(self._selector, spec.owners)
        self._gauges = Gauges(profile, self._clients.fetching_processes)
        served, reports = Served(data, spec.address, layout, self._arenas), Reports(self._troubles, self._gauges)
        self._requests = ClientRequests(served, self._state, self._exchange, self._lifetime, reports, self._tell)
        self._drained_s: float | None = None
        """Time at which the server ends even if clients fetch; None if it was not asked to end."""
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable once the server has been stopped."""
        self._selector.register(self._executor.wake, selectors.EVENT_READ, lambda _: self._executor.finish())
        self._selector.register(self._stop, selectors.EVENT_READ, lambda _: None)

    @property
    def memory(self) -> int:
        return self._state.core.residents.pool.allocator.bytes

    @property
    def listens_at(self) -> str | None:
        return None if self._exchange is None else self._exchange.address

    def connect(self, addresses: dict[int, str], watch: Watch | None = None) -> None:
        """Connect to the servers of the other nodes, if there are any; see `StreamExchange.connect`."""
        if self._exchange is not None:
            self._exchange.connect(addresses, watch)

    def facts(self, cells: int = 0, limit_s: float = FACTS_LIMIT_S) -> dict[str, Any]:
        """Return statistics (`docs/guides/monitor.md`), on request of another thread; `cells` as for `Reports.facts`.

        Raises TimeoutError if the loop does not answer in time, or has ended.
        """
        return self._executor.ask(lambda: self._requests.facts(len(self._clients), cells), limit_s)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write reads and waits to a file for Perfetto (`Timeline`), before `run`. Raises `UsageError`."""
        self._work.trace(Timeline(path, f"server of node {self._state.members.node}"))

    def run(self) -> None:
        """Serve until stopped, or until no client process is left."""
        why = "it was stopped, by a signal or by its launcher"
        try:
            stopped = False
            while not stopped and not self._over():
                for key, events in self._selector.select(self._patience()):
                    callback: Callable[[int], None] = key.data
                    callback(events)
                    stopped |= key.fd == self._stop
                self._step()
        except BaseException as error:
            why = f"of an error, {type(error).__name__}: {error}"
            raise
        finally:
            self._close(why)

    def stop(self) -> None:
        """End `run`, from any thread or signal handler."""
        with suppress(OSError):
            os.eventfd_write(self._stop, 1)

    def drain(self) -> None:
        """End `run` once no client fetches, at the latest after `DRAIN_S`; at once if this is the second call.

        A training that a scheduler ends, with all other processes of the job, may still save its state. May be called
        as `stop`.
        """
        if self._drained_s is not None or not self._clients.fetch:
            self.stop()
        else:
            self._drained_s = time.monotonic() + DRAIN_S

    def _over(self) -> bool:
        """Return whether no process needs this server any more."""
        if self._drained_s is not None and (not self._clients.fetch or time.monotonic() > self._drained_s):
            return True
        peering = self._state.peering
        used = len(self._clients) > 0 or (peering is not None and peering.peers.any_asks)
        starting = not self._requests.greeted or (peering is not None and not peering.peers.complete)
        return self._lifetime.over(time.monotonic(), used=used, starting=starting)

    def _patience(self) -> float:
        """Return the seconds that the loop may sleep while nothing happens.

        Python handles a signal when the main thread runs. A signal that arrives just before that thread sleeps, or that
        the kernel delivers to another thread, wakes nothing; so the loop never sleeps for long.
        """
        if self._state.hurries:
            return 0.0
        return _LOOK_S if self._state.idle else _POLL_S

    def _tell(self, stimulus: Stimulus) -> None:
        """Handle a stimulus, and execute the instructions that follow. Raises the errors of `NodeState.handle`."""
        now_s, instructions, refused = time.monotonic(), list[Instruction](), None
        try:
            instructions = self._state.handle(stimulus, now_s)
        except BrandError as error:
            refused = error
            raise
        finally:
            # Refused stimuli are recorded, too: their replay must raise the same error.
            if self._recorder is not None:
                self._recorder.told(now_s, stimulus, instructions, refused)
        for instruction in instructions:
            self._do(instruction)

    def _step(self) -> None:
        now_s, unsent = time.monotonic(), {} if self._exchange is None else self._exchange.unsent()
        instructions = self._state.step(now_s, unsent)
        if self._recorder is not None:
            self._recorder.stepped(now_s, unsent, instructions)
        for instruction in instructions:
            self._do(instruction)
        self._clients.tend(now_s)
        self._troubles.tend(self._state.core.epochs, now_s)
        self._gauges.tend(now_s, lambda: (self._state.core.counters.reads, self._state.core.used_bytes))

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case MakePlan():
                self._work.make_plan(instruction)
            case MakeWindow():
                self._work.make_window(instruction)
            case ChooseCached():
                self._work.choose(instruction)
            case Read():
                self._work.read(instruction)
            case Write():
                self._work.write(instruction)
            case Forget():
                self._work.forget(instruction)
            case ReadFor():
                self._work.read_for(instruction)
            case Say():
                assert self._exchange is not None
                self._exchange.say(instruction)
            case DrawAnswer(client, lease):
                self._work.answered(client, lease.held)
                self._reply(client, pack_lease(lease))
            case Number() | Joined() | OrderDecided() | Numbers() | PositionsDivided() | Deliver():
                self._reply(instruction.client, pack(instruction))
            case StartPreparer() | EndPreparer() | Prepare() | Fill():
                self._work.prepare(instruction)
            case Refuse(client, error):
                self._refuse(client, error)

    def _reply(self, client: ClientNumber, message: bytes) -> None:
        channel = self._clients.get(client)
        if channel is not None and not channel.closing:
            self._clients.send(channel, message)

    def _refuse(self, client: ClientNumber, error: BrandError) -> None:
        channel = self._clients.get(client)
        if channel is not None and not channel.closing:
            self._clients.refuse(channel, error, time.monotonic())

    def _close(self, why: str) -> None:
        # Clients first, so that they get the reason even if threads or other nodes take long to end.
        self._clients.close(why)
        if self._exchange is not None:
            self._exchange.close()
        self._work.close()
        self._troubles.close(time.monotonic())
        if self._recorder is not None:
            self._recorder.close()
        self._lifetime.close()
        self._selector.close()
        os.close(self._stop)
        self._arenas.close()
