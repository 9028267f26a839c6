"""The folder of one cache: opened safely, locked by the server that writes, with `cache.json` and `held.bits`."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brand.formats.publish import publish_bytes
from brand.storage.cache.cachelayout import (
    FACTS_NAME,
    HELD_NAME,
    MOST_FACTS,
    PARTS_NAME,
    CacheFacts,
    held_bytes,
    pack_held,
    unpack_held,
)
from brand.storage.cache.cacheroom import (
    free_bytes,
    let_go,
    list_caches,
    make_room,
    opened_caches,
    read_small,
    take_lock,
)
from brand.storage.io.ownfolder import check_names, open_own_folder, refused


class CacheHome:
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
                raise refused(self.shown, error) from None
            self._closing = stack.pop_all()

    def __repr__(self) -> str:
        return f"CacheHome({self.shown}, {'locked' if self.lock is not None else 'read only'})"

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
        publish_bytes(self._path(HELD_NAME), pack_held(held))

    def remove_held(self) -> None:
        """Remove the file that lists the held samples. The removal is on the device when this returns."""
        with suppress(FileNotFoundError):
            os.unlink(HELD_NAME, dir_fd=self._folder)
        os.fsync(self._folder)

    def publish_facts(self) -> None:
        """Write the identity of the cached data."""
        publish_bytes(self._path(FACTS_NAME), self._facts.pack())

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
