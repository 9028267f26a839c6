"""The process from which `tests/pythonchild.py` forks Python processes: `python forkserver.py SOCKET IMPORTS FOLDER`.

It imports modules once, then waits. For each request it forks a process that is not its own child but one of the test's
process (`CLONE_PARENT`), so the test waits for it as for any child of its own. The child takes over all that a new
interpreter would get: arguments, environment, folder, descriptors, streams.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

STANDARD: Final = 3
"""Descriptors of a request before those that the child inherits at their own numbers."""
PADDING: Final = "BRAND_TESTS_PADDING"
"""Variable that only makes room for the environments of children, which `/proc` then shows."""
_ABOVE: Final = 200
"""Received descriptors are moved above this number, out of the way of the numbers that a child asks for."""
_C: Final = ctypes.PyDLL(None)
SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220} if sys.platform == "linux" else {}
"""Number of the system call, by machine; on others, processes are really started."""
_CLONE_PARENT: Final = 0x8000
_DEFAULT_FILTERS: Final = len(warnings.filters)
_HEADER_BYTES: Final = 8


def main() -> dict[str, Any]:
    """Fork a child for each request until the test's process has ended. Return the request, in the child."""
    number, modules, root = sys.argv[1:4]
    os.environ.pop(PADDING, None)
    sys.path.pop(0)  # the folder of this file
    base = list(sys.path)
    sys.path.insert(0, root)
    for module in json.loads(modules):
        with suppress(ImportError):  # a package that is not installed
            importlib.import_module(module)
    sys.path[:] = base
    gc.collect()
    gc.freeze()  # a collection in a child copies no page of these objects
    requests = socket.socket(fileno=int(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request = _receive(requests)
        if request is None:
            os._exit(0)
        child = _fork()
        if not child:
            requests.detach()
            _enter(request)
            return request
        for descriptor in request["received"]:
            os.close(descriptor)
        requests.sendall(b"%d\n" % child)


def _fork() -> int:
    """Fork a child of this process's parent; like `os.fork`, return its pid, and 0 in the child.

    The C library does not know that it is forked: it keeps the number of its thread, which is put right here.
    """
    thread = _number_of_thread()
    ctypes.pythonapi.PyOS_BeforeFork()
    child: int = _C.syscall(SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if child:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        return child
    thread.value = os.getpid()
    ctypes.pythonapi.PyOS_AfterFork_Child()
    return 0


def _number_of_thread() -> ctypes.c_int:
    """Where the C library keeps the number of this thread, which is that of the process."""
    _C.pthread_self.restype = ctypes.c_size_t
    start, process = _C.pthread_self(), os.getpid()
    found = [n for n, value in enumerate((ctypes.c_int * 256).from_address(start)) if value == process]
    return ctypes.c_int.from_address(start + 4 * found[0]) if len(found) == 1 else ctypes.c_int()


def _receive(requests: socket.socket) -> dict[str, Any] | None:
    """Return the next request, its descriptors above all numbers that a child may ask for; None at the end."""
    try:
        header, received, _, _ = socket.recv_fds(requests, _HEADER_BYTES, 64)
    except ConnectionError:
        return None
    if not header:
        return None
    size, parts = int(header), []
    while size:
        parts.append(requests.recv(size))
        size -= len(parts[-1])
    request: dict[str, Any] = json.loads(b"".join(parts))
    above = max(_ABOVE, *request["numbers"], 0) + 1  # else a number could be taken from a descriptor still to be moved
    request["received"] = [_moved(descriptor, above) for descriptor in received]
    return request


def _moved(descriptor: int, above: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(descriptor)
    return moved


def _enter(request: dict[str, Any]) -> None:
    """Make this fork what a new interpreter would be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["deaf"] else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.umask(request["umask"])
    for descriptor, number in zip(request["received"], [*range(STANDARD), *request["numbers"]], strict=True):
        os.dup2(descriptor, number, inheritable=True)
    _close_others({*range(STANDARD), *request["numbers"]})
    os.chdir(request["folder"])
    _C.clearenv()
    os.environ._data.clear()  # type: ignore[attr-defined]
    os.environ.update(request["environment"])
    time.tzset()
    _show(request["command"], request["environment"])
    sys.orig_argv[:] = request["command"]
    sys.argv[:] = request["arguments"]
    if request["first_folder"] is not None:
        sys.path.insert(0, request["first_folder"])
    _warn(request["warn"])
    _forget()
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        stream = _stream(name, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the folder that is being listed
                os.close(int(name))


def _show(command: list[str], environment: dict[str, str]) -> None:
    """Let `/proc` show the command and the environment of this process, which tests look for."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    for texts, place in (command, 45), ([f"{name}={value}" for name, value in environment.items()], 47):
        start, size = int(fields[place]), int(fields[place + 1]) - int(fields[place])
        shown = b"".join(os.fsencode(text) + b"\0" for text in texts)[: size - 1]
        ctypes.memset(start, 0, size)
        ctypes.memmove(start, shown, len(shown))


def _warn(options: list[str]) -> None:
    """Apply the options `-W` as at the start: filters that imports have added stay in front."""
    filters: Any = warnings.filters
    added = filters[: len(filters) - _DEFAULT_FILTERS]
    del filters[: len(added)]
    sys.warnoptions[:] = options
    warnings._processoptions(options)  # type: ignore[attr-defined]
    filters[:0] = added
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _forget() -> None:
    """Drop what the imported modules know of the process that imported them."""
    tempfile.tempdir = None
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _stream(name: str, mode: str) -> Any:
    """Return a standard stream as the interpreter makes it."""
    old = getattr(sys, f"__{name}__")
    raw = io.FileIO(("stdin", "stdout", "stderr").index(name), mode, closefd=False)
    raw.name = f"<{name}>"
    buffer: Any = raw
    stream: Any
    if mode == "r":
        buffer = io.BufferedReader(raw)
        stream = io.TextIOWrapper(buffer, old.encoding, old.errors)
    elif old.write_through:  # `PYTHONUNBUFFERED`
        stream = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", write_through=True)
    else:
        buffer = io.BufferedWriter(raw)
        lines = name == "stderr" or raw.isatty()
        stream = io.TextIOWrapper(buffer, old.encoding, old.errors, "\n", line_buffering=lines)
    stream.mode = mode
    return stream


def run(request: dict[str, Any]) -> None:
    """Run the code, module or script as `__main__`."""
    kind, target = request["kind"], request["target"]
    main_module = types.ModuleType("__main__")
    vars(main_module).update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = main_module
    if kind == "module":
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        return
    if kind == "script":
        vars(main_module).update(__cached__=None, __file__=target)
        code = compile(Path(target).read_bytes(), target, "exec")
    else:
        code = compile(target, "<string>", "exec")
    exec(code, vars(main_module))


if __name__ == "__main__":
    asked = main()
    try:
        run(asked)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - the interpreter would print it, too, without the frames of this file
        inner = error.__traceback__.tb_next.tb_next if error.__traceback__ and error.__traceback__.tb_next else None
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        sys.exit(1)
