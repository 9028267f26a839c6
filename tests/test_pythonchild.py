"""A forked Python process is what a started one would be: each fact is compared between the two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import pythonchild
from tests.pythonchild import LIGHT, TORCH, Forking, Program, imports_for, program_of
from tests.support import LIMIT_S

REPORT = """
import json, multiprocessing, os, pathlib, signal, sys, tempfile, threading, warnings
read = lambda name: pathlib.Path("/proc/self", name).read_bytes().rstrip(b"\\0").decode()
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "parent": os.getppid(),
    "environment": dict(os.environ), "shown": sorted(read("environ").split("\\0")), "command": read("cmdline"),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), os.getpgid(0) == os.getpgid(os.getppid())],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.fileno()] for s in
                (sys.stdin, sys.stdout, sys.stderr)],
    "descriptors": [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")],
    "signals": [repr(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD)],
    "warnings": [sys.warnoptions, warnings.filters[-6 if sys.warnoptions else -5:]],
    "umask": os.umask(0), "temporary": tempfile.gettempdir(), "threads": threading.active_count(),
    "main": [__name__, sorted(name for name in globals() if name.startswith("__"))],
    "process": [multiprocessing.current_process().name, multiprocessing.parent_process()],
}, default=str))
"""


@pytest.fixture(autouse=True)
def forking() -> Forking:
    """What forks the processes of the tests."""
    found = pythonchild.forks()
    if found is None:
        pytest.skip("processes are really started here")
    return found


def both(command: list[str], **more: Any) -> list[subprocess.CompletedProcess[str]]:
    """Outcomes of a command that is forked, and of the same that is really started."""
    done = [subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **more)]
    with pythonchild.real_starts():
        return [*done, subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **more)]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "own"), [("code", False), ("code", True), ("module", True), ("script", True)])
def test_a_forked_process_is_as_a_started_one(how: str, own: bool, tmp_path: Path) -> None:
    """Arguments, paths, environment, streams, descriptors, session, signals, warnings, what `/proc` shows."""
    (tmp_path / "report.py").write_text(REPORT)
    start = {"code": ["-W", "error", "-c", REPORT], "module": ["-m", "report"], "script": ["report.py"]}[how]
    more: dict[str, Any] = {"env": os.environ | {"ONE": "1", "TMPDIR": str(tmp_path)}}  # the C library may have others
    more |= {"cwd": tmp_path} if own else {}
    forked, started = both([sys.executable, *start, "a", "-b"], start_new_session=own, **more)
    assert (forked.returncode, forked.stderr) == (started.returncode, started.stderr) == (0, "")
    found, wanted = json.loads(forked.stdout), json.loads(started.stdout)
    assert found == wanted
    assert found["parent"] == os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "raise SystemExit(3)",
        "raise SystemExit('why')",
        "raise ValueError('why')",
        "import atexit; atexit.register(print, 'at the end'); print(1)",
        "import os; os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.abort()",
        "import sys; sys.stdout.close(); print(1, file=sys.stderr)",
        "import warnings; warnings.warn('why'); print(input())",
    ],
)
def test_it_ends_as_a_started_one(code: str) -> None:
    """With the same status and the same words."""
    forked, started = both([sys.executable, "-c", code], input="words\n")
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


@pytest.mark.slow
def test_it_can_be_waited_for_and_killed() -> None:
    """It is a child of this process, and goes on until it is told to end."""
    # Python's own handler only notes Ctrl-C: one that comes just before a call of the system that waits would be lost.
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print(1, flush=True); input()"
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.001)
            process.send_signal(number)
            assert process.wait(LIMIT_S) == -number


@pytest.mark.slow
def test_it_inherits_what_is_blocked_and_ignored() -> None:
    """Of the thread that starts it at that time, whatever was blocked as the first process was forked."""
    code = "import signal as s; print(s.pthread_sigmask(s.SIG_BLOCK, ()), s.getsignal(s.SIGINT) == s.SIG_IGN)"
    command = [sys.executable, "-c", code]
    forked, started = both(command)
    assert forked.stdout == started.stdout
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forked, started = both(command)
    finally:
        signal.signal(signal.SIGINT, heard)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert forked.stdout == started.stdout
    assert "SIGUSR2" in forked.stdout
    assert forked.stdout.endswith("True\n")


@pytest.mark.slow
def test_it_inherits_descriptors_at_their_numbers() -> None:
    """Those that are passed, and no others."""
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, b'through the pipe'); os.fstat({reader})"
    with subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[writer], stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writer)
        assert os.read(reader, 100) == b"through the pipe"
        assert "Bad file descriptor" in process.communicate(timeout=LIMIT_S)[1]
    os.close(reader)


@pytest.mark.slow
def test_the_process_that_forks_has_one_thread(forking: Forking) -> None:
    """A lock that another thread holds would stay closed in a child for ever."""
    code = "import os; print(len(os.listdir('/proc/self/task')))"
    for more in ("", "; import torch"):
        done = subprocess.run([sys.executable, "-c", code + more], capture_output=True, check=True, timeout=LIMIT_S)
        assert done.stdout == b"1\n"
    for server in forking.servers.values():
        assert server.pid is not None
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1


@pytest.mark.slow
def test_it_computes_with_threads_and_forks() -> None:
    """Libraries start their threads in it, and a process that it forks itself goes on."""
    code = """
import os, threading
import numpy as np, torch

torch.set_num_threads(2)
square = np.ones((600, 600))
print(float((square @ square).sum()), float((torch.ones(600, 600) @ torch.ones(600, 600)).sum()))
thread = threading.Thread(target=lambda: print(threading.get_native_id() != os.getpid()))
thread.start()
thread.join()
child = os.fork()
if not child:
    os._exit(int((square @ square).sum() != 600**3))
print(os.waitpid(child, 0)[1], threading.get_native_id() == os.getpid(), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "216000000.0 216000000.0\nTrue\n0 True\n"


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_a_variable_that_is_read_at_the_start_is_read(value: str) -> None:
    """A process with another value is really started."""
    command = [sys.executable, "-c", "from brand.native import WANTED; print(WANTED)"]
    environment = os.environ | {"BRAND_NATIVE": value}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S, env=environment)
    assert done.stdout == f"{value == '1'}\n"


def test_which_process_forks() -> None:
    """The source decides: of code, of a script, and of a module of the tests."""
    python = sys.executable
    for command, expected in {
        (python, "-c", "import brand"): LIGHT,
        (python, "-m", "brand", "info"): LIGHT,
        (python, "-P", "-c", "from brand.torch import BrandDataset"): TORCH,
        (python, "-m", "tests.torch.training", "set"): TORCH,
        (python, "-m", "torch.distributed.run"): TORCH,
        (python, "-c", "import sys; print(sys.modules)"): None,
        (python, "-m", "brand", "doctor"): None,
    }.items():
        program = program_of(list(command))
        assert program is not None
        assert imports_for(program) == expected, command
    assert program_of([python, "-W", "error", "-P", "-c", "x", "y"]) == Program(
        "code", "x", ("-c", "y"), ("error",), safe_path=True
    )
    for other in ([python, "-S", "-c", ""], ["ls"], [python], [python, "-"]):
        assert program_of(other) is None
