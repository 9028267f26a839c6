"""What do processes leave behind that were killed? Found by what all of them inherit: a session, and a `TMPDIR`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from tests.support import session_processes, wait_until

_SHARED_MEMORY = Path("/dev/shm")
_SOCKETS = [Path("/proc/net") / name for name in ("unix", "tcp", "tcp6")]
_OF_PYTORCH = ("pymp-", "tmp")
"""Temporary files of killed workers that are not Brand's: the sockets over which tensors are handed over, and empty
files, with which a loader that has lost a worker counts how many descriptors are left."""
_SEMAPHORES = "sem.mp-"
"""Of queues between a training and workers that it spawns: its resource tracker unlinks them when it ends. A training
that a fork server has forked shares that of the test."""
_TRIAL_NAME, _TRIAL_CONTENT = re.compile(r"[a-z0-9_]{8}"), (b"", b"blat")
"""Of the file with which `tempfile.gettempdir` tries a folder. A process that is killed meanwhile leaves it."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Leftovers:
    """Looks after the processes of a test, and all that they start: those whose `TMPDIR` is `folder`, empty by now.

    A process that was forked without `exec` does not show its `TMPDIR`; the test puts its session into `sessions`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.sessions = folder, set[int]()
        self.environment = {"TMPDIR": str(folder)}
        """By which such processes are known."""
        self._shared_before = set(os.listdir(_SHARED_MEMORY))
        self._sockets: set[int] = set()

    def processes(self) -> list[int]:
        """Those that run."""
        found = {process for session in self.sessions for process in session_processes(session)}
        return sorted(found | set(self._started()))

    def programs(self, name: bytes, **environment: str) -> list[int]:
        """Those that were started by a command with this name in it, and with these variables."""
        return [process for process in self._started(**environment) if name in _read(process, "cmdline")]

    def servers(self, **environment: str) -> list[int]:
        """Those that are data servers."""
        return self.programs(b"brand.node.serve.process", **environment) + self.programs(
            b"brand.cluster.process", **environment
        )

    def note_sockets(self) -> None:
        """Remember which sockets they have open now."""
        for process in self.processes():
            with suppress(OSError):
                for descriptor in Path(f"/proc/{process}/fd").iterdir():
                    with suppress(OSError):
                        if match := _SOCKET.fullmatch(str(descriptor.readlink())):
                            self._sockets.add(int(match[1]))

    def check(self) -> None:
        """Wait until all of them have ended; then nothing of them is there."""
        wait_until(lambda: not self.processes(), "all processes have ended")
        wait_until(lambda: not self._sockets & _open_sockets(), "all sockets are closed")
        wait_until(
            lambda: not _without_a_process(set(os.listdir(_SHARED_MEMORY)) - self._shared_before), "no shared memory"
        )
        files = [path for path in self.folder.iterdir() if not path.name.startswith(_OF_PYTORCH)]
        files = [path for path in files if not _of_python(path)]
        assert not files, files

    def _started(self, **environment: str) -> list[int]:
        """Those that were started by a command, with these variables."""
        marks = {f"{name}={value}".encode() for name, value in (self.environment | environment).items()}
        everyone = (int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit())
        return [process for process in everyone if marks <= set(_read(process, "environ").split(b"\0"))]


def _read(process: int, what: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/{what}").read_bytes()
    return b""


def _without_a_process(names: set[str]) -> set[str]:
    """Those of these names of shared memory that no process uses: what others use is theirs."""
    names = {name for name in names if not name.startswith(_SEMAPHORES)}
    used = set[str]()
    for place in Path("/proc").iterdir() if names else ():
        with suppress(OSError):
            used |= {
                line.rpartition("/")[2] for line in (place / "maps").read_text().splitlines() if "/dev/shm/" in line
            }
            used |= {
                path.name for path in map(Path.readlink, (place / "fd").iterdir()) if path.parent == _SHARED_MEMORY
            }
    return names & set(os.listdir(_SHARED_MEMORY)) - used


def _of_python(path: Path) -> bool:
    """Whether Python has left this file."""
    return _TRIAL_NAME.fullmatch(path.name) is not None and path.is_file() and path.read_bytes() in _TRIAL_CONTENT


def _open_sockets() -> set[int]:
    """Inodes of all sockets of this machine."""
    found = set[int]()
    for table in _SOCKETS:
        with suppress(OSError):
            column = 6 if table.name == "unix" else 9
            for line in table.read_text().splitlines()[1:]:
                found.add(int(line.split()[column]))
    return found - {0}
