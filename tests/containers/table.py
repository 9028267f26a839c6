"""The environments that are rehearsed, and what is expected of a training and of `brand doctor` in each."""

from __future__ import annotations

import errno
from dataclasses import replace
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

NAMELESS: Final = {"uid": 12345, "gid": 12345, "named": False}
DOCKER: Final = Spec(variables={"HOME": "/"}, **NAMELESS)

ENVIRONMENTS: Final = {
    "plain": Spec(),
    "docker-19.03": replace(DOCKER, read_only=True, data="ro", refused=(*OLD_DOCKER, Refusal(CLONE3, errno.ENOSYS))),
    "docker-19.03-clone3": replace(
        DOCKER, read_only=True, data="ro", refused=(*OLD_DOCKER, Refusal(CLONE3, errno.EPERM))
    ),
    "pod": Spec(
        uid=10001,
        gid=10001,
        groups=(2000,),
        named=False,
        read_only=True,
        data="ro",
        cache_mode=0o2777,
        variables={"HOME": "/", "XDG_CACHE_HOME": "/tmp/cache"},
        without=("USER", "LOGNAME", "TMPDIR"),
        hostname="pod-7",
    ),
    "fsgroup": Spec(
        uid=10001,
        gid=10001,
        groups=(2000,),
        named=False,
        read_only=True,
        data="ro",
        cache_mode=0o2775,
        variables={"HOME": "/nonexistent"},
        hostname="pod-7",
    ),
    "gvisor": replace(DOCKER, refused=GVISOR, cache_mode=0o777),
    "old-gvisor": replace(DOCKER, refused=OLD_GVISOR, cache_mode=0o777),
    "no-shm": replace(DOCKER, shm=""),
    "ro-shm": replace(DOCKER, shm="ro"),
    "no-home": Spec(without=("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR"), **NAMELESS),
    "no-home-root": Spec(without=("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR"), named=False),
    "nonexistent-home": replace(DOCKER, variables={"HOME": "/nonexistent"}),
    "ro-tmp": replace(DOCKER, tmp="ro", variables={"HOME": "/", "TMPDIR": "/inside/scratch"}, without=()),
    "no-tmp": replace(DOCKER, tmp="", data="ro", read_only=True),
    "no-tmp-tmpdir": replace(
        DOCKER, tmp="", data="ro", read_only=True, variables={"TMPDIR": "/inside/scratch"}, without=()
    ),
    "no-proc": replace(DOCKER, proc=""),
    "hidepid": replace(DOCKER, proc="hidepid=2"),
    "no-cgroup": replace(DOCKER, groups_seen=False),
    "files-256": replace(DOCKER, files=256),
    "files-64": replace(DOCKER, files=64),
    "no-network": replace(DOCKER, network="none"),
    "ipv6": replace(DOCKER, network="IPv6"),
    "hostname": replace(DOCKER, hostname="no-such-host"),
    "bare": Spec(
        proc="hidepid=2",
        network="none",
        hostname="no-such-host",
        groups_seen=False,
        files=256,
        data="ro",
        read_only=True,
        without=("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "TMPDIR"),
        **NAMELESS,
    ),
    "memory-512M": replace(DOCKER, memory=512 << 20),
    "pids-8": replace(DOCKER, processes=8),
    "pids-16": replace(DOCKER, processes=16),
    "pids-24": replace(DOCKER, processes=24),
    "pids-40": replace(DOCKER, processes=40),
    "no-proc-gvisor": replace(DOCKER, proc="", refused=OLD_GVISOR),
    "no-proc-no-shm": replace(DOCKER, proc="", shm=""),
}
