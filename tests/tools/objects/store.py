"""Who listens, reads requests and sends answers? A thread for each connection; all state is here.

For each request: read its body into a file, ask `Faults` what goes wrong, ask `Service` for the right answer, spoil it,
note it, send it. Files go out by `sendfile`. A request is noted before its answer is sent: a client that has the answer
finds it in `requests`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import socketserver
import struct
import sys
import tempfile
import termios
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

from tests.tools.objects.answers import Answer, FilePiece, Pause, Piece, Repeated, answer
from tests.tools.objects.faults import Asked, Faults, Operation, Reset, What, refusal, spoil
from tests.tools.objects.flavours import S3, Flavour
from tests.tools.objects.folder import Body, Folder
from tests.tools.objects.pipe import Pipe
from tests.tools.objects.service import Call, Service

_SILENCE_S: Final = 60.0
"""How long a client may send nothing, or take nothing."""
_DRAIN_S: Final = 5.0
_COPIED: Final = 1 << 16
"""Pieces of files up to this size go out with the head."""
_PIECE: Final = 1 << 18
"""Of what is sent through a pipe with a limit, and of what is received."""
_LARGEST: Final = 5 << 30
_LINGER: Final = struct.Struct("ii")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the store has answered, or has been made not to answer."""

    operation: Operation
    key: str
    """`bucket/name`; for LIST with the prefix in place of the name."""
    range: str | None
    """The Range header, as it came: `bytes=0-99`."""
    status: int
    """0: the connection broke before the answer."""
    sent: int
    """Bytes of the answer's body, where the client takes all of it."""
    received: int
    """Bytes that the client has uploaded."""
    fault: What | None = None
    """What went wrong on purpose."""


class ObjectStore:
    """A store at `url`, until `close` or the end of a `with` block."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        flavour: Flavour | None = None,
        *,
        faults: Faults | None = None,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        """Begin to serve.

        Args:
            folder: Where the objects are files, `bucket/name`; None: a folder for this store alone.
            flavour: How it speaks, and whom it lets in; None: as S3, to anybody.
            faults: What goes wrong.
            latency_s: How long after a request its answer begins.
            bytes_per_s: Bandwidth of all connections together, the same in each direction; None: no limit.
            address: IPv4 address of this machine at which it listens.
        """
        self._is_own = folder is None
        self.folder = Folder(Path(tempfile.mkdtemp(prefix="brand-objects-") if folder is None else folder))
        """The objects."""
        self.flavour = S3() if flavour is None else flavour
        """How it speaks."""
        self.faults = Faults() if faults is None else faults
        """What goes wrong from now on; may be replaced at any time."""
        self.latency_s = latency_s
        """How long after a request its answer begins."""
        self.requests: list[Request] = []
        """What came, in the order in which it was answered; may be cleared at any time."""
        self._down, self._up = Pipe(bytes_per_s), Pipe(bytes_per_s)
        self._closed = threading.Event()
        self._bugs: list[BaseException] = []
        self._listener = _Listener(self, address)
        self.url = f"http://{address}:{self._listener.server_address[1]}"
        """Where the store can be reached."""
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), name="object store", daemon=True).start()

    def __repr__(self) -> str:
        return f"ObjectStore({self.url}, {type(self.flavour).__name__}, {len(self.requests)} requests)"

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def options(self) -> dict[str, Any]:
        """What `obstore.store.from_url` takes beside the URL of a bucket, to reach this store."""
        return self.flavour.options(self.url)

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth of all connections together, each way; None: no limit. May be set at any time."""
        return self._down.bytes_per_s

    @bytes_per_s.setter
    def bytes_per_s(self, rate: float | None) -> None:
        self._down.bytes_per_s = self._up.bytes_per_s = rate

    def put(self, key: str, data: bytes) -> None:
        """Make an object, and its bucket, without a request."""
        path = self.folder.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def close(self) -> None:
        """End all connections, and drop the folder where it is the store's own. Raises what went wrong by mistake."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.shutdown()
        self._listener.server_close()
        self._listener.end_all()
        self.folder.close()
        if self._is_own:
            shutil.rmtree(self.folder.root, ignore_errors=True)
        if self._bugs:
            raise self._bugs[0]

    def _pass(self, pipe: Pipe, size: int) -> None:
        self._wait(pipe.reserve(size, time.monotonic()))

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and self._closed.wait(seconds):
            raise ConnectionAbortedError


class _Listener(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, store: ObjectStore, address: str) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__((address, 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        broken, _ = _LINGER.unpack(request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.size))
        if not broken:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # a process that was forked may hold the socket, too
        request.close()

    def handle_error(self, *_: object) -> None:
        fault = sys.exception()
        if fault is not None and not isinstance(fault, OSError):  # an OSError: the client has hung up
            self.store._bugs.append(fault)

    def end_all(self) -> None:
        with self._lock:
            sockets = list(self._open)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S
    disable_nagle_algorithm = True
    server: _Listener
    connection: socket.socket

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name in the standard library
        """Say nothing; `ObjectStore.requests` has it."""

    def _serve(self) -> None:
        store = self.server.store
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.command, self.path, headers, store.flavour.has_buckets)
        what = store.faults.meet(Asked(call.operation, call.key, call.range))
        size = self._announced(call)
        if size is None:
            self._tell(call, answer(411, {"Connection": "close"}), 0, None)
            self.close_connection = True
            return
        with ExitStack() as files:
            right, received = self._work(call, size, what, files)
            self._tell(call, spoil(right, what), received, what)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = do_PROPFIND = do_MKCOL = _serve

    def _work(self, call: Call, size: int, what: What | None, files: ExitStack) -> tuple[Answer, int]:
        """Do what was asked; returns the right answer, and how much of the body came before it."""
        store = self.server.store
        service = Service(store.folder, store.flavour)
        received = min(size, what.after) if isinstance(what, Reset) else size
        with ExitStack() as scratch:  # is empty before the client has the answer
            body = self._receive(call, received, scratch)
            store._wait(store.latency_s)
            if received < size:
                return Answer(0, {}, end="reset"), received
            right = refusal(what, store.flavour, call.key) or service.refused(call)
            right = right or service.answer(call, body, files)
        return (right.without_body() if call.method == "HEAD" else right), received

    def _announced(self, call: Call) -> int | None:
        """Size of the body that comes; None: the store does not take it."""
        text = call.headers.get("content-length", "0")
        if "transfer-encoding" in call.headers or not (text.isascii() and text.isdecimal() and len(text) < 20):
            return None
        return int(text) if int(text) <= _LARGEST else None

    def _receive(self, call: Call, size: int, scratch: ExitStack) -> Body:
        """Write so much of the body into a file; where there is none, into none."""
        path = Path(os.devnull)
        md5 = hashlib.md5(usedforsecurity=False)
        sha256 = hashlib.sha256() if "x-amz-content-sha256" in call.headers else None
        if call.method in ("PUT", "POST"):
            path = self.server.store.folder.scratch()
            scratch.callback(path.unlink, missing_ok=True)
        with path.open("wb") as file:
            left = size
            while left:
                data = self.rfile.read(min(left, _PIECE))
                if not data:
                    raise ConnectionResetError
                left -= len(data)
                self.server.store._pass(self.server.store._up, len(data))
                md5.update(data)
                if sha256 is not None:
                    sha256.update(data)
                file.write(data)
        return Body(path, size, md5.digest(), None if sha256 is None else sha256.hexdigest())

    def _tell(self, call: Call, told: Answer, received: int, what: What | None) -> None:
        """Note an answer and send it."""
        noted = Request(call.operation, call.key, call.range, told.status, told.size, received, what)
        self.server.store.requests.append(noted)
        if told.status:
            self._send(told)
        if told.end != "keep":
            self.close_connection = True
        if told.end == "reset":
            self._break()

    def _send(self, told: Answer) -> None:
        lines = [f"HTTP/1.1 {told.status} {HTTPStatus(told.status).phrase}", f"Date: {self.date_time_string()}"]
        lines += [f"{name}: {value}" for name, value in told.headers.items()]
        lines += ["Connection: close"] * (told.end == "close")
        unsent = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        for number, piece in enumerate(told.pieces):
            match piece:
                case bytes():
                    unsent += piece
                case FilePiece(file, first, size) if size <= _COPIED:
                    unsent += os.pread(file.fileno(), size, first).ljust(size, b"\0")
                case Pause(seconds):
                    if number:
                        self._put(unsent)
                        unsent = b""
                    self.server.store._wait(seconds)
                case _:
                    self._put(unsent)
                    unsent = b""
                    self._stream(piece)
        self._put(unsent)

    def _stream(self, piece: Piece) -> None:
        """Send what is large."""
        store = self.server.store
        match piece:
            case FilePiece(file, first, size):
                step = size if store.bytes_per_s is None else _PIECE
                for at in range(first, first + size, step):
                    part = min(step, first + size - at)
                    store._pass(store._down, part)
                    if self.connection.sendfile(file, at, part) < part:
                        raise ConnectionResetError
            case Repeated(data, times):
                while times is None or times > 0:
                    self._put(data)
                    times = None if times is None else times - 1

    def _put(self, data: bytes) -> None:
        if data:
            self.server.store._pass(self.server.store._down, len(data))
            self.connection.sendall(data)

    def _break(self) -> None:
        """Reset the connection as soon as the client's machine has all that was sent."""
        end = time.monotonic() + _DRAIN_S
        while time.monotonic() < end and any(fcntl.ioctl(self.connection, termios.TIOCOUTQ, bytes(4))):
            time.sleep(0.001)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
