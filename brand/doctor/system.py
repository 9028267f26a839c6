"""Do Python and the kernel support the features that a training needs, and may this process use enough resources?

Each feature is tried, because a sandbox may forbid features that its kernel has.

processes       the data server is notified when a training ends (pidfd_open); without it, it looks every second
shared memory   samples are in an anonymous file that no other process can change (memfd, seals), or in a removed file
sockets         the server passes this file to clients (abstract Unix sockets, SCM_RIGHTS)
page cache      clients copy samples that it holds already (mincore, RWF_NOWAIT); without it reads are slower
compiled        loops over samples (brand.native); without them small samples are slower

Limits are those of memory, processors, open files, storage and folders. The functions that judge them are pure.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import platform
import resource
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from brand.anonymous import FUTURE_WRITE, SHARED_FILES
from brand.available import available_bytes, group_bytes
from brand.doctor.packages import NO_TEMPORARY, CheckResult
from brand.errors import BrandError, counted, size
from brand.groups import processors_allowed, read_limits, tasks_allowed
from brand.native import CORE, WANTED, XXH3, borrowed
from brand.node.memory.arena import Arena
from brand.node.setup.memory import DEFAULT_SHARE
from brand.storage.io.device import IN_MEMORY, mount_of
from brand.storage.io.files import USUAL_LIMIT
from brand.storage.io.pagecache import CachedFile
from brand.usercache import user_cache

_SYSTEM: Final = "system"
_LIMITS: Final = "limits"
LEAST_BYTES: Final = 256 << 20
"""Free memory below which a training with PyTorch and its server hardly starts."""
LEAST_TASKS: Final = 64
"""Processes and threads that a training, its server and two workers of a DataLoader have on a small machine."""
LEAST_FILES: Final = 256
"""Open files below which a loader with workers may fail."""
MOST_TEMPORARY: Final = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""Longest TMPDIR, in bytes, under which PyTorch's workers can make their sockets."""
_NEEDS: Final = "training needs Linux 5.3 or newer; conversion and random access do not"
_BYTES: Final = 1 << 16
LEAST_SHARED: Final = 1 << 30
"""Size of `/dev/shm` from which on the workers of a DataLoader use it, as in `brand.torch.data.shared_batches`."""


def check_system() -> Iterator[CheckResult]:
    """Check Python, the kernel, and the kernel features that a training needs."""
    yield CheckResult(_SYSTEM, "Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield compiled(XXH3, borrowed.zstd(), built=CORE is not None, wanted=WANTED)
    yield _kernel()
    if sys.platform == "linux":
        yield _shared_memory()
        yield _sockets()
        yield _proc()
        with suppress(FileNotFoundError):  # `judge_temporary` reports it
            yield _page_cache()


def compiled(xxh3: Sequence[int], zstd: Sequence[int], *, built: bool, wanted: bool) -> CheckResult:
    """Check the compiled loops over samples, and the functions of other libraries that they call."""
    result = partial(CheckResult, _SYSTEM, "compiled")
    if not wanted:
        return result("missing", "BRAND_NATIVE=0 disables the compiled loops", "unset BRAND_NATIVE")
    if not built:
        told = "the loops over samples were not built: small samples are slower to read"
        return result("missing", told, "install a C compiler and Python's headers, then reinstall Brand")
    lacking = [package for package, lent in (("xxhash", xxh3), ("zstandard", zstd)) if not lent]
    if lacking:
        missing = f"without the functions of {' and '.join(lacking)}: this build does not export them"
        cure = f"pip install --force-reinstall {' '.join(lacking)}"
        return result("missing", f"loops over samples, but {missing}", cure)
    return result("ok", "loops over samples")


def _kernel() -> CheckResult:
    result = partial(CheckResult, _SYSTEM, "kernel")
    named = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform != "linux":
        return result("problem", named, _NEEDS)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        told = f"{named}: pidfd_open is refused ({error.strerror}), so the data server looks every second who has ended"
        return result("missing", told)
    return result("ok", named)


def _shared_memory() -> CheckResult:
    result = partial(CheckResult, _SYSTEM, "shared memory")
    try:
        arena = Arena(2, 4096)
    except OSError as error:
        return result("problem", error.strerror or str(error), f"allow memfd_create, or mount {SHARED_FILES}")
    seals = 0
    try:
        with suppress(OSError):  # a file that cannot be sealed
            seals = fcntl.fcntl(arena.descriptor, fcntl.F_GET_SEALS)
    finally:
        arena.close()
    if not seals & fcntl.F_SEAL_SHRINK:
        told = f"memfd_create is refused, so memory= is reserved at once, as a file in {SHARED_FILES} or TMPDIR"
        return result("missing", told, "allow memfd_create in this sandbox")
    if not seals & FUTURE_WRITE:
        return result("missing", "a client could write to the server's samples", "Linux 5.1 or newer prevents it")
    return result("ok", "anonymous and sealed (memfd)")


def _sockets() -> CheckResult:
    result = partial(CheckResult, _SYSTEM, "sockets")
    try:
        _hand_over()
    except OSError as error:
        told = f"a file cannot be passed over an abstract Unix socket: {error.strerror or error}"
        return result("problem", told, "allow Unix sockets and SCM_RIGHTS in this sandbox")
    return result("ok", "a server can share its memory with clients (SCM_RIGHTS)")


def _hand_over() -> None:
    """Pass an open file from one socket to another, as a server does. Raises OSError."""
    address = f"\0brand-doctor-{secrets.token_hex(8)}"
    with open(os.devnull, "rb") as file, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(1)
        with socket.socket(socket.AF_UNIX) as sender:
            sender.connect(address)
            receiver, _ = listener.accept()
            with receiver:
                socket.send_fds(sender, [b"1"], [file.fileno()])
                _, received, _, _ = socket.recv_fds(receiver, 1, 1)
    if not received:
        raise OSError(0, "the descriptor did not arrive")
    try:
        if os.fstat(received[0]).st_rdev != Path(os.devnull).stat().st_rdev:
            raise OSError(0, "another file arrived")
    finally:
        os.close(received[0])


def _proc() -> CheckResult:
    if Path("/proc/self").exists():
        return CheckResult(_SYSTEM, "/proc", "ok", "mounted")
    told = "not mounted: limits of control groups, the free memory and storages are not known, and workers of a "
    told += "DataLoader send batches through a pipe, which is slower"
    return CheckResult(_SYSTEM, "/proc", "missing", told, "mount it, and pass memory= to BrandDataset")


def _page_cache() -> CheckResult:
    """Check the page cache with a file in TMPDIR, unless that is memory, whose file system has no RWF_NOWAIT."""
    with suppress(BrandError):
        if mount_of(tempfile.gettempdir()).type in IN_MEMORY:
            told = f"not tried, because {tempfile.gettempdir()} is in memory"
            return CheckResult(_SYSTEM, "page cache", "ok", told, "`brand doctor DST` tries that of a data set")
    with tempfile.TemporaryFile() as file:
        file.write(bytes(_BYTES))
        file.flush()
        return page_cache(_SYSTEM, file.fileno(), _BYTES)


def page_cache(part: str, descriptor: int, file_bytes: int) -> CheckResult:
    """Check whether the kernel reports which pages of a file that was just read or written are in the page cache."""
    length, faults = min(file_bytes, _BYTES), []
    os.preadv(descriptor, [bytearray(length)], 0)
    if CachedFile(descriptor).holds(0, length) is None:
        faults.append("mincore")
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        faults.append("RWF_NOWAIT")
    if faults:
        told = f"without {' and '.join(faults)}, clients cannot copy samples from the page cache: reads are slower"
        return CheckResult(part, "page cache", "missing", told)
    told = "clients can copy samples from the page cache (mincore, RWF_NOWAIT)"
    return CheckResult(part, "page cache", "ok", told)


def check_limits() -> Iterator[CheckResult]:
    """Check the limits of this process."""
    yield judge_memory(available_bytes(), group_bytes())
    yield judge_shared_files(shared_bytes(), why_no_semaphore())
    yield judge_processors(len(os.sched_getaffinity(0)), os.cpu_count() or 1, processors_allowed())
    yield judge_processes(*tasks_allowed())
    yield judge_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield judge_storage(read_limits())
    yield _cache_folder()
    yield judge_temporary(temporary_folder())


def shared_bytes() -> int:
    """Return the size of `/dev/shm` in bytes; 0 if there is none."""
    try:
        facts = os.statvfs(SHARED_FILES)
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize


def why_no_semaphore() -> str:
    """Return why Python's multiprocessing can make no semaphore in `/dev/shm`; empty if it can."""
    try:
        multiprocessing.get_context("fork").Lock()  # of another way to start, a helper process would be started, too
    except (OSError, ImportError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def judge_shared_files(there: int, refused: str = "") -> CheckResult:
    """Judge `/dev/shm`: its size, because PyTorch has the batches of a DataLoader's workers there, and its semaphores.

    `refused`: why there can be no semaphore.
    """
    if refused:
        told = f"workers of a DataLoader cannot start ({refused}): Python has their semaphores there"
        cure = "use BrandLoader, which has no worker processes, or mount a tmpfs of mode 1777 there"
        return CheckResult(_LIMITS, SHARED_FILES, "missing", told, cure)
    told = "Brand itself does not use it; workers of a DataLoader put large tensors there"
    if there < LEAST_SHARED:
        told = (
            f"{size(there)}, so workers of a DataLoader send batches of a BrandDataset through memory of their own; "
            "with a collate_fn of your own they need more: use BrandLoader, or docker run --shm-size=8g"
        )
    return CheckResult(_LIMITS, SHARED_FILES, "ok", told)


def judge_memory(free: int, group: int | None) -> CheckResult:
    """Judge the memory that this process may still take, and the limit of its control group (None: no limit)."""
    told = f"{size(free)} are free, and BrandDataset takes at most {size(int(free * DEFAULT_SHARE))} by default"
    if group is not None:
        told = f"the control group may use {size(group)}; {told}"
    if free < LEAST_BYTES:
        cure = f"give this job {size(LEAST_BYTES)} more memory, or end other processes"
        return CheckResult(_LIMITS, "memory", "problem", told, cure)
    return CheckResult(_LIMITS, "memory", "ok", told)


def judge_processors(mine: int, machine: int, allowed: float | None) -> CheckResult:
    """Judge the processors that this process may run on, those of the machine, and the quota of its control group."""
    told, cure = f"this process may use {mine} of {counted(machine, 'processor')}", ""
    if allowed is not None and allowed < mine:
        told += f", and its control group the time of {allowed:g} processors"
        cure = f"BrandLoader(num_workers={max(1, int(allowed))}) fits better"
    return CheckResult(_LIMITS, "processors", "ok", told, cure)


def judge_processes(limit: int | None, there: int) -> CheckResult:
    """Judge how many processes and threads the control groups allow (None: no limit), and how many there are."""
    result = partial(CheckResult, _LIMITS, "processes")
    if limit is None:
        return result("ok", "no control group limits processes and threads")
    told = f"the control group allows {limit:,} processes and threads, and {there:,} are there"
    if limit - there < LEAST_TASKS:
        cure = f"allow at least {there + LEAST_TASKS:,}: docker run --pids-limit, pids.max"
        return result("problem", f"{told}: a training and its data server may need {LEAST_TASKS} more", cure)
    return result("ok", told)


def judge_files(soft: int, hard: int) -> CheckResult:
    """Judge the limit of open files: the one in force, and the highest that this process may set."""
    result = partial(CheckResult, _LIMITS, "open files")
    if soft == resource.RLIM_INFINITY:
        return result("ok", "no limit")
    told = f"{soft:,} for a process"
    if soft < LEAST_FILES:
        able = hard == resource.RLIM_INFINITY or hard >= USUAL_LIMIT
        cure = f"ulimit -n {USUAL_LIMIT}" if able else f"raise the hard limit of this user or container, {hard:,}"
        return result("problem", f"only {told}", cure)
    return result("ok", told)


def judge_storage(limits: list[str]) -> CheckResult:
    """Judge the read limits of the control groups."""
    if limits:
        told = f"the control group limits reads: {', '.join(limits)}"
        return CheckResult(_LIMITS, "storage", "ok", told, "`brand profile DST` measures the remaining bandwidth")
    return CheckResult(_LIMITS, "storage", "ok", "no control group limits reads")


def temporary_folder() -> str:
    """Return the folder of temporary files; empty if this process can write to none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return ""


def judge_temporary(folder: str) -> CheckResult:
    """Judge the folder of temporary files, in which workers of a DataLoader make sockets."""
    if not folder:
        told = "this process can write to no folder of temporary files, without which PyTorch cannot be imported"
        return CheckResult(_LIMITS, "TMPDIR", "problem", told, NO_TEMPORARY)
    length = len(os.fsencode(folder))
    if length > MOST_TEMPORARY:
        told = f"{folder} has {length} bytes, too many for the sockets of a DataLoader with workers"
        return CheckResult(_LIMITS, "TMPDIR", "problem", told, "set TMPDIR to a shorter path, such as /tmp")
    return CheckResult(_LIMITS, "TMPDIR", "ok", f"{folder}, {size(shutil.disk_usage(folder).free)} free")


def _cache_folder() -> CheckResult:
    """Check whether profiles of storages and copies of indices can be stored."""
    result = partial(CheckResult, _LIMITS, "cache")
    try:
        folder = user_cache("storage")
    except BrandError as error:
        return result("missing", str(error), "set XDG_CACHE_HOME, so that storage profiles can be stored")
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not os.access(there, os.W_OK):
        named = f"{folder.parent} cannot be made, because {there} is not writable"
        told = f"{named if there != folder else f'{folder} is not writable'}: profiles of storages cannot be stored, "
        told += "and no data set at a URL can be opened"
        return result("missing", told, "set XDG_CACHE_HOME to a folder of your own")
    return result("ok", str(folder.parent))
