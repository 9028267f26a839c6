"""How do tests start Python processes without importing numpy and PyTorch again each time? They are forked.

`forked_starts` replaces `subprocess.Popen` in the process of the tests, and the function by which multiprocessing
starts an interpreter. A command that runs this interpreter is forked from a process that has imported the modules that
the command needs (`tests/forkserver.py`). The forked process is a child of the test's process, with the pid, pipes,
session, environment and exit status that a started one would have.

A command is really started if it has options of the interpreter, if its environment has other values of variables that
the interpreter or a library reads as it starts, if its code looks at `sys.modules`, or if the test takes the fixture
`real_start`. A process that a forked process starts is really started, too.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import multiprocessing.util
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.forkserver import PADDING, STANDARD, SYS_CLONE

PYTHON: Final = sys.executable
"""This interpreter; a test may let `sys.executable` be another program."""
ROOT: Final = Path(__file__).resolve().parent.parent
LIGHT: Final = "light"
TORCH: Final = "torch"
IMPORTS: Final = {
    LIGHT: (
        *("numpy", "zstandard", "PIL.Image", "xxhash", "click", "rich.console", "rich.progress", "concurrent.futures"),
        *("obstore", "obstore.store"),
        *("brand", "brand.cli.main", "brand.cli.convert", "brand.cli.serve", "brand.cli.upkeep", "brand.cli.show"),
        *("brand.node.serve.process", "asyncio", "http.server", "runpy", "argparse", "importlib.metadata"),
    ),
    TORCH: (
        "torch",
        "torch.utils.data",
        "torch.distributed",
        "brand",
        "brand.torch",
        "brand.node.serve.process",
        "pytest",
    ),
}
"""Modules that each of the two processes imports before it forks."""
_PADDING_BYTES: Final = 32768
_START_LIMIT_S: Final = 600.0
_OPTIONS: Final = ("-W", "-P", *(["-B"] if sys.dont_write_bytecode else []))
"""Options of the interpreter that a forked process can have. Multiprocessing passes `-B` on."""
_AT_START: Final = re.compile(
    r"(PYTHON|LD_|LC_|COVERAGE|MALLOC_|OMP_|MKL_|OPENBLAS_|KMP_|GRPC_|HF_|TORCH_)|(LANG|LANGUAGE|BRAND_NATIVE)$"
)
"""Variables that the interpreter or a library reads as it starts."""
_SEES_IMPORTS: Final = re.compile(r"sys\.modules|mallopt|setrlimit|\bdoctor\b")
"""Code that depends on what is imported, on how it is imported, or on how much memory that takes."""


@dataclass(frozen=True)
class Program:
    """What a command of this interpreter runs."""

    kind: str
    """`code`, `module` or `script`."""
    target: str
    arguments: tuple[str, ...]
    """`sys.argv`."""
    warn: tuple[str, ...] = ()
    """Options `-W`."""
    safe_path: bool = False
    """`-P`."""

    def first_folder(self, folder: str) -> str | None:
        """What the interpreter puts in front of `sys.path`."""
        if self.safe_path:
            return None
        if self.kind == "script":
            return str(Path(folder, self.target).resolve().parent)
        return folder if self.kind == "module" else ""


def program_of(command: list[str]) -> Program | None:
    """What a command runs; None if it is not this interpreter, or has options that only a real start honours."""
    if command[0] != PYTHON:
        return None
    rest, warn, safe_path = command[1:], [], False
    while rest and rest[0] in _OPTIONS:
        option = rest.pop(0)
        safe_path |= option == "-P"
        if option == "-W" and rest:
            warn.append(rest.pop(0))
    if not rest:
        return None
    if rest[0] in ("-c", "-m") and len(rest) > 1:
        kind = "code" if rest[0] == "-c" else "module"
        return Program(kind, rest[1], (rest[0], *rest[2:]), tuple(warn), safe_path)
    if rest[0].startswith("-"):
        return None
    return Program("script", rest[0], tuple(rest), tuple(warn), safe_path)


def imports_for(program: Program, folder: str = "") -> str | None:
    """Which process forks it in a folder; None if it has to be started."""
    text = " ".join((_text_of(program, folder), *program.arguments[1:]))
    if _SEES_IMPORTS.search(text):
        return None
    return TORCH if "torch" in text else LIGHT


def _text_of(program: Program, folder: str) -> str:
    """The program's source, as far as it says what it imports."""
    if program.kind == "code":
        return program.target
    if program.kind == "script":
        script = Path(folder, program.target)
        return script.read_text() if script.is_file() else ""
    return _source_of(program.target)


@cache
def _source_of(module: str) -> str:
    if not module.startswith("tests."):
        return "torch" if module.startswith("torch") else ""
    found = importlib.util.find_spec(module)
    return Path(found.origin).read_text() if found is not None and found.origin is not None else ""


class ForkServer:
    """A process that has imported some modules; it is started with the first process that it forks.

    It ends with the test's process, also with one that is killed: nothing else holds the other end of its socket.
    """

    def __init__(self, imports: str, start: type[subprocess.Popen[bytes]]) -> None:
        self._imports, self._start = imports, start
        self._mine, self._its = socket.socketpair()
        self._mine.settimeout(_START_LIMIT_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = dict(os.environ)

    def __repr__(self) -> str:
        return f"ForkServer({self._imports}, {'not started' if self._process is None else self._process.pid})"

    @property
    def pid(self) -> int | None:
        """Its process; None before it has forked any."""
        return None if self._process is None else self._process.pid

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with these variables has imported the same modules in the same way."""
        return _at_start(environment) == _at_start(self._environment)

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Fork a process for the request. Return its pid."""
        if self._process is None:
            self._begin()
        body = json.dumps(request).encode()
        socket.send_fds(self._mine, [b"%8d" % len(body)], descriptors)
        self._mine.sendall(body)
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self._mine.recv(32)
        return int(answer)

    def _begin(self) -> None:
        command = [PYTHON, str(ROOT / "tests" / "forkserver.py"), str(self._its.fileno())]
        modules = json.dumps(IMPORTS[self._imports])
        self._process = self._start(
            [*command, modules, str(ROOT), " " * _PADDING_BYTES],
            stdin=subprocess.DEVNULL,
            pass_fds=[self._its.fileno()],
            env=self._environment | {PADDING: "x" * _PADDING_BYTES, "OPENBLAS_NUM_THREADS": "1"},
            cwd=ROOT,
        )

    def close(self) -> None:
        """End the process; those that it has forked go on."""
        self._mine.shutdown(socket.SHUT_RDWR)  # forked processes may hold it, too
        self._mine.close()
        self._its.close()
        if self._process is not None:
            self._process.wait(_START_LIMIT_S)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _AT_START.match(name)}


_OF_MULTIPROCESSING: Final = re.compile(r"from multiprocessing\.(spawn|forkserver) import")
_NAMES: Final = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_USUAL: Final[dict[str, Any]] = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
}


class Forking:
    """Forks processes in place of `subprocess.Popen` and of multiprocessing, where that makes no difference."""

    def __init__(self) -> None:
        self.servers = {imports: ForkServer(imports, subprocess.Popen) for imports in IMPORTS}
        self.pid, self.lock, self.real = os.getpid(), threading.Lock(), 0

    def popen(self, asked: dict[str, Any]) -> int | None:
        """Return the pid of a forked process; None if the command has to be started."""
        if any(asked[name] != usual for name, usual in _USUAL.items()):
            return None
        if isinstance(asked["args"], str | bytes | os.PathLike):
            return None
        command = [os.fsdecode(argument) for argument in asked["args"]]
        folder = os.getcwd() if asked["cwd"] is None else os.path.abspath(os.fsdecode(asked["cwd"]))
        program = program_of(command)
        imports = None if program is None else imports_for(program, folder)
        if program is None or imports is None or not Path(folder).is_dir():
            return None
        standard = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        more = {"session": asked["start_new_session"], "group": asked["process_group"], "folder": folder}
        return self._fork(imports, command, program, asked["env"], standard, asked["pass_fds"], **more)

    def spawn(self, arguments: list[Any], descriptors: Iterable[int]) -> int | None:
        """Return the pid of a forked process of multiprocessing; None if it has to be started."""
        command = [os.fsdecode(argument) for argument in arguments]
        program = program_of(command)
        if program is None or not _OF_MULTIPROCESSING.match(program.target):
            return None
        return self._fork(TORCH, command, program, None, [-1] * STANDARD, descriptors)

    def _fork(
        self,
        imports: str,
        command: list[str],
        program: Program,
        environment: Mapping[Any, Any] | None,
        standard: list[int],
        passed: Iterable[int],
        *,
        folder: str | None = None,
        session: bool = False,
        group: int = -1,
    ) -> int | None:
        values = {
            os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if environment is None else environment).items()
        }
        server = self.servers[imports]
        if self.real or os.getpid() != self.pid or not server.fits(values):
            return None
        numbers, folder = sorted(map(int, passed)), folder or os.getcwd()
        request = {
            "command": command,
            "kind": program.kind,
            "target": program.target,
            "arguments": program.arguments,
            "warn": program.warn,
            "first_folder": program.first_folder(folder),
            "folder": folder,
            "environment": values,
            "session": session,
            "group": group,
            "umask": _umask(),
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "numbers": numbers,
        }
        descriptors = [number if given == -1 else given for number, given in enumerate(standard)]
        with self.lock:
            return server.fork(request, [*descriptors, *numbers])

    def close(self) -> None:
        """End both processes."""
        for server in self.servers.values():
            server.close()


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split(maxsplit=1)[0], 8)


_forking: Forking | None = None


class ForkedPopen(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose process is forked where that makes no difference."""

    def _execute_child(self, *asked: Any, **more: Any) -> None:
        values = dict(zip(_NAMES, asked, strict=False)) | more
        pid = None if _forking is None else _forking.popen(values)
        if pid is None:
            super()._execute_child(*asked, **more)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(values[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def forks() -> Forking | None:
    """What forks the processes that this process starts; None if they are really started."""
    return _forking


_spawnv_passfds: Final = multiprocessing.util.spawnv_passfds


def _spawn(path: Any, arguments: list[Any], descriptors: Iterable[int]) -> int:
    """In place of multiprocessing's own: start a process by `spawn`, or a fork server."""
    passed = list(descriptors)
    pid = None if _forking is None else _forking.spawn(arguments, passed)
    return _spawnv_passfds(path, arguments, passed) if pid is None else pid


@contextmanager
def forked_starts() -> Iterator[None]:
    """Fork the Python processes that this process starts. Coverage sees only what is really started."""
    global _forking
    if platform.machine() not in SYS_CLONE or any(name.startswith("COVERAGE_") for name in os.environ):
        yield
        return
    _forking = Forking()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", ForkedPopen)
        patch.setattr(multiprocessing.util, "spawnv_passfds", _spawn)
        try:
            yield
        finally:
            _forking.close()
            _forking = None


@contextmanager
def real_starts() -> Iterator[None]:
    """Really start processes meanwhile."""
    if _forking is None:
        yield
        return
    _forking.real += 1
    try:
        yield
    finally:
        _forking.real -= 1
