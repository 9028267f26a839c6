"""On which storage device is a path, and what is its name?

    path -> id of its mount (/proc/self/fdinfo) -> its line of /proc/self/mountinfo -> file system and source -> name

The name is the same after a reboot, and for every folder, bind mount and subvolume of the storage: `ext4 on /dev/sda1`,
`nfs4 on server:/export`. If a source is not unique (`overlay`, a virtiofs tag), its mount point is added. The functions
that read the lines are pure (`parse_mounts`, `find_mount`, `device_name`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from brand.errors import BrandError
from brand.formats.publish import storage_errors

IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs"})
"""File systems without storage below them."""

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MOUNT_ID: Final = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


class Mount(NamedTuple):
    """One mount, as a line of mountinfo describes it."""

    number: int
    root: str
    """The folder of the file system that is mounted: not `/` for a bind mount or a subvolume."""
    point: str
    """The mount point."""
    type: str
    source: str


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a `mountinfo` file (proc(5)), in its order. Lines that are not mounts are left out. Pure."""
    found = []
    for line in text.split("\n"):
        left, _, right = line.partition(" - ")
        first, last = left.split(" "), right.split(" ")
        if len(first) >= 6 and len(last) >= 2 and first[0].isdecimal() and first[0].isascii():
            names = (_plain(name) for name in (first[3], first[4], last[0], last[1]))
            found.append(Mount(int(first[0]), *names))
    return found


def find_mount(mounts: Sequence[Mount], path: str, number: int | None = None) -> Mount | None:
    """Return the mount with this number; if the number is unknown, the deepest mount above `path`.

    If several are equally deep, it is the last one. `path` is absolute and without links. Pure.
    """
    named = [mount for mount in mounts if mount.number == number]
    above = named or [m for m in mounts if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def device_name(mount: Mount) -> str:
    """Return the name of the storage, the same for all its mounts. Pure."""
    names_it = "/" in mount.source or ":" in mount.source
    return f"{mount.type} on {mount.source}" + ("" if names_it else f" at {mount.point}")


def mount_of(path: str | Path) -> Mount:
    """Return the mount of a file or folder. Raises `StorageError` if the path does not exist, `BrandError`."""
    with storage_errors(Path(path), "cannot access"):
        real = os.path.realpath(path, strict=True)
    try:
        mounts = parse_mounts(_text("/proc/self/mountinfo"))
    except OSError:
        raise BrandError("the storage device of a path is known on Linux only, from /proc/self/mountinfo") from None
    mount = find_mount(mounts, real, _mount_number(real))
    if mount is None:
        raise BrandError(f"{path}: /proc/self/mountinfo does not tell on which storage device this path is")
    return mount


def _mount_number(path: str) -> int | None:
    """Return the mount's id from the kernel. It is right even if one mount hides another."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            match = _MOUNT_ID.search(_text(f"/proc/self/fdinfo/{descriptor}"))
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return int(match[1]) if match else None


def _text(path: str) -> str:
    """Return the text of a file of /proc. Names in it may hold bytes that are not UTF-8."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _plain(name: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), name)
