"""Which cache folders does a server use? The user names them; profiles of the disks tell whether they are faster."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from brand.errors import CacheError, UsageError
from brand.node.decide.cache.caching import CacheStart, FolderStart
from brand.node.decide.state.choosing import Placement
from brand.node.setup.choose import choose_whole_unit
from brand.node.setup.memory import SIZE, check_unit, parse_size
from brand.orders.order import MAX_EPOCH
from brand.printable import printable
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.vectored import DirectFiles, LocalFiles, VectorReader
from brand.storage.profile.profile import bandwidth, load_profile, stripe_bytes
from brand.stores.url import is_url

OFF: Final = "off"
"""The state of a folder that is slower than the storage."""
READS_ONLY: Final = "reads only"
"""The state of a folder that another server writes."""
MOST_FOLDERS: Final = 16
"""The most cache folders of a server."""

_SIZED: Final = re.compile(r"(.+):(\d+(?:\.\d+)?\s*[A-Za-z]*)")

_DISK_ERRORS: Final = (
    *(errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO),
    *(errno.ENXIO, errno.ENODEV, errno.ENOTCONN, errno.ESTALE),
)
"""Errors of a disk that is full, read-only, broken or gone."""

log = logging.getLogger("brand.node")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder on a local disk in which a server caches samples of a slower storage.

    Args:
        folder: The folder. It may hold caches of several data sets.
        size: Limit for all of them together: `"100GB"`. None: the free space, less 5 % of the disk
            and 5 GB.
        placement: Samples to cache if the folder cannot hold all of them. `"even"`: a random choice, which is fixed.
            `"next"`: those that the ranks of this node fetch again soonest, chosen again for each epoch.
            `"frequency"`: those that they fetch most often in the whole run. `"auto"`: `"next"` if the ranks of this
            node fetch only some samples of each epoch and no other server sends it any (this node's server is the
            only one); otherwise `"even"`.
        epochs: Number of epochs of the run. `"frequency"` needs it.
    """

    folder: str | os.PathLike[str]
    size: str | int | None = None
    placement: Placement = field(default="auto", kw_only=True)
    epochs: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not os.fspath(self.folder):
            raise UsageError("cache='': name a folder on a local disk")
        if is_url(self.folder):
            raise UsageError(f"cache={self.folder!r}: a cache is a folder on a local disk, not in a store")
        _ = self.limit_bytes
        if self.placement not in get_args(Placement):
            allowed = ", ".join(map(repr, get_args(Placement)))
            raise UsageError(f"placement={self.placement!r} of a cache: give {allowed}")
        if self.epochs is not None and (type(self.epochs) is not int or not 1 <= self.epochs <= MAX_EPOCH + 1):
            raise UsageError(f"epochs={self.epochs!r} of a cache: give 1 to {MAX_EPOCH + 1:,}")
        if self.placement == "frequency" and self.epochs is None:
            why = "it counts the fetches of the whole run"
            raise UsageError(
                f"placement='frequency' of a cache needs epochs=, because {why}: give the number of epochs"
            )

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes; None for the free space. Raises `UsageError`."""
        if self.size is None:
            return None
        if isinstance(self.size, bool) or not isinstance(self.size, str | int):
            raise UsageError(f"size={self.size!r} of a cache: give a text such as '100GB', or bytes")
        check_unit(self.size, f"size={self.size!r} of a cache", SIZE)
        size = parse_size(self.size) if isinstance(self.size, str) else self.size
        if size < 1:
            raise UsageError(f"size={self.size!r} of a cache: at least one byte is needed")
        return size

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a server process: the arguments of the same cache."""
        return asdict(self) | {"folder": os.path.abspath(self.folder)}


FolderOf = str | os.PathLike[str] | Cache
CacheOf = FolderOf | Sequence[FolderOf] | None
"""A folder, a `Cache`, several of them, the fastest one first, or none."""


def as_caches(cache: CacheOf) -> tuple[Cache, ...]:
    """Return the cache folders of a value that a user gives. Raises `UsageError`."""
    given = () if cache is None else (cache,) if isinstance(cache, str | os.PathLike | Cache) else tuple(cache)
    found = tuple(each if isinstance(each, Cache) else Cache(each) for each in given)
    if len(found) > MOST_FOLDERS:
        raise UsageError(f"cache= names {len(found)} folders: at most {MOST_FOLDERS} are possible")
    places = [os.path.realpath(each.folder) for each in found]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UsageError(f"cache= names the folder {printable(place)} twice: name each disk once")
    ways = {(each.placement, each.epochs) for each in found}
    if len(ways) > 1:
        raise UsageError("the folders of cache= are filled together: give all the same placement= and epochs=")
    return found


def parse_cache(text: str) -> Cache:
    """Return the cache of a text such as `/nvme` or `/nvme:100GB`. Raises `UsageError`."""
    match = _SIZED.fullmatch(text)
    return Cache(text) if match is None else Cache(match[1], match[2])


def open_caches(
    caches: Sequence[Cache], data: StoredDataSet, sizes: NDArray[np.uint32]
) -> tuple[list[CacheFolder | None], CacheStart | None]:
    """Open the cache folders of a server. Returns them and the facts for decisions. Raises `CacheError`.

    If the stored profiles show that a folder's disk is slower than the storage, or if the disk cannot be written, that
    folder is None. The facts are None if there are no folders. Raises `UsageError` if two folders are on one disk and
    one of them has no size.
    """
    _check_disks(caches)
    folders: list[CacheFolder | None] = []
    starts: list[FolderStart] = []
    with ExitStack() as stack:
        for cache in caches:
            opened, start = _open(cache, data, sizes)
            folders.append(opened)
            starts.append(start)
            if opened is not None:
                stack.callback(opened.close)
        stack.pop_all()
    if not caches:
        return folders, None
    _warn_of_order([start.folder for start in starts])
    whole = _whole_unit(data, float(sizes.mean())) if any(folders) else 1
    return folders, CacheStart(tuple(starts), sizes, caches[0].placement, caches[0].epochs, whole)


def _check_disks(caches: Sequence[Cache]) -> None:
    """Raise `UsageError` if folders share a disk of which one may take all free space."""
    seen: dict[int, Cache] = {}
    for cache in caches:
        place = Path(os.path.abspath(cache.folder))
        device = next(above for above in (place, *place.parents) if above.exists()).stat().st_dev
        other = seen.setdefault(device, cache)
        if other is not cache and None in (other.limit_bytes, cache.limit_bytes):
            names = " and ".join(printable(os.fspath(each.folder)) for each in (other, cache))
            raise UsageError(f"the cache folders {names} are on one disk: give each a size, or name one of them")


def _open(cache: Cache, data: StoredDataSet, sizes: NDArray[np.uint32]) -> tuple[CacheFolder | None, FolderStart]:
    folder = os.path.abspath(cache.folder)
    off = FolderStart(folder, np.zeros(data.header.samples, np.bool_), 0, OFF)
    try:
        opened = CacheFolder(folder, data, sizes, cache.limit_bytes, moves=cache.placement != "even")
    except CacheError as error:
        if getattr(error.__cause__, "errno", None) not in _DISK_ERRORS:
            raise
        # A training that runs for days should not depend on a disk that it only needs to be faster.
        log.warning("%s. The training runs without a cache", error)
        return None, off
    if why := _of_no_use(folder, data):
        log.warning("the cache folder %s is not used: %s", printable(folder), why)
        opened.close()
        return None, off
    return opened, FolderStart(folder, opened.held.copy(), opened.limit, "" if opened.writes else READS_ONLY)


def _warn_of_order(folders: Sequence[str]) -> None:
    """Log a warning if a folder comes before one whose disk is faster, by the stored profiles."""
    profiles = [load_profile(folder) for folder in folders]
    for first, second, near, far in zip(folders, folders[1:], profiles, profiles[1:], strict=False):
        if near is not None and far is not None:
            size = np.array([float(stripe_bytes(far))])
            slow, fast = float(bandwidth(near, size)[0]), float(bandwidth(far, size)[0])
            if slow < fast:
                log.warning(
                    "the cache folder %s (%s MB/s) comes before %s (%s MB/s), by their profiles: name the faster one "
                    "first",
                    *(printable(first), f"{slow / 1e6:,.0f}", printable(second), f"{fast / 1e6:,.0f}"),
                )


def _whole_unit(data: StoredDataSet, mean_bytes: float) -> int:
    """Return how many neighbouring samples the storage reads faster at once than one by one, by its profile; else 1."""
    profile = load_profile(data.name)
    if profile is None:
        return 1

    def seconds(size: float, reads: int) -> float:
        return size / float(bandwidth(profile, np.array([size / reads]))[0])

    return choose_whole_unit(stripe_bytes(profile), mean_bytes, data.header.chunk_size, seconds)


def cache_reader(folder: CacheFolder, *, page_cache: bool) -> VectorReader:
    """Return a reader of the files of a folder, for one thread."""
    return LocalFiles(folder.part_file) if page_cache else DirectFiles(folder.part_file)


def _of_no_use(folder: str, data: StoredDataSet) -> str:
    """Return why reads from the folder would be slower than from the storage; empty if faster, or if not measured."""
    near, far = load_profile(folder), load_profile(data.name)
    if near is None or far is None or near.device == far.device:
        return ""
    size = np.array([float(stripe_bytes(far))])
    fast, slow = float(bandwidth(near, size)[0]), float(bandwidth(far, size)[0])
    if fast >= slow:
        return ""
    return f"its disk reads {fast / 1e6:,.0f} MB/s, the storage of {printable(data.name)} {slow / 1e6:,.0f} MB/s"
