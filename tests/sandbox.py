"""Sandboxes without a container engine: namespaces and filters of system calls.

    python -m tests.sandbox memfd_create=ENOSYS,pidfd_open=EPERM -- COMMAND ...

runs a command under a filter as container runtimes install it (seccomp): these system calls fail with these errors, for
the command and all processes that it starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

PROCESS_ONE: Final = ("unshare", "-r", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The command is process 1 of a PID namespace, with the /proc of that namespace, as in a container."""
OTHER_PROC: Final = ("unshare", "-r", "--pid", "--fork", "--kill-child")
"""The command is process 1 of a PID namespace, and /proc shows the numbers of another one."""
_OPENED: Final = """
b=$(mktemp -d) && mount --bind "$2" $b && mount -t tmpfs -o mode=755 tmpfs "$1" && mkdir -p "$2" &&
mount --move $b "$2" && rmdir $b &&
"""
"""Shows of a folder that is closed to others ($1) the one that all may see ($2), here that of Python."""
_NUMBERS: Final = {
    "x86_64": {"memfd_create": 319, "pidfd_open": 434, "clone3": 435},
    "aarch64": {"memfd_create": 279, "pidfd_open": 434, "clone3": 435},
}
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS; the number of the system call is at offset 0
_IF_EQUAL: Final = 0x15
_IF_ABOVE: Final = 0x25
_IF_AT_LEAST: Final = 0x35
_IF_ANY_BIT: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000


def needs_namespaces(command: Sequence[str] = PROCESS_ONE) -> None:
    """Skip the test if this machine lets this user make no namespaces."""
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make namespaces")


def without(**errors: str) -> tuple[str, ...]:
    """The start of a command under which these system calls fail. Skips the test if there is no filter here."""
    if sys.platform != "linux" or platform.machine() not in _NUMBERS:
        pytest.skip("the numbers of the system calls of this processor are not known here")
    return sys.executable, "-m", "tests.sandbox", ",".join(f"{name}={error}" for name, error in errors.items()), "--"


def as_nobody(*, squashed: bool = False) -> tuple[str, ...]:
    """The start of a command that another user runs; or root, on a file system of others that squashes root.

    There, its number is 0, and files of the real root are those of a stranger. Skips the test if that is not possible.
    """
    if os.geteuid() or sys.platform != "linux":
        pytest.skip("only root can be somebody else")
    base = Path(sys.base_prefix).resolve()
    closed = next((each for each in reversed(base.parents) if not each.stat().st_mode & 0o001), None)
    opened = "" if closed is None else _OPENED
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *(("unshare", "-r") if squashed else ()))
    command = ("unshare", "-m", "sh", "-c", f'{opened}shift 2 && exec "$@"', "sh", str(closed), str(base), *user)
    needs_namespaces(command)
    return command


def environment() -> dict[str, str]:
    """Variables with which a script in any folder imports this Brand and these tests."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Numbers of system calls that fail with an error."""

    first: int
    error: int
    last: int = 0
    """The last number; 0: there is only one."""
    argument: int = -1
    """The calls fail only if this argument has one of `bits`; -1: always."""
    bits: int = 0

    def steps(self) -> list[tuple[int, int, int, int]]:
        """Return the instructions, which expect the number of the call, and leave it for the next."""
        end = (_RETURN, 0, 0, _ERRNO | self.error)
        if self.argument < 0:
            return [(_IF_AT_LEAST, 0, 2, self.first), (_IF_ABOVE, 1, 0, self.last or self.first), end]
        load = (_LOAD, 0, 0, 16 + 8 * self.argument)  # the low half, as these processors store it
        return [(_IF_EQUAL, 0, 4, self.first), load, (_IF_ANY_BIT, 0, 1, self.bits), end, (_LOAD, 0, 0, 0)]


def refuse(refusals: Iterable[Refusal]) -> None:
    """Let these system calls fail in this process and all that it starts. Raises OSError."""
    steps = [(_LOAD, 0, 0, 0), *(step for each in refusals for step in each.steps()), (_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    wanted = (pair.split("=") for pair in sys.argv[1].split(","))
    numbers = _NUMBERS[platform.machine()]
    refuse([Refusal(numbers[name], getattr(errno, error)) for name, error in wanted])
    os.execvp(sys.argv[3], sys.argv[3:])
