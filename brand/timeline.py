"""A timeline of events for Perfetto, in the format of Chrome's traces, one file a node.

A file is a JSON array without its end, as the format allows: so a data server and the loaders of its ranks write to the
same file, each event with one append. All of them count time from the same moment, the start of the machine.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from brand.errors import UsageError
from brand.reprs import Reprs

MOST_BYTES: Final = 64 << 20
"""Maximum bytes that one process writes."""
FLUSH_BYTES: Final = 1 << 16
"""Events are written together when they have this many bytes."""
_BEGINNING: Final = b"[\n"

log = logging.getLogger("brand")

_numbers = itertools.count(1)
"""Numbers of the tracks of all timelines of this process."""


class Timeline(Reprs, shows="_path _tracks _left"):
    """Appends events of this process to the file at `path`, under the name `process`. Any thread may add events.

    Raises `UsageError` if the file cannot be written, or is not a timeline.
    """

    def __init__(self, path: str | os.PathLike[str], process: str, most_bytes: int = MOST_BYTES) -> None:
        self._path = Path(path)
        try:
            _begin(self._path)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(f"the trace {self._path} cannot be written: {error.strerror}") from None
        self._left = most_bytes
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self._tracks: dict[str, int] = {}
        """Numbers of tracks, by name."""
        self._write({"ph": "M", "name": "process_name", "tid": 0, "args": {"name": process}})

    def add(self, track: str, name: str, start_s: float, end_s: float, facts: Mapping[str, Any] | None = None) -> None:
        """Add an event from `start_s` to `end_s` (`time.monotonic`). Events of a track do not overlap."""
        with self._lock:
            if track not in self._tracks:
                self._tracks[track] = next(_numbers)
                self._write({"ph": "M", "name": "thread_name", "tid": self._tracks[track], "args": {"name": track}})
            event = {"ph": "X", "name": name, "tid": self._tracks[track], "ts": round(1e6 * start_s, 1)}
            self._write(event | {"dur": round(1e6 * (end_s - start_s), 1), "args": dict(facts or {})})

    def close(self) -> None:
        """Write the remaining events."""
        with self._lock:
            self._flush()
            self._left = 0
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps(event | {"pid": os.getpid()}).encode() + b",\n"
        if len(line) > self._left:
            if self._left:
                said = "the trace %s has reached its size limit: it records no more events of process %d"
                log.warning(said, self._path, os.getpid())
            self._left = 0
            return
        self._left -= len(line)
        self._lines.append(line)
        self._size += len(line)
        if self._size >= FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines, self._size = self._lines, [], 0
        try:
            if lines and self._file >= 0:
                os.write(self._file, b"".join(lines))
        except OSError as error:  # a failed trace must not stop the training
            self._left = 0
            log.warning("the trace %s ends here: %s", self._path, error.strerror)


def _begin(path: Path) -> None:
    """Make the file with its beginning, unless it is there. Raises OSError, `UsageError`."""
    if not path.exists():
        descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            os.write(descriptor, _BEGINNING)
            with suppress(FileExistsError):  # another process has just made the file
                os.link(made, path)
        finally:
            os.close(descriptor)
            Path(made).unlink()
    with path.open("rb") as file:
        if file.read(len(_BEGINNING)) != _BEGINNING:
            raise UsageError(f"{path} exists, and is not a trace: choose another name")
