"""Make a container without an engine, and become its process 1.

    unshare --mount --pid --uts --ipc --fork --kill-child python -m tests.containers.container SPEC PLACES COMMAND...

A file system in memory becomes the root: the folders of the system, of Python and of this repository are mounted there
for reading, `/inside` for writing, and `/etc`, `/dev`, `/tmp`, `/proc` and `/sys` are made as the `Spec` says. `Spec`
and `Places` are given as JSON. Needs root. `run` does all that, and makes control groups for limits of memory and of
processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.sandbox import Refusal, environment, refuse
from tests.support import LIMIT_S, wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
_DOCKER_CAPABILITIES: Final = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
"""The capabilities that Docker leaves to root."""
_PR_CAPBSET_DROP: Final = 24
_UNSHARE: Final = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
_REC, _BIND, _RDONLY, _REMOUNT, _PRIVATE = 0x4000, 0x1000, 1, 32, 1 << 18


@dataclass(frozen=True, slots=True)
class Spec:
    """What a container has, and what it has not. The default is an ordinary one of today's Docker."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    named: bool = True
    """Whether /etc/passwd has a line for the user."""
    variables: dict[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ("USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR")
    """Variables that are not set."""
    read_only: bool = False
    """Whether the root can only be read."""
    shm: str = "size=64m"
    """Options of /dev/shm; empty: there is none."""
    tmp: str = "size=1g,mode=1777"
    """Options of /tmp; empty: there is none."""
    proc: str = "rw"
    """Options of /proc; empty: it is not mounted."""
    groups_seen: bool = True
    """Whether /sys/fs/cgroup is mounted."""
    memory: int = 0
    """Bytes of memory; 0: no limit."""
    processes: int = 0
    """Processes and threads; 0: no limit."""
    files: int = 0
    """Limit of open files; 0: as it is."""
    network: str = "host"
    """`host`, `none` (a network without any address), or `IPv6`."""
    hostname: str = ""
    """A name that resolves nowhere; empty: as it is."""
    refused: tuple[Refusal, ...] = ()
    data: str = "rw"
    """Options of the folder of data."""
    data_mode: int = 0
    """Mode of the folder of the data set; 0: as it is."""
    cache_mode: int = 0
    """Mode of the folder /inside/cache, which belongs to root and to the first of `groups`; 0: there is none."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders outside of the container."""

    root: str
    """An empty folder, where the root is made."""
    data: str
    """Becomes /inside/data."""
    cache: str
    """Becomes /inside/cache, if there is one."""
    control: dict[str, str]
    """Folders of control groups, by controller, which the container enters."""


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount; the target is made if it is missing. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if flags & _BIND and not Path(source).is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    else:
        target.mkdir(parents=True, exist_ok=True)
    if libc.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"{source} at {target} ({options})")


def bind(source: Path, root: Path) -> None:
    """Show a folder at its own place below a new root, for reading."""
    target = root / source.relative_to("/")
    mount(str(source), target, flags=_BIND | _REC)
    mount("none", target, flags=_BIND | _REMOUNT | _RDONLY)


def packages() -> Iterable[Path]:
    """The folders from which this Python imports."""
    yield from {Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.prefix)), ROOT}


def build(spec: Spec, places: Places) -> None:
    """Make the container's root."""
    root = Path(places.root)
    mount("none", Path("/"), flags=_REC | _PRIVATE)
    mount("tmpfs", root, "tmpfs", options="mode=755")
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        place = Path("/", name)
        if place.is_symlink():
            (root / name).symlink_to(place.readlink())
        elif place.exists():
            bind(place, root)
    for folder in sorted({Path("/usr"), *packages()}):
        if not any((root / parent.relative_to("/")).is_mount() for parent in folder.parents if parent != Path("/")):
            bind(folder, root)
    _etc(spec, root / "etc")
    _devices(spec, root)
    mount(places.data, root / "inside/data", flags=_BIND)
    if spec.data_mode:
        (root / "inside/data/photos.brand").chmod(spec.data_mode)
    if spec.data == "ro":
        mount("none", root / "inside/data", flags=_BIND | _REMOUNT | _RDONLY)
    if spec.tmp:
        mount("tmpfs", root / "tmp", "tmpfs", options=spec.tmp)
    mount("tmpfs", root / "inside/scratch", "tmpfs", options="mode=1777")
    if spec.cache_mode:
        os.chown(places.cache, 0, spec.groups[0] if spec.groups else 0)
        Path(places.cache).chmod(spec.cache_mode)
        mount(places.cache, root / "inside/cache", flags=_BIND)
    if spec.proc:
        mount("proc", root / "proc", "proc", options="" if spec.proc == "rw" else spec.proc)
    mount("tmpfs", root / "sys/fs/cgroup", "tmpfs")
    if spec.groups_seen:
        for name, group in places.control.items():
            mount(group, root / "sys/fs/cgroup" / name, flags=_BIND)


def _etc(spec: Spec, etc: Path) -> None:
    etc.mkdir()
    lines = [f"me:x:{spec.uid}:{spec.gid}::/inside/data:/bin/sh"] if spec.named else []
    (etc / "passwd").write_text("\n".join([*lines, ""]))
    (etc / "group").touch()
    (etc / "hosts").write_text("::1 localhost\n" if spec.network == "IPv6" else "127.0.0.1 localhost\n::1 localhost\n")
    (etc / "ld.so.cache").write_bytes(Path("/etc/ld.so.cache").read_bytes())


def _devices(spec: Spec, root: Path) -> None:
    mount("tmpfs", root / "dev", "tmpfs", options="mode=755")
    for name in ("null", "zero", "full", "random", "urandom"):
        mount(f"/dev/{name}", root / "dev" / name, flags=_BIND)
    (root / "dev/fd").symlink_to("/proc/self/fd")
    if spec.shm:
        mount("tmpfs", root / "dev/shm", "tmpfs", options="mode=1777," + spec.shm)


def enter(spec: Spec, places: Places) -> None:
    """Go into the root, give up rights, and limit this process."""
    for folder in places.control.values():
        Path(folder, "cgroup.procs").write_text("0")
    if spec.network == "IPv6":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "address", "del", "127.0.0.1/8", "dev", "lo"], check=True)
    if spec.hostname:
        subprocess.run(["hostname", spec.hostname], check=True)
    if spec.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (spec.files, spec.files))
    os.chroot(places.root)
    os.chdir("/inside/data")
    if spec.read_only:
        mount("none", Path("/"), flags=_REMOUNT | _RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(64):
        if number not in _DOCKER_CAPABILITIES:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups(spec.groups)
    os.setgid(spec.gid)
    os.setuid(spec.uid)
    os.umask(0o022)


def needs_root() -> None:
    """Skip the test if containers cannot be made here, and say why."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("the filters have the numbers of the system calls of x86-64 on Linux")
    if os.geteuid() or subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("only root can make containers, if this machine permits namespaces")
    if any(folder.is_relative_to("/tmp") for folder in packages()):
        pytest.skip("Python or the checkout is below /tmp, and a container has a /tmp of its own")


def run(spec: Spec, data: Path, cache: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as process 1 of a container to its end. Skips the test if control groups cannot be made."""
    with contextlib.ExitStack() as stack:
        control = {}
        for name, file, limit in (
            ("memory", "memory.limit_in_bytes", spec.memory),
            ("pids", "pids.max", spec.processes),
        ):
            if limit:
                control[name] = str(stack.enter_context(_group(name, file, limit)))
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="brand-root-", ignore_cleanup_errors=True))
        places = Places(root, str(data), str(cache), control)
        network = () if spec.network == "host" else ("--net",)
        inside = (
            sys.executable,
            "-m",
            "tests.containers.container",
            json.dumps(asdict(spec)),
            json.dumps(asdict(places)),
        )
        return subprocess.run(
            [*_UNSHARE, *network, *inside, *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=environment(),
        )


@contextlib.contextmanager
def _group(controller: str, file: str, limit: int) -> Iterator[Path]:
    folder = Path("/sys/fs/cgroup", controller, f"brand-{secrets.token_hex(4)}")
    if not (folder.parent / "cgroup.procs").exists():
        pytest.skip(f"the {controller} controller of version 1 is not mounted")
    folder.mkdir()
    try:
        (folder / file).write_text(str(limit))
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), "all processes of the container have ended")
        folder.rmdir()


def main() -> None:
    """Become the command in the container."""
    facts, places = json.loads(sys.argv[1]), Places(**json.loads(sys.argv[2]))
    spec = Spec(**{**facts, "refused": tuple(Refusal(**each) for each in facts["refused"])})
    build(spec, places)
    enter(spec, places)
    variables = {
        "HOME": "/inside/scratch",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    variables = {name: text for name, text in (variables | spec.variables).items() if name not in spec.without}
    if spec.refused:
        refuse(spec.refused)
    try:
        os.execvpe(sys.argv[3], sys.argv[3:], variables)
    except OSError as error:
        sys.exit(f"{sys.argv[3]}: {errno.errorcode[error.errno or 0]}")


if __name__ == "__main__":
    main()
