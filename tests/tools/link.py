"""A network link that can be slowed, held, cut and garbled: a relay of TCP connections on loopback."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Final

_PIECE: Final = 1 << 16


class Link:
    """Relays connections at `address` to a target, `host:port`, in threads of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """Where the link can be reached."""
        self.bytes_per_s: float | None = None
        """How fast it is each way; None: as fast as it can."""
        self.relayed = 0
        """Bytes that it has relayed, both ways."""
        self._flips = 0
        self._open = True
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._flowing = threading.Event(), threading.Event()
        """Whether bytes flow to the target, and back."""
        self.release()
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def cut(self) -> None:
        """End all connections and take no more, until `mend`."""
        self._open = False
        self._end_all()

    def mend(self) -> None:
        """Take connections again."""
        self._open = True

    def hold(self, *, there: bool = True, back: bool = True) -> None:
        """Relay nothing and end nothing until `release`, as if a cable were pulled: to the target, back, or both."""
        for flowing, held in zip(self._flowing, (there, back), strict=True):
            if held:
                flowing.clear()

    def release(self) -> None:
        """Relay again, first what has come meanwhile."""
        for flowing in self._flowing:
            flowing.set()

    def flip(self) -> None:
        """Change a bit of the next bytes that the link relays. TCP does not notice."""
        self._flips += 1

    def close(self) -> None:
        """End the link for good."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self._end_all()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._open:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._target, timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._sockets |= {near, far}
            for pair in ((near, far, self._flowing[0]), (far, near, self._flowing[1])):
                threading.Thread(target=self._relay, args=pair, name="link", daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, flowing: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                flowing.wait()
                self.relayed += len(data)
                if self._flips:
                    self._flips -= 1
                    data = data[:-1] + bytes([data[-1] ^ 1])
                if self.bytes_per_s is not None:
                    time.sleep(len(data) / self.bytes_per_s)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets -= {source}
        source.close()

    def _end_all(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for end in sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
