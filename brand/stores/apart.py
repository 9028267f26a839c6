"""How does a process that forks workers access a store? Through a separate process, which alone loads the library.

The threads of such a library make a process unfit to be forked. So `StoreProcess` starts a process that makes the
requests, and talks to it over *lines*, pairs of sockets: a thread takes a line, sends a request, and waits for the
answer. The process ends when the last process that holds the other end of its first line has ended; Ctrl-C does not
reach it. Each request has the time limits of the store that makes it; a wait for an answer ends if the process ends.

    question   size of the head (4 bytes), head (JSON: the request, size of the data), data
    answer     the same; the head has the error, if there is one
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from brand.errors import BrandError, StorageError, pack_error, unpack_error
from brand.pythonchild import start_helper
from brand.stores.opening import open_store
from brand.stores.store import Entry, Store, Traffic
from brand.stores.url import parse_url

_SIZE: Final = struct.Struct("<I")
_END_S: Final = 10.0
_PAGE: Final = 10_000
"""Entries of a part of an answer."""
Result = TypeVar("Result")

_Line = io.BufferedRWPair


class StoreProcess:
    """A `Store` whose requests another process makes, as many at a time as it has lines. To be used in a `with`."""

    def __init__(self, url: str, lines: int) -> None:
        self.url, self.traffic = parse_url(url), Traffic()
        self._idle: queue.Queue[_Line] = queue.Queue()
        with contextlib.ExitStack() as theirs:
            pairs = [socket.socketpair() for _ in range(lines + 1)]
            for _, end in pairs:
                theirs.enter_context(end)
            self._life = pairs[0][0]
            for end, _ in pairs[1:]:
                with end:
                    self._idle.put(end.makefile("rwb"))
            numbers = [end.fileno() for _, end in pairs]
            try:
                self._process = start_helper("brand.stores.apart", numbers, self.url, *numbers)
            except OSError as error:
                raise StorageError(f"{self.url}: no process can be started that accesses it: {error}") from None

    def __repr__(self) -> str:
        return f"StoreProcess({self.url}, {self._idle.qsize()} lines idle, process {self._process.pid})"

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()
        self._process.kill()  # safe: every request that it has answered is complete
        self._process.wait(_END_S)
        while not self._idle.empty():
            with contextlib.suppress(BrokenPipeError):
                self._idle.get().close()

    def read(self, name: str, most: int) -> bytes:
        return self._ask({"do": "read", "name": name, "most": most})

    def fetch(self, name: str, most: int) -> tuple[bytes, str]:
        mark, _, data = self._ask({"do": "fetch", "name": name, "most": most}).partition(b"\n")
        return data, mark.decode()

    def pieces(self, name: str, offset: int, size: int) -> Iterator[memoryview]:
        """See `Store`. The range is returned as one piece."""
        yield memoryview(self._ask({"do": "pieces", "name": name, "offset": offset, "size": size}))

    def size(self, name: str) -> None:
        """See `Store`. Returns None: the other process does not report sizes."""

    def write(self, name: str, data: bytes | Path, *, new: bool) -> None:
        if isinstance(data, bytes):
            self._ask({"do": "write", "name": name, "new": new}, data)
        else:
            self._ask({"do": "write", "name": name, "new": new, "path": os.path.abspath(data)})

    def entries(self, folder: str) -> Iterator[Entry]:
        for page in self._answers({"do": "entries", "folder": folder}):
            yield from (Entry(*each) for each in json.loads(page))

    def entry(self, name: str) -> Entry:
        return Entry(*json.loads(self._ask({"do": "entry", "name": name})))

    def pinned(self) -> str:
        return self._ask({"do": "pinned"}).decode()

    def _ask(self, question: dict[str, Any], data: bytes = b"") -> bytes:
        return b"".join(self._answers(question, data))

    def _answers(self, question: dict[str, Any], data: bytes = b"") -> Iterator[bytes]:
        """Ask, and yield the answer: all but the last part of it have `more` in their heads."""
        line, more = self._idle.get(), False
        try:
            self._on(partial(_send, line, question, data))
            more = True
            while more:
                answer, found = self._on(partial(_receive, line))
                more = "more" in answer
                if "refused" in answer:
                    raise OSError(*answer["refused"])
                error = unpack_error(answer)
                if error is not None:
                    raise error
                yield found
        except GeneratorExit:
            while more:
                more = "more" in self._on(partial(_receive, line))[0]
            raise
        finally:
            self._idle.put(line)

    def _on(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except (OSError, EOFError):
            raise StorageError(
                f"{self.url}: the process that accesses it has ended; run the same command again"
            ) from None


def main() -> None:
    """Answer on the lines that the command line lists, until the first of them closes."""
    _, _, _, url, life, *lines = sys.argv
    store: Store | BrandError
    try:
        store = open_store(url)
    except BrandError as error:
        store = error
    for number in map(int, lines):
        line = socket.socket(fileno=number).makefile("rwb")
        threading.Thread(target=_serve, args=(store, line), daemon=True).start()
    with socket.socket(fileno=int(life)) as end:
        end.recv(1)
    # At once, because threads may still wait for the store.
    os._exit(0)


def _serve(store: Store | BrandError, line: _Line) -> None:
    with line, contextlib.suppress(OSError, EOFError):
        while True:
            question, data = _receive(line)
            if isinstance(store, BrandError):
                _send(line, pack_error(store))
                continue
            try:
                if question["do"] == "entries":
                    entries = store.entries(question["folder"])
                    while page := list(islice(entries, _PAGE)):
                        _send(line, {"more": True}, json.dumps(page).encode())
                answer = _answer(store, question, data)
            except OSError as error:
                _send(line, {"refused": [error.errno, error.strerror, error.filename]})
            else:
                _send(line, {}, answer)


def _answer(store: Store, question: dict[str, Any], data: bytes) -> bytes:
    match question:
        case {"do": "read", "name": name, "most": most}:
            return store.read(name, most)
        case {"do": "fetch", "name": name, "most": most}:
            contents, mark = store.fetch(name, most)
            return mark.encode() + b"\n" + contents
        case {"do": "pieces", "name": name, "offset": offset, "size": size}:
            return b"".join(store.pieces(name, offset, size))
        case {"do": "write", "name": name, "new": new, "path": path}:
            store.write(name, Path(path), new=new)
        case {"do": "write", "name": name, "new": new}:
            store.write(name, data, new=new)
        case {"do": "entries"}:
            return b"[]"  # the end of the pages
        case {"do": "entry", "name": name}:
            return json.dumps(store.entry(name)).encode()
        case {"do": "pinned"}:
            return store.pinned().encode()
    return b""


def _send(line: _Line, head: dict[str, Any], data: bytes = b"") -> None:
    packed = json.dumps(head | {"data": len(data)}).encode()
    line.write(_SIZE.pack(len(packed)) + packed)
    line.write(data)
    line.flush()


def _receive(line: _Line) -> tuple[dict[str, Any], bytes]:
    head = json.loads(_exactly(line, *_SIZE.unpack(_exactly(line, _SIZE.size))))
    return cast(dict[str, Any], head), _exactly(line, head["data"])


def _exactly(line: _Line, size: int) -> bytes:
    data = line.read(size)
    if len(data) < size:
        raise EOFError
    return data
