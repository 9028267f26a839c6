"""Do Python and the kernel support the features that a training needs? Each is tried, because a sandbox may forbid
features that its kernel has.

processes       the data server is notified when a training ends (pidfd_open, Linux 5.3)
shared memory   samples are in an anonymous file that no other process can change (memfd, seals)
sockets         the server passes this file to clients (abstract Unix sockets, SCM_RIGHTS)
page cache      clients copy samples that it holds already (mincore, RWF_NOWAIT); without it reads are slower
compiled        loops over samples (brand.native); without them small samples are slower
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

from brand.doctor.finding import CheckResult
from brand.native import CORE, WANTED, XXH3, borrowed
from brand.node.memory.arena import Arena
from brand.storage.io.pagecache import CachedFile

PART: Final = "system"
_NEEDS: Final = "training needs Linux 5.3 or newer; conversion and random access do not"
_FUTURE_WRITE: Final = getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)
_BYTES: Final = 1 << 16


def look() -> Iterator[CheckResult]:
    """Check Python, the kernel, and the kernel features that a training needs."""
    yield CheckResult(PART, "Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield compiled(XXH3, borrowed.zstd(), built=CORE is not None, wanted=WANTED)
    yield _kernel()
    if sys.platform == "linux":
        yield _shared_memory()
        yield _sockets()
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_BYTES))
            file.flush()
            yield page_cache(PART, file.fileno(), _BYTES)


def compiled(xxh3: Sequence[int], zstd: Sequence[int], *, built: bool, wanted: bool) -> CheckResult:
    """Check the compiled loops over samples, and the functions of other libraries that they call."""
    name = "compiled"
    if not wanted:
        return CheckResult(PART, name, "missing", "BRAND_NATIVE=0 disables the compiled loops", "unset BRAND_NATIVE")
    if not built:
        told = "the loops over samples were not built: small samples are slower to read"
        return CheckResult(
            PART, name, "missing", told, "install a C compiler and Python's headers, then reinstall Brand"
        )
    lacking = [package for package, lent in (("xxhash", xxh3), ("zstandard", zstd)) if not lent]
    if lacking:
        told = (
            f"loops over samples, but without the functions of {' and '.join(lacking)}: this build does not export them"
        )
        return CheckResult(PART, name, "missing", told, f"pip install --force-reinstall {' '.join(lacking)}")
    return CheckResult(PART, name, "ok", "loops over samples")


def _kernel() -> CheckResult:
    named = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform != "linux":
        return CheckResult(PART, "kernel", "problem", named, _NEEDS)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return CheckResult(PART, "kernel", "problem", f"{named}: pidfd_open: {error.strerror}", _NEEDS)
    return CheckResult(PART, "kernel", "ok", named)


def _shared_memory() -> CheckResult:
    name = "shared memory"
    try:
        arena = Arena(2, 4096)
    except OSError as error:
        return CheckResult(PART, name, "problem", f"memfd_create or its seals: {error.strerror}", _NEEDS)
    try:
        sealed = fcntl.fcntl(arena.descriptor, fcntl.F_GET_SEALS) & _FUTURE_WRITE
    finally:
        arena.close()
    if not sealed:
        return CheckResult(
            PART, name, "missing", "a client could write to the server's samples", "Linux 5.1 or newer prevents it"
        )
    return CheckResult(PART, name, "ok", "anonymous and sealed (memfd)")


def _sockets() -> CheckResult:
    name = "sockets"
    try:
        _hand_over()
    except OSError as error:
        told = f"a file cannot be passed over an abstract Unix socket: {error.strerror or error}"
        return CheckResult(PART, name, "problem", told, "allow Unix sockets and SCM_RIGHTS in this sandbox")
    return CheckResult(PART, name, "ok", "a server can share its memory with clients (SCM_RIGHTS)")


def _hand_over() -> None:
    """Pass an anonymous file from one socket to another, as a server does. Raises OSError."""
    address = f"\0brand-doctor-{secrets.token_hex(8)}"
    descriptor = os.memfd_create("brand-doctor", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file, socket.socket(socket.AF_UNIX) as listener:
        file.write(b"brand")
        file.flush()
        listener.bind(address)
        listener.listen(1)
        with socket.socket(socket.AF_UNIX) as sender:
            sender.connect(address)
            receiver, _ = listener.accept()
            with receiver:
                socket.send_fds(sender, [b"1"], [descriptor])
                _, received, _, _ = socket.recv_fds(receiver, 1, 1)
    if not received:
        raise OSError(0, "the descriptor did not arrive")
    try:
        if os.pread(received[0], 5, 0) != b"brand":
            raise OSError(0, "another file arrived")
    finally:
        os.close(received[0])


def page_cache(part: str, descriptor: int, size: int) -> CheckResult:
    """Check whether the kernel tells which pages of a file that was just read or written are in the page cache."""
    name, faults = "page cache", []
    os.preadv(descriptor, [bytearray(min(size, _BYTES))], 0)
    if CachedFile(descriptor).holds(0, min(size, _BYTES)) is None:
        faults.append("mincore")
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        faults.append("RWF_NOWAIT")
    if faults:
        told = f"without {' and '.join(faults)}, clients cannot copy samples from the page cache: reads are slower"
        return CheckResult(part, name, "missing", told)
    return CheckResult(part, name, "ok", "clients can copy samples from the page cache (mincore, RWF_NOWAIT)")
