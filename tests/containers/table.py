"""The environments that are rehearsed, and what is expected of a training and of `brand doctor` in each."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.containers.container import Spec
from tests.sandbox import Refusal

NEW_CALLS: Final = 333
"""The first number of a system call of x86-64 that the list of Docker 19.03 does not have."""
CLONE3: Final = 435
_PERM, _NOSYS = errno.EPERM, errno.ENOSYS
OLD_DOCKER: Final = tuple(
    Refusal(first, _PERM, last)
    for first, last in [
        (101, 0),  # ptrace
        (237, 239),  # mbind, set_mempolicy, get_mempolicy
        (248, 250),  # add_key, request_key, keyctl
        (256, 0),  # migrate_pages
        (272, 0),  # unshare
        (279, 0),  # move_pages
        (298, 0),  # perf_event_open
        (303, 304),  # name_to_handle_at, open_by_handle_at
        (308, 0),  # setns
        (310, 312),  # process_vm_readv, process_vm_writev, kcmp
        (321, 0),  # bpf
        (323, 324),  # userfaultfd, membarrier
        (329, 331),  # pkey_mprotect, pkey_alloc, pkey_free
        (NEW_CALLS, CLONE3 - 1),  # rseq, pidfd_send_signal, io_uring, pidfd_open
        (CLONE3 + 1, 1023),  # close_range, openat2, faccessat2, epoll_pwait2
    ]
)
"""What Docker 19.03 does not permit, but for clone3."""
GVISOR: Final = tuple(
    Refusal(first, _NOSYS, last)
    for first, last in [
        (122, 123),  # setfsuid, setfsgid
        (216, 0),  # remap_file_pages
        (278, 0),  # vmsplice
        (323, 0),  # userfaultfd
        (326, 0),  # copy_file_range
        (329, 331),  # pkey_mprotect, pkey_alloc, pkey_free
        (333, 0),  # io_pgetevents
        (427, 0),  # io_uring_register
        (440, 0),  # process_madvise
        (442, 1023),
    ]
) + tuple(Refusal(number, errno.EOPNOTSUPP, argument=5, bits=0xFFFFFFFF) for number in (327, 328))
"""What gVisor does not implement; preadv2 and pwritev2 take no flags."""
OLD_GVISOR: Final = (*GVISOR, Refusal(424, _NOSYS, CLONE3 - 1), Refusal(CLONE3 + 1, _NOSYS, 441))
"""The same, before pidfd_open and its neighbours were added."""

_USER: Final = Spec(uid=12345, gid=12345, named=False, variables={"HOME": "/"})
"""As `docker run --user 12345`: without a name, and with a home that it cannot write."""
_NOWHERE: Final = "no folder for Brand's own files"
_POLLS: Final = "`pidfd_open` refused: the server looks every second who has ended"
_AND_ALL: Final = {"data_loader": "", "resume": "", "cached": ""}
_SHM: Final = "workers of a DataLoader cannot start"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """An environment, and what is expected there."""

    what: str
    """The environment, in words."""
    spec: Spec
    named: Mapping[str, str]
    """Each check of `brand doctor` that is not `ok`, and what it says, in words."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Each step of the training that is refused, and a part of its error."""
    outcome: str = "trains"
    """What happens to the training, in words."""
    broken: bool = False
    """Whether `brand doctor` ends with code 1."""


REHEARSALS: Final = {
    "old Docker": Rehearsal(
        "Docker 19.03: its list of system calls, 64 MB of `/dev/shm`, read-only root and data, a user without a name",
        replace(_USER, read_only=True, data="ro", refused=(*OLD_DOCKER, Refusal(CLONE3, errno.ENOSYS))),
        {"kernel": _POLLS, "cache": _NOWHERE},
    ),
    "pod": Rehearsal(
        "a Kubernetes pod in gVisor: its list of system calls, also of older versions, no flags for `preadv2`; a user "
        "without a name in an `fsGroup`, `emptyDir`s of mode 0777 for `cache=` and at `/tmp`, read-only root and data, "
        "a host name that does not resolve",
        replace(
            _USER,
            groups=(2000,),
            read_only=True,
            data="ro",
            cache_mode=0o2777,
            variables={"HOME": "/", "XDG_CACHE_HOME": "/tmp/cache"},
            without=("USER", "LOGNAME", "TMPDIR"),
            hostname="pod-7",
            refused=OLD_GVISOR,
        ),
        {"kernel": _POLLS},
    ),
    "bare": Rehearsal(
        "`/proc` with `hidepid=2`, no control groups, 256 open files, no network, neither `HOME` nor `USER`, read-only "
        "root and data",
        replace(
            _USER,
            proc="hidepid=2",
            network="none",
            groups_seen=False,
            files=256,
            data="ro",
            read_only=True,
            variables={},
            without=("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR"),
        ),
        {"cache": _NOWHERE},
    ),
    "clone3": Rehearsal(
        "Docker before 20.10.10 with a C library of today (glibc 2.34 and newer), whose threads need `clone3`",
        replace(_USER, refused=(*OLD_DOCKER, Refusal(CLONE3, errno.EPERM))),
        {},
        {"brand_loader": "refuses the system call clone3", **_AND_ALL},
        "`NoThreadError` or `ServerError`: update the engine",
        broken=True,
    ),
    "processes": Rehearsal(
        "at most 12 processes and threads",
        replace(_USER, processes=12, variables={"HOME": "/", "OPENBLAS_NUM_THREADS": "1"}),
        {"processes": "too few, and how many", "cache": _NOWHERE},
        {"brand_loader": "no more threads or processes can be started here", **_AND_ALL},
        "`NoThreadError` or `ServerError`: raise the limit",
        broken=True,
    ),
    "memory": Rehearsal(
        "512 MB of memory",
        replace(_USER, memory=512 << 20, cache_mode=0o777),
        {"cache": _NOWHERE},
    ),
    "no shm": Rehearsal(
        "neither `/dev/shm` nor `/proc`",
        replace(_USER, shm="", proc=""),
        {
            "/proc": "free memory and limits not known",
            "/dev/shm": _SHM,
            "DataLoader": _SHM,
            "file system": "name",
            "cache": _NOWHERE,
        },
        {"data_loader": "FileNotFoundError"},
        "`BrandLoader` trains; a `DataLoader` with workers raises Python's `FileNotFoundError`",
    ),
    "read-only shm": Rehearsal(
        "a read-only `/dev/shm`",
        replace(_USER, shm="ro"),
        {"/dev/shm": _SHM, "DataLoader": _SHM, "cache": _NOWHERE},
        {"data_loader": "Read-only file system"},
        "`BrandLoader` trains; a `DataLoader` with workers raises Python's `OSError`",
    ),
    "tmp elsewhere": Rehearsal(
        "a read-only `/tmp` and a `TMPDIR` elsewhere, a home that does not exist, IPv6 only",
        replace(
            _USER,
            tmp="ro",
            network="IPv6",
            variables={"HOME": "/nonexistent", "TMPDIR": "/inside/scratch"},
            without=("USER", "LOGNAME"),
        ),
        {"cache": _NOWHERE},
    ),
    "no tmp": Rehearsal(
        "no folder that can be written, not even `/tmp`",
        replace(_USER, tmp="", read_only=True, data="ro"),
        {"train": "PyTorch cannot be imported", "TMPDIR": "none", "pack": "nothing was tried", "cache": _NOWHERE},
        {"brand_loader": "No usable temporary directory"},
        "PyTorch cannot be imported: set `TMPDIR`",
        broken=True,
    ),
    "unreadable": Rehearsal(
        "a data set that another user owns and nobody else may read",
        replace(_USER, data_mode=0o700),
        {"opens": "which folder, and `chmod`", "cache": _NOWHERE},
        {"brand_loader": "its owner runs `chmod -R a+rX"},
        "`UnreadableError` names the folder, and `chmod`",
        broken=True,
    ),
}
"""The first two are rehearsed by each `make test`, all by `--rounds 11`."""


def table() -> str:
    """Return the table of the page."""
    rows = ["| environment | a training | `brand doctor` names |", "|---|---|---|"]
    for each in REHEARSALS.values():
        named = "; ".join(f"`{name}`: {said}" for name, said in each.named.items())
        named = named or ("the same, and nothing else" if each.broken else "nothing")
        rows.append(f"| {each.what} | {each.outcome} | {named}{' (exit code 1)' if each.broken else ''} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
