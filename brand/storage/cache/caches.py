"""Which caches are in a folder, how much space do they leave, and which one is removed if space is short?

A cache may be removed if no server holds its LOCK. The cache whose server started longest ago is removed first. A
`CacheHome` is the folder of one cache: opened safely, locked by the server that writes, with its small files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import CacheError
from brand.formats import locks
from brand.formats.publish import publish_bytes
from brand.reprs import Reprs
from brand.storage.cache.cachefiles import (
    CACHES_NAME,
    FACTS_NAME,
    HELD_NAME,
    LOCK_NAME,
    MOST_FACTS,
    PARTS_NAME,
    CacheFacts,
    disk_bytes,
    held_bytes,
    is_cache_name,
    pack_held,
    unpack_held,
)
from brand.storage.io.ownfolder import OWN_FILE, check_names, open_given, open_own_file, open_own_folder, refused

SPARE_SHARE: Final = 0.05
SPARE_BYTES: Final = 5 * 10**9
"""This share of a disk, and this many bytes, remain free if the user gives no limit."""


@dataclass(frozen=True, slots=True)
class Cached:
    """One cache in a folder."""

    data_set: str
    facts: CacheFacts | None
    """Identity of the cached data; None if it cannot be read: the next server empties the cache."""
    held: int
    """Number of samples that the cache holds."""
    bytes: int
    """Bytes that the cache takes on the disk."""
    used_s: float
    """Time at which a server last started to write the cache, in seconds since 1970."""
    in_use: bool
    """Whether a server writes the cache at the moment."""


@contextmanager
def opened_caches(folder: str, *, make: bool) -> Iterator[tuple[int, str]]:
    """Yield the descriptor and the path of the folder with all caches. Raises `CacheError`."""
    given = open_given(folder) if make else _open_existing(folder)
    shown = os.path.join(folder, CACHES_NAME)
    try:
        try:
            caches = open_own_folder(CACHES_NAME, given, shown, make=make)
        except FileNotFoundError:
            raise CacheError(f"{folder} holds no cache: there is no folder {CACHES_NAME} in it") from None
    finally:
        os.close(given)
    try:
        yield caches, shown
    finally:
        os.close(caches)


def list_caches(caches: int, shown: str) -> list[Cached]:
    """Return the caches in this folder, by the time of their last use, without those that cannot be opened safely."""
    found = []
    for name in sorted(filter(is_cache_name, os.listdir(caches))):
        with suppress(CacheError, OSError):
            found.append(_look_at(name, caches, shown))
    return sorted(found, key=lambda cached: cached.used_s)


def remove_cache(name: str, caches: int, shown: str) -> bool:
    """Remove a cache. Return False if a server writes it. Raises `CacheError`, OSError."""
    folder = open_own_folder(name, caches, f"{shown}/{name}", make=False)
    try:
        lock = take_lock(folder, f"{shown}/{name}")
        if lock is None:
            return False
        try:
            with suppress(FileNotFoundError):  # first, so that there are never bits without bytes
                os.unlink(HELD_NAME, dir_fd=folder)
            shutil.rmtree(name, dir_fd=caches)
        finally:
            let_go(lock)
        return True
    finally:
        os.close(folder)


def take_lock(folder: int, shown: str) -> int | None:
    """Return a descriptor with a cache's LOCK until `let_go`; None if a server has it. Raises `CacheError`, OSError."""
    while True:
        lock = open_own_file(LOCK_NAME, os.O_RDWR | os.O_CREAT, folder, f"{shown}/{LOCK_NAME}")
        try:
            taken = locks.take(lock, f"{shown}/{LOCK_NAME}")
            if taken and os.fstat(lock).st_nlink:
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        if not taken:
            return None
        # Another process has just removed this cache.


def let_go(lock: int) -> None:
    """Release a LOCK, also in a child process that was forked meanwhile and has inherited the descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def free_bytes(folder: int) -> int:
    """Return the bytes that may be written to the disk of this folder if the user gives no limit. May be negative."""
    disk = os.fstatvfs(folder)
    return int(disk.f_bavail * disk.f_frsize - SPARE_SHARE * disk.f_blocks * disk.f_frsize) - SPARE_BYTES


def make_room(caches: int, shown: str, own: str, limit: int, wanted: int) -> int:
    """Return the bytes that the cache `own` may take, of `limit` bytes for all caches.

    If these are fewer than `wanted`, unused caches of other data sets are removed, the longest unused first. Raises
    OSError.
    """
    others = [cached for cached in list_caches(caches, shown) if cached.data_set != own]
    room = limit - sum(cached.bytes for cached in others)
    for cached in others:
        if room >= wanted:
            break
        with suppress(CacheError):
            if remove_cache(cached.data_set, caches, shown):
                room += cached.bytes
    return max(0, room)


def read_small(name: str, folder: int, shown: str, most: int) -> bytes:
    """Return a file's bytes; none if it is missing, cannot be read, or is larger than `most`. Raises `CacheError`."""
    try:
        descriptor = open_own_file(name, os.O_RDONLY, folder, f"{shown}/{name}")
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file, suppress(OSError):
        data = file.read(most + 1)
        return data if len(data) <= most else b""
    return b""


def _open_existing(folder: str) -> int:
    if not Path(folder).is_dir():
        what = "it is a file, not a folder" if Path(folder).exists() else "there is no such folder"
        raise CacheError(f"{folder}: {what}")
    return open_given(folder)


def _look_at(name: str, caches: int, shown: str) -> Cached:
    shown = f"{shown}/{name}"
    folder = open_own_folder(name, caches, shown, make=False)
    try:
        facts, held, size = CacheFacts.unpack(read_small(FACTS_NAME, folder, shown, MOST_FACTS)), 0, 0
        if facts is not None and facts.samples > 0:
            most = held_bytes(facts.samples)
            held = int(unpack_held(read_small(HELD_NAME, folder, shown, most), facts.samples).sum())
        with suppress(FileNotFoundError):
            parts = open_own_folder(PARTS_NAME, folder, f"{shown}/{PARTS_NAME}", make=False)
            try:
                size = disk_bytes(parts)
            finally:
                os.close(parts)
        used_s, in_use = 0.0, False
        with suppress(FileNotFoundError):
            used_s = os.stat(LOCK_NAME, dir_fd=folder, follow_symlinks=False).st_mtime
            lock = take_lock(folder, shown)
            in_use = lock is None
            if lock is not None:
                let_go(lock)
        return Cached(name, facts, held, size, used_s, in_use)
    finally:
        os.close(folder)


class CacheHome(Reprs, shows="shown lock"):
    """The folder, below `folder`, of the cache that `facts` describe.

    Raises `CacheError` if the folder cannot be made, or if other users could change its contents. Methods raise
    `CacheError`, OSError.
    """

    def __init__(self, folder: str, facts: CacheFacts) -> None:
        self._facts = facts
        with ExitStack() as stack:
            self._caches, self._all_shown = stack.enter_context(opened_caches(folder, make=True))
            self.shown = f"{self._all_shown}/{facts.data_set}"
            """Path of the folder, for messages."""
            self._folder = open_own_folder(facts.data_set, self._caches, self.shown)
            stack.callback(os.close, self._folder)
            self.parts = open_own_folder(PARTS_NAME, self._folder, self.parts_shown)
            """Descriptor of the folder with the parts."""
            stack.callback(os.close, self.parts)
            check_names(self._folder, self.shown)
            check_names(self.parts, self.parts_shown)
            try:
                self.lock = take_lock(self._folder, self.shown)
                """Descriptor that holds the lock; None if another server writes the cache."""
                if self.lock is not None:
                    stack.callback(let_go, self.lock)
                    os.utime(self.lock)
            except OSError as error:
                raise refused(self.shown, error) from error
            self._closing = stack.pop_all()

    @property
    def parts_shown(self) -> str:
        """Path of the folder with the part files, for messages."""
        return f"{self.shown}/{PARTS_NAME}"

    def read_held(self) -> NDArray[np.bool_] | None:
        """Return which samples the files list as held; None if the files belong to other data, or are damaged."""
        samples = self._facts.samples
        if CacheFacts.unpack(read_small(FACTS_NAME, self._folder, self.shown, MOST_FACTS)) != self._facts:
            return None
        return unpack_held(read_small(HELD_NAME, self._folder, self.shown, held_bytes(samples)), samples)

    def publish_held(self, held: NDArray[np.bool_]) -> None:
        """Write which samples are held. The file is on the device when this returns."""
        publish_bytes(self._path(HELD_NAME), pack_held(held), OWN_FILE)

    def remove_held(self) -> None:
        """Remove the file that lists the held samples. The removal is on the device when this returns."""
        with suppress(FileNotFoundError):
            os.unlink(HELD_NAME, dir_fd=self._folder)
        os.fsync(self._folder)

    def publish_facts(self) -> None:
        publish_bytes(self._path(FACTS_NAME), self._facts.pack(), OWN_FILE)

    def find_room(self, limit: int | None, wanted: int) -> int:
        """Return the number of bytes that this cache may take. Unused caches are removed until it is at least `wanted`.

        `limit`: bytes that all caches may take together; None: the free space.
        """
        if limit is None:
            cached = list_caches(self._caches, self._all_shown)
            limit = max(0, sum(each.bytes for each in cached) + free_bytes(self._caches))
        return make_room(self._caches, self._all_shown, self._facts.data_set, limit, min(limit, wanted))

    def close(self) -> None:
        """Release the lock and close the descriptors."""
        self._closing.close()

    def _path(self, name: str) -> Path:
        return Path(f"/proc/self/fd/{self._folder}/{name}")
