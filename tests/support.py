"""What several test files need: the command in this process and in others, digests, waiting with a limit, a disk."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from brand.chunker import Options
from brand.cli.main import main
from brand.node.client.direct import why_no_server

LIMIT_S = 600.0
"""Longest wait for something that must happen, also on a machine with much else to do; pytest ends a test at 900 s."""

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
SERVES = pytest.mark.skipif(bool(why_no_server()), reason="no data server can run here")


@dataclass(frozen=True)
class Outcome:
    """What a run of the command did."""

    code: int
    stdout: bytes
    err: str

    @property
    def out(self) -> str:
        """Standard output as text."""
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document as the standard has it (no NaN)."""
        return json.loads(self.stdout, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def brand(*args: object) -> Outcome:
    """Run the command `brand` in this process."""
    return called(main, "brand", *args)


def called(main: Callable[[], None], name: str, *args: object) -> Outcome:
    """Call the main function of a command in this process."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = io.TextIOWrapper(out, "utf-8"), io.TextIOWrapper(err, "utf-8", errors="backslashreplace")
    before, sys.argv = sys.argv, [name, *map(str, args)]
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                main()
                code: object = 0
            except SystemExit as stop:
                code = stop.code
            for stream in streams:
                stream.flush()
    finally:
        sys.argv = before
    return Outcome(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue().decode())


def brand_process(*args: object, **more: Any) -> Outcome:
    """Run `python -m brand` to its end."""
    command = [sys.executable, "-m", "brand", *map(_as_text, args)]
    done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, **more)
    return Outcome(done.returncode, done.stdout, done.stderr.decode("utf-8", "backslashreplace"))


def _as_text(value: object) -> str:
    return os.fspath(value) if isinstance(value, Path) else str(value)


@contextlib.contextmanager
def running_brand(
    *args: object, environment: Mapping[str, str] | None = None, prelude: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """The command `brand` in a session of its own, which is ended with the block; `prelude` is code that runs first.

    It listens to Ctrl-C, also where the tests themselves were started in the background, deaf to it.
    """
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{hear}; {prelude}from brand.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, args)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | (environment or {}),
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = LIMIT_S) -> None:
    """Poll until `condition` holds; fails after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"still waiting after {limit_s} s: {what}")
        time.sleep(0.001)


def free_port() -> int:
    """A port on loopback where nobody listens, which no other call of this function returns while this process lives.

    From below the ports that systems give to outgoing connections: one of those could take it before its test listens.
    """
    for port in random.SystemRandom().sample(range(16_384, 32_768), 1_000):
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # holds the number only: tests listen with TCP
        try:
            held.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                _held_ports.append(held)
                return port
        except OSError:
            held.close()
    raise RuntimeError("no port is free between 16384 and 32767")


_held_ports: list[socket.socket] = []


def runs(process: int) -> bool:
    """Whether a process, or a thread of it, still runs (Linux).

    The first thread of a killed process may be gone while others still hold its sockets.
    """
    place = Path(f"/proc/{process}")
    try:
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(place / "task")) > 1
    except OSError:
        return False


def session_processes(session: int) -> list[int]:
    """Processes of a session that still run (Linux)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                *_, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and runs(int(folder.name)):
                    found.append(int(folder.name))
    return found


def descendants(process: int) -> list[int]:
    """Processes that a process has started, and those that these have started."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def descriptors() -> set[tuple[int, str]]:
    """Descriptors that this process has open, and what each of them is.

    Counts would not do: threads of libraries close those of earlier tests at any time.
    """
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that reads this folder
            found.add((int(path.name), str(path.readlink())))
    return found


def open_below(path: Path) -> int:
    """Descriptors that this process has open of a file, or of the files below a folder."""
    return sum(Path(name).is_relative_to(path) for _, name in descriptors())


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file and empty folder below `folder` (a folder's content is b"/")."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            found[name] = path.read_bytes()
        elif not path.is_dir():
            found[name] = b"link or special file"
        elif not any(path.iterdir()):
            found[name] = b"/"
    return found


def tree_digest(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below `folder`; two equal trees have equal digests."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files_below(folder).items()}


def options(chunk_size: int | None = None, chunk_bytes: int | None = None, **more: Any) -> Options:
    """Options of a conversion, in one process unless said otherwise."""
    return Options(chunk_size=chunk_size, chunk_bytes=chunk_bytes, **({"jobs": 1} | more))


class Disk:
    """A small file system in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, *flags: str) -> None:
        """Mount or remount with these options."""
        command = ["mount", "-t", "tmpfs", "-o", ",".join(flags), "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this test mounts a small file system, which is not permitted here: {done.stderr.strip()}")

    def unmount(self) -> None:
        """Give it back, even if a file of it is still open or mapped."""
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)
