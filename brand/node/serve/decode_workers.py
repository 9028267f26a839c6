"""Passes batches to decode workers, and decoded samples to the second memory: processes, sockets and one thread.

The server communicates with each decode worker over a pair of sockets, which its loop watches. Decoded samples are
written to memory that only the server and this worker have mapped. One thread copies them, so that only the server
writes the memory that clients read. The processes end with their sockets, so they end with the server in any case.
"""

from __future__ import annotations

import mmap
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.anonymous import anonymous_file, seal
from brand.errors import ProtocolError
from brand.node.decide.state.instructions import EndPreparer, Fill, Prepare, StartPreparer
from brand.node.decide.stimuli import PreparedFilled, PreparerEnded, PreparerReady, PreparerSized, Stimulus
from brand.node.memory.arena import Arena
from brand.node.wire.decoding import MOST, PAGE, READY, STAGING, Setup, pack_batch, pack_want, unpack_sizes
from brand.pythonchild import start_helper
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet

END_S: Final = 5.0
"""Seconds that a server that ends waits for a process that it has killed."""


@dataclass(slots=True)
class _Process:
    """A running decode worker."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    staging: NDArray[np.uint8]
    """Its pages, shape (pages, page size), read-only."""
    told: set[int] = field(default_factory=set)
    """Numbers of the decode specs that it has received."""
    batch: tuple[int, int] | None = None
    """Number and sample count of the batch that it decodes."""

    def takes(self, number: int, samples: int) -> None:
        self.batch = number, samples

    def answers(self) -> None:
        self.batch = None


class DecodeWorkerProcesses(Reprs, shows="_processes _dying"):
    """The processes of one server's decode workers.

    They read samples of `data` in `arena`; decoded samples go to `prepared`. `post` has the loop call a function.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        data: StoredDataSet,
        arena: Arena,
        prepared: Arena,
        post: Callable[[Callable[[], None]], None],
        tell: Callable[[Stimulus], object],
        plugins: tuple[str, ...] = (),
    ) -> None:
        self._selector, self._arena, self._prepared = selector, arena, prepared
        self._setup = Setup(data.header.schema, data.dictionary, arena.pages.shape[1], plugins).pack()
        self._post, self._tell = post, tell
        self._processes: dict[int, _Process] = {}
        self._dying: list[subprocess.Popen[bytes]] = []
        self._fills: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._copy, name="prepared", daemon=True)
        self._thread.start()

    def do(self, instruction: StartPreparer | EndPreparer | Prepare | Fill) -> None:
        match instruction:
            case StartPreparer(number):
                self._start(number)
            case EndPreparer(number):
                self._end(number)
            case Prepare():
                self._prepare(instruction)
            case Fill():
                staging = self._processes[instruction.preparer].staging
                self._fills.put(partial(self._fill, staging, instruction))

    def close(self) -> None:
        for number in list(self._processes):
            self._end(number)
        self._fills.put(None)
        self._thread.join(END_S)
        for process in self._dying:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)

    def _start(self, number: int) -> None:
        self._dying = [process for process in self._dying if process.poll() is None]
        try:
            found = self._started()
        except OSError:  # no descriptor or no process is left
            self._post(partial(self._tell, PreparerEnded(number)))  # type: ignore[arg-type]
            return
        self._processes[number] = found
        self._selector.register(found.line.fileno(), selectors.EVENT_READ, lambda _: self._hear(number))

    def _started(self) -> _Process:
        with ExitStack() as undo:
            line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(theirs.close)
            undo.callback(line.close)
            staging = seal(anonymous_file("brand-staging", STAGING), writers=True)
            undo.callback(os.close, staging)
            os.pwrite(staging, self._setup, 0)
            pages = np.frombuffer(mmap.mmap(staging, STAGING, prot=mmap.PROT_READ), np.uint8).reshape(-1, PAGE)
            numbers = theirs.fileno(), self._arena.descriptor, staging
            module, size = "brand.node.serve.decode_worker", len(self._setup)
            process = start_helper(module, numbers, *numbers, size, stdout=subprocess.DEVNULL)
            line.settimeout(0)
            undo.pop_all()
            theirs.close()
            os.close(staging)
        return _Process(process, line, pages)

    def _end(self, number: int) -> None:
        """End a process. Samples that it has decoded are still copied."""
        found = self._processes.pop(number)
        self._selector.unregister(found.line.fileno())
        found.line.close()
        found.process.kill()
        self._dying.append(found.process)

    def _lose(self, number: int) -> None:
        """Handle a process that has ended or sent an invalid message."""
        self._end(number)
        self._tell(PreparerEnded(number))

    def _prepare(self, batch: Prepare) -> None:
        found = self._processes[batch.preparer]
        packets = [] if batch.wanted in found.told else [pack_want(batch.wanted, batch.want)]
        found.told.add(batch.wanted)
        found.takes(batch.number, len(batch.chains))
        try:
            for packet in (*packets, pack_batch(batch.wanted, batch.chains)):
                found.line.send(packet)
        except OSError:  # the process has ended, which the loop will notice
            pass

    def _hear(self, number: int) -> None:
        found = self._processes.get(number)
        if found is None:
            return
        try:
            packet = found.line.recv(MOST)
            if packet == READY and found.batch is None:
                self._tell(PreparerReady(number))
                return
            if not packet or found.batch is None:
                raise ProtocolError("a decode worker answers without a request")
            sizes = unpack_sizes(packet, found.batch[1])
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._lose(number)
            return
        batch = found.batch[0]
        found.answers()
        self._tell(PreparerSized(number, batch, sizes))

    def _copy(self) -> None:
        while (job := self._fills.get()) is not None:
            job()

    def _fill(self, staging: NDArray[np.uint8], fill: Fill) -> None:
        count, source = len(fill.source), fill.source
        plain = int(source[-1]) == count - 1
        self._prepared.put_in(fill.pages, staging[:count] if plain else staging[source])
        self._post(partial(self._tell, PreparedFilled(fill.number)))  # type: ignore[arg-type]
