"""Runs the processes of a cluster's nodes, and ends them together. One loop watches all of them.

The loop sends each process the token, shows its output line by line, and waits until every node reports that all nodes
are connected. If a process ends before that, or the time is over, the loop stops all other processes. If a process ends
later, the loop tells the user, and the other nodes continue: they read the samples that the lost node does not send. A
node stops at the end of its standard input, also if this process is killed. The loop kills a late node.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Final

from brand.cluster.launcher import Start
from brand.cluster.serving import DRAIN, Say, everybody
from brand.errors import ServerError, counted
from brand.node.serve.server import DRAIN_S
from brand.node.wire.connection import PREFIX
from brand.reprs import Reprs

READY_LIMIT_S: Final = 60.0
"""Seconds that all nodes together may take until they are connected."""
END_LIMIT_S: Final = 15.0
"""Seconds that all nodes together may take to end."""
KILL_LIMIT_S: Final = 5.0
DRAIN_LIMIT_S: Final = DRAIN_S + 2.0
"""Seconds that all nodes together may take to end after their clients."""
_LOOK_S: Final = 1.0
"""Maximum seconds that the loop sleeps: a signal that arrives just before it sleeps does not wake it."""
_LAST_WORDS: Final = 100
_MAX_LINE: Final = 1 << 16
_CHUNK: Final = 1 << 16


class LineBuffer(Reprs, shows="_rest"):
    """Joins pieces into whole lines; a line without an end has a limit."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[str]:
        """Return the lines that end in this piece; an empty piece is the end of the output."""
        whole = self._rest + (data or b"\n" * bool(self._rest))
        *lines, self._rest = whole.split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return [line.decode(errors="backslashreplace").rstrip("\r") for line in lines]


class Child(Reprs, shows="node where _process.pid address met"):
    """One node's process. Raises `ServerError` if its command cannot be run."""

    def __init__(self, node: int, start: Start, token: str) -> None:
        self.node, self.where = node, start.where
        self.address: str | None = None
        """The address at which a training attaches to this node; None until the node has written it."""
        self.met = False
        """Whether this node has reported that all nodes are connected."""
        self.last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        """The node's last lines while the supervisor stops all nodes."""
        try:
            # A session of its own: Ctrl-C is for the launcher, which then stops all.
            self._process = Popen(start.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        except OSError as error:
            raise ServerError(f"{self} cannot be started: {start.command[0]}: {error.strerror}") from None
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._stdin, self._outputs = stdin, (stdout, stderr)
        self.pipes = {output.fileno(): LineBuffer() for output in self._outputs}
        """Unfinished lines of its output, by descriptor."""
        self.life: int | None = None
        """A descriptor that is readable when the process has ended; None if this sandbox refuses it."""
        with suppress(OSError):
            self.life = os.pidfd_open(self._process.pid)
        for descriptor in self.pipes:
            os.set_blocking(descriptor, False)
        with suppress(BrokenPipeError):  # the process has ended, and its output has the reason
            stdin.write(f"{token}\n".encode())
            stdin.flush()

    def __str__(self) -> str:
        return f"node {self.node} at {self.where}"

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def code(self) -> int:
        """Its exit code, or the signal that ended it as a negative number. The process has ended."""
        return self._process.wait(KILL_LIMIT_S)

    @property
    def fate(self) -> str:
        return f"ended with exit code {self.code}" if self.code >= 0 else f"was ended by signal {-self.code}"

    def read(self, descriptor: int) -> tuple[list[str], bool]:
        """Return the lines that have arrived, and whether there may be more."""
        lines: list[str] = []
        try:
            while data := os.read(descriptor, _CHUNK):
                lines += self.pipes[descriptor].take(data)
        except BlockingIOError:
            return lines, True
        return lines + self.pipes[descriptor].take(b""), False

    def gives_address(self, descriptor: int, line: str) -> bool:
        """Return whether a line is the address of this node, and remember it."""
        if descriptor != self._outputs[0].fileno() or not line.startswith(PREFIX) or self.address is not None:
            return False
        self.address = line
        return True

    def note(self, line: str, everybody: str) -> None:
        """Note that all nodes are connected if a line says so."""
        self.met = self.met or line == everybody

    def drain(self) -> None:
        """Have the node end after its clients."""
        with suppress(BrokenPipeError, ValueError):  # `ValueError`: it was told to end
            self._stdin.write(DRAIN)
            self._stdin.flush()

    def end(self) -> None:
        """Close the process's standard input, which stops the node."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to the process and to all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)

    def close(self) -> None:
        """Wait for the process, and close its pipes and descriptors."""
        self.end()
        # Even SIGKILL does not end a process that waits for a lost file system.
        with suppress(TimeoutExpired):
            self._process.wait(KILL_LIMIT_S)
        for output in self._outputs:
            output.close()
        if self.life is not None:
            os.close(self.life)


class Supervisor(Reprs, shows="_running _nodes _stopped _ready _failure"):
    """All nodes of a cluster, from their start to their end.

    `say` gets each line that a node writes, and how each node ends. When all nodes are connected, `ready` gets the
    addresses at which a training attaches, by node.
    """

    def __init__(self, token: str, say: Say, ready: Callable[[list[str]], None]) -> None:
        self._token, self._say, self._tell_ready = token, say, ready
        self._nodes = 0
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._running: list[Child] = []
        self._ready = self._stopped = self._drains = False
        self._failure: str | None = None
        self._lost: list[str] = []
        """Texts about nodes that ended while the other nodes continued."""
        self._stop_end, self._stop_start = socket.socketpair()
        self._selector.register(self._stop_end, selectors.EVENT_READ, self._take_stop)

    def run(self, starts: Sequence[Start]) -> None:
        """Run the nodes until stopped. Raises `ServerError` if a node does not get ready, or ends by itself."""
        self._nodes = len(starts)
        try:
            self._watch(starts)
        finally:
            self._end_all()
        if self._failure is not None:
            raise ServerError(self._failure)
        if self._lost:
            raise ServerError(f"{'; '.join(self._lost)}; the other nodes continued without it")

    def stop(self) -> None:
        """End `run`, from a signal handler."""
        self._drains = False
        with suppress(OSError):
            self._stop_start.send(b"x")

    def drain(self) -> None:
        """End `run`, from a signal handler, after the clients of all nodes; at once if this is the second call."""
        again = self._drains
        self.stop()
        self._drains = not again

    def close(self) -> None:
        for child in self._children:
            child.close()
        self._selector.close()
        self._stop_end.close()
        self._stop_start.close()

    @property
    def _stopping(self) -> bool:
        return self._stopped or self._failure is not None

    def _start(self, node: int, start: Start) -> None:
        child = Child(node, start, self._token)
        self._children.append(child)
        self._running.append(child)
        for descriptor in child.pipes:
            self._selector.register(
                descriptor, selectors.EVENT_READ, lambda descriptor=descriptor: self._read(child, descriptor)
            )
        if child.life is not None:
            self._selector.register(child.life, selectors.EVENT_READ, lambda: self._ended(child))

    def _watch(self, starts: Sequence[Start]) -> None:
        end_s = time.monotonic() + READY_LIMIT_S
        for node, start in enumerate(starts):
            self._step(0)
            if self._stopping:
                return
            self._start(node, start)
        while not self._stopping:
            left_s = None if self._ready else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                self._failure = self._late()
                return
            self._step(_LOOK_S if left_s is None else min(_LOOK_S, left_s))

    def _step(self, limit_s: float) -> None:
        for key, _ in self._selector.select(min(limit_s, _LOOK_S)):
            key.data()
        for child in [child for child in self._running if child.life is None and child.ended]:
            self._ended(child)

    def _read(self, child: Child, descriptor: int) -> None:
        if descriptor not in child.pipes:  # it was read to its end when the process ended, a moment ago
            return
        lines, more = child.read(descriptor)
        if not more:
            self._selector.unregister(descriptor)
            del child.pipes[descriptor]
        for line in lines:
            if child.gives_address(descriptor, line):
                continue
            child.note(line, everybody(self._nodes))
            if self._stopping:
                child.last_words.append(line)
            else:
                self._tell(child, line)
        if not self._ready and len(self._children) == self._nodes:
            self._ready = all(child.met and child.address for child in self._children)
            if self._ready:
                self._tell_ready([child.address for child in self._children if child.address])

    def _ended(self, child: Child) -> None:
        """Record that a process has ended, after its last output is read."""
        for descriptor in list(child.pipes):
            self._read(child, descriptor)
        if child.life is not None:
            self._selector.unregister(child.life)
        self._running.remove(child)
        if child.code != 0:
            while child.last_words:
                self._tell(child, child.last_words.popleft())
        if self._stopping:
            return
        end = f"{child} {child.fate}"
        if not self._ready:
            self._failure = f"{end}, and the other nodes were stopped"
        elif self._running:
            self._lost.append(end)
            self._say(f"{end}; {len(self._running)} of {counted(self._nodes, 'node')} continue without it")
        else:
            self._failure = "; ".join((*self._lost, end)) + ": no node is left"

    def _tell(self, child: Child, line: str) -> None:
        self._say(f"[node {child.node}] {line}")

    def _take_stop(self) -> None:
        self._stop_end.recv(_CHUNK)
        self._stopped = True

    def _late(self) -> str:
        missing = [f"{c} does not listen" for c in self._children if c.address is None]
        missing += [f"{c} does not reach all other nodes" for c in self._children if c.address and not c.met]
        return (
            f"after {READY_LIMIT_S:.0f} s not all of {counted(self._nodes, 'node')} are connected, so all were "
            f"stopped: {'; '.join(missing)}"
        )

    def _end_all(self) -> None:
        """Stop all running nodes. The last lines of a node are shown only if it fails."""
        self._stopped = True
        when = " after their clients" if self._drains and self._ready else ""
        if self._running:
            self._say(f"stopping {counted(len(self._running), 'node')}{when}")
        if when:
            for child in self._running:
                child.drain()
            end_s = time.monotonic() + DRAIN_LIMIT_S
            while self._running and self._drains and (left_s := end_s - time.monotonic()) > 0:
                self._step(left_s)
        for child in self._children:
            child.end()
        for how, limit_s in ((signal.SIGTERM, END_LIMIT_S), (signal.SIGKILL, KILL_LIMIT_S)):
            end_s = time.monotonic() + limit_s
            while self._running and (left_s := end_s - time.monotonic()) > 0:
                self._step(left_s)
            for child in self._running:
                self._say(f"{child} does not end, and is sent {how.name}")
                child.signal(how)
