"""How fast does a storage answer reads, by their size and the number in flight? Measured on the files that are stored
there.

    files below a path -> visits (`ranges`) -> out of the page cache -> read -> bandwidth

A thread announces a read (POSIX_FADV_WILLNEED), reads into memory that it has touched before, and drops the bytes from
the page cache. There is one thread for each read in flight. The clock of a visit starts when all its threads do. The
initial burst that a rate-limited storage allows does not count (`bandwidth`). The figure of a cell is the median of its
visits. Linux only.

A `ProbeSubject` is measured: files below a path, or chunks in a store. Requests and bytes of a store cost money, and
its latency is high. So there, sizes and numbers in flight are larger, each cell is visited once, with few reads, and
the maximum cost is known in advance (`StoreProbe.requests`, `StoreProbe.bytes`).
"""

from __future__ import annotations

import mmap
import os
import random
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Final, Protocol

from brand.errors import BrandError, StorageError, UsageError
from brand.formats.constants import MANIFEST_NAME
from brand.formats.publish import storage_errors
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.device import IN_MEMORY, device_name, mount_of
from brand.storage.io.location import Location
from brand.storage.io.pagecache import CachedFile
from brand.storage.profile.profile import Profile, sequential_of
from brand.storage.profile.ranges import ProfileCell, Range, cells_that_fit, layouts, rounds
from brand.stores.url import parse_url

SIZES: Final = tuple(1 << power for power in range(15, 23))
"""Read sizes: 32 KiB to 4 MiB."""
DEPTHS: Final = (1, 2, 4, 8, 16)
"""Reads in flight."""
SECONDS: Final = 10.0
LARGE: Final = 1 << 20
"""Reads of at least this size are needed to know the sequential bandwidth."""
LEAST_BYTES: Final = 64 << 20
"""Minimum total size of the files: smaller files say nothing about a storage."""

_MOST_FILES: Final = 256
_MOST_ENTRIES: Final = 20_000
_WALK_S: Final = 2.0
_STEADY_S: Final = 0.4
"""A visit of this duration is steady on any storage: a rate limit is applied at least ten times a second."""
_HALVES: Final = (1 / 4, 5 / 8)

Report = Callable[[float, float, int], None]
"""Called after each visit with (seconds elapsed, seconds planned, bytes read so far)."""
STORE_SIZES: Final = tuple(1 << power for power in range(16, 25))
"""Read sizes: 64 KiB to 16 MiB."""
STORE_DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Reads in flight."""
STORE_SECONDS: Final = 60.0
MOST_STORE_BYTES: Final = 128 << 20
"""Maximum bytes that are read at the same time; this bounds the memory."""

_MOST_CHUNKS: Final = 256
_WAVES: Final = ((256 << 10, 8), (1 << 20, 4), (1 << 60, 2))
"""Read sizes, and how many reads up to that size each of the reads in flight makes: small reads need more."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A profile, and facts about its measurement."""

    profile: Profile
    seconds: float
    read_bytes: int
    reads: int
    file_bytes: int
    """Size of the files that were read from. If `read_bytes` is larger, some ranges were read several times."""
    cached_bytes: int
    """Bytes that were left out, because they could not be dropped from the page cache."""


def take_measurement(path: str | Path, *, seconds: float = SECONDS, report: Report | None = None) -> Measurement:
    """Measure the storage below `path`: a data set, a folder with large files, or a large file.

    Takes about `seconds` and some 32 MiB of memory, and drops the files that it reads from the page cache.

    Raises:
        UsageError: The files are too few or too small.
        StorageError: There are no files, they cannot be read, or they are in memory.
        BrandError: This is not Linux.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "preadv"):
        raise BrandError("measuring a storage works on Linux only")
    mount = mount_of(path)
    with storage_errors(Path(path), "cannot read"), ExitStack() as stack:
        files = _Files(path, device_name(mount), stack)
        cells = cells_that_fit(files.sizes, SIZES, DEPTHS)
        check_enough(path, files.sizes, cells)
        if mount.type in IN_MEMORY:
            raise StorageError(
                f"{path} is in memory ({mount.type}), not on a storage device: there is nothing to measure"
            )
        order = rounds(cells)
        visits = layouts(files.sizes, [cell for cells in order for cell in cells], random.Random())
        return run(files, path, (SIZES, DEPTHS), order, visits, seconds, report)


class ProbeSubject(Protocol):
    """The files or chunks that are measured."""

    device: str
    """The storage in plain words."""
    sizes: list[int]
    """Usable bytes of each file."""

    def cold(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the ranges that are not in this machine's memory."""

    def read(self, piece: Range, buffer: memoryview) -> None:
        """Read a range. Any number of threads may call this. Raises OSError."""


def check_enough(where: str | Path, sizes: Sequence[int], cells: Sequence[ProfileCell]) -> None:
    """Raise `UsageError` if files of these sizes are too small to measure a storage."""
    if sum(sizes) < LEAST_BYTES or max((cell.size for cell in cells), default=0) < LARGE:
        raise UsageError(_too_small(where, sizes))


def run(
    subject: ProbeSubject,
    where: str | Path,
    axes: tuple[tuple[int, ...], tuple[int, ...]],
    order: Sequence[Sequence[ProfileCell]],
    visits: Iterator[tuple[ProfileCell, list[Range]]],
    seconds: float,
    report: Report | None,
) -> Measurement:
    """Visit the cells of each round in turn, and make a profile of the figures; `axes`: its read sizes and its depths.

    Raises `StorageError`, OSError.
    """
    sizes, depths = axes
    probe = _Probe(
        subject, max(cell.size * cell.depth for cells in order for cell in cells), seconds, report or _silent
    )
    _visit_all(probe, order, visits)
    table = tuple(tuple(probe.speed(ProfileCell(size, depth)) for size in sizes) for depth in depths)
    if probe.cached > probe.bytes:
        raise StorageError(
            f"{where}: reads were served by the page cache, not by the storage, and the files could not be dropped from"
            " it, because a process holds them in memory: measure when no process uses them, or measure other files of"
            " this storage"
        )
    if not any(speed for row in table for size, speed in zip(sizes, row, strict=True) if size >= LARGE):
        raise StorageError(f"{where}: the storage is too slow to be measured in {seconds:g} s: give it more time")
    profile = Profile(subject.device, sizes, depths, table, sequential_of(sizes, depths, table))
    return Measurement(profile, probe.gone(), probe.bytes, probe.reads, sum(subject.sizes), probe.cached)


def _visit_all(
    probe: _Probe, order: Sequence[Sequence[ProfileCell]], visits: Iterator[tuple[ProfileCell, list[Range]]]
) -> None:
    """Visit half of the cells, and then more of them as long as the time left is enough for each."""
    each = 0.0
    for cells in order:
        began = probe.gone()
        if probe.left() <= min(each, _STEADY_S) * len(cells):
            break
        for todo, (cell, ranges) in zip(range(len(cells), 0, -1), visits, strict=False):
            probe.visit(cell, ranges, probe.left() / todo)
        each = (probe.gone() - began) / len(cells)
    probe.finish()


class _Probe:
    """Buffers and the figures so far."""

    def __init__(self, subject: ProbeSubject, in_flight: int, seconds: float, report: Report) -> None:
        self._subject = subject
        self._seconds, self._report = seconds, report
        self._began = time.perf_counter()
        self._speeds: defaultdict[ProfileCell, list[float]] = defaultdict(list)
        self._memory = memoryview(mmap.mmap(-1, in_flight))
        self._memory[:] = bytes(in_flight)  # so that no page fault counts as time of the storage
        self.bytes = self.reads = self.cached = 0

    def gone(self) -> float:
        return time.perf_counter() - self._began

    def left(self) -> float:
        return self._seconds - self.gone()

    def speed(self, cell: ProfileCell) -> float:
        """Return the figure of a cell: the median of its visits, 0.0 without any."""
        return median(self._speeds[cell]) if cell in self._speeds else 0.0

    def finish(self) -> None:
        now = self.gone()
        self._report(now, now, self.bytes)

    def visit(self, cell: ProfileCell, ranges: Sequence[Range], limit_s: float) -> None:
        """Read cold ranges for about `limit_s` at most. Reads nothing if time is too short for the fewest reads."""
        # Skip the cell if the fewest reads take too long even at the highest speed so far.
        fastest = max((speed for speeds in self._speeds.values() for speed in speeds), default=0.0)
        if fastest and cell.size * cell.least > fastest * self.left():
            return
        cold = self._subject.cold(ranges)
        self.cached += sum(piece.size for piece in ranges) - sum(piece.size for piece in cold)
        if len(cold) < cell.least:
            return
        done = self._read_all(cell, cold, limit_s)
        self.bytes += cell.size * len(done)
        self.reads += len(done)
        self._speeds[cell].append(bandwidth(done, cell.size))
        self._report(self.gone(), self._seconds, self.bytes)

    def _read_all(self, cell: ProfileCell, ranges: Sequence[Range], limit_s: float) -> list[float]:
        """Read with `cell.depth` threads. Return when each read was done, in seconds since all threads started."""
        todo = deque(ranges)
        started = 0.0
        barrier = Barrier(cell.depth, action=lambda: begin(time.perf_counter()))

        def begin(now: float) -> None:
            nonlocal started
            started = now

        def work(number: int) -> list[float]:
            buffer = self._memory[number * cell.size : (number + 1) * cell.size]
            done: list[float] = []
            barrier.wait()
            while len(done) * cell.depth < cell.least or time.perf_counter() - started < limit_s:
                try:
                    piece = todo.popleft()
                except IndexError:
                    break
                self._subject.read(piece, buffer)
                done.append(time.perf_counter() - started)
            return done

        with ThreadPoolExecutor(cell.depth) as threads:
            try:
                return sorted(moment for done in threads.map(work, range(cell.depth)) for moment in done)
            finally:
                todo.clear()  # so that the other threads end soon after an error or Ctrl-C


def bandwidth(done: Sequence[float], size: int) -> float:
    """Return the bytes/s of a visit from the times (s) at which its reads of `size` bytes were done, rising. Pure.

    A rate-limited storage allows an initial burst, and then a step at regular intervals. So the first quarter of the
    time does not count, and the rest is halved. The reads are counted from the one after the longest pause of the first
    half to the one after the longest pause of the second half: these are whole steps. If the first half has no read,
    all reads and all the time count.
    """
    begin, middle = (bisect_left(done, share * done[-1]) for share in _HALVES)
    if begin == middle:
        return size * len(done) / done[-1]
    pauses = [moment - before for before, moment in zip([0.0, *done], done, strict=False)]
    first = max(range(begin, middle), key=pauses.__getitem__)
    last = max(range(middle, len(done)), key=pauses.__getitem__)
    return size * (last - first) / (done[last] - done[first])


class _Files:
    """A `ProbeSubject`: the largest files below a path. `stack` closes them."""

    def __init__(self, path: str | Path, device: str, stack: ExitStack) -> None:
        files = list(_open_files(Path(path), stack))
        self.device, self.sizes = device, [size for _, size in files]
        self._descriptors = [descriptor for descriptor, _ in files]
        self._cached = [CachedFile(descriptor) for descriptor in self._descriptors]

    def cold(self, ranges: Sequence[Range]) -> list[Range]:
        """See `ProbeSubject`. The files are dropped from the page cache first."""
        for file in {piece.file for piece in ranges}:
            self._cached[file].drop()
        # Pages that are not yet on the storage can be dropped only after a flush.
        for file in {piece.file for piece in ranges if self._is_cached(piece)}:
            self._cached[file].drop_written()
        return [piece for piece in ranges if not self._is_cached(piece)]

    def read(self, piece: Range, buffer: memoryview) -> None:
        descriptor, offset = self._descriptors[piece.file], piece.offset
        os.posix_fadvise(descriptor, offset, len(buffer), os.POSIX_FADV_WILLNEED)
        done = 0
        while done < len(buffer):
            count = os.preadv(descriptor, (buffer[done:],), offset + done)
            if count == 0:
                raise StorageError("a file became shorter while it was read: measure files that are not in use")
            done += count
        os.posix_fadvise(descriptor, offset, len(buffer), os.POSIX_FADV_DONTNEED)

    def _is_cached(self, piece: Range) -> bool:
        return bool(self._cached[piece.file].holds(piece.offset, piece.size))


def _open_files(path: Path, stack: ExitStack) -> Iterator[tuple[int, int]]:
    """Yield descriptor and usable size of the largest files below `path`; if `path` is a data set, of its chunks."""
    found = [(path.stat().st_size, path)] if path.is_file() else list(_walk(path))
    # Files of equal size are chosen at random.
    random.shuffle(found)
    for _, file in sorted(found, key=lambda item: -item[0])[:_MOST_FILES]:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        facts = os.fstat(descriptor)
        # Holes are not read from storage: only the bytes before the first hole count.
        sparse = facts.st_blocks * 512 < facts.st_size
        yield descriptor, os.lseek(descriptor, 0, os.SEEK_HOLE) if sparse else facts.st_size


def _walk(path: Path) -> Iterator[tuple[int, Path]]:
    top = path / "chunks" if (path / MANIFEST_NAME).is_file() else path
    storage, end, seen = top.stat().st_dev, time.perf_counter() + _WALK_S, 0
    folders = [top]
    while folders:
        folder = folders.pop()
        if folder != top and not os.access(folder, os.R_OK | os.X_OK):  # such as lost+found
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > _MOST_ENTRIES or time.perf_counter() > end:
                    return
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
                    facts = entry.stat(follow_symlinks=False)
                    if facts.st_dev == storage and facts.st_size:
                        yield facts.st_size, Path(entry.path)


def _too_small(path: str | Path, sizes: Sequence[int]) -> str:
    most = max(sizes, default=0)
    return (
        f"{path}: {sum(sizes) / 1e6:,.1f} MB in files, the largest of {most / 1e6:,.1f} MB, are too small to measure a"
        f" storage: {LEAST_BYTES >> 20} MiB in files of some MiB are needed, and a few GiB are better. Name a"
        " larger data set or file on the same storage"
    )


def _silent(*_: float) -> None:
    """Report nothing."""


class StoreProbe(Reprs, shows="_url requests bytes"):
    """The measurement of the store that holds a data set. The constructor reads the index only.

    Raises `UsageError` if the data set is too small, `FormatError`.
    """

    def __init__(self, location: Location) -> None:
        self._url = location.name
        sizes = StoredDataSet(location).chunk_rows["file_size"].tolist()
        chunks = sorted(random.sample(range(len(sizes)), min(_MOST_CHUNKS, len(sizes))))
        self._subject = _StoreSubject(location, chunks, [sizes[number] for number in chunks])
        cells = cells_that_fit(self._subject.sizes, STORE_SIZES, STORE_DEPTHS, MOST_STORE_BYTES)
        check_enough(self._url, self._subject.sizes, cells)
        self._order = rounds(cells, 1)
        self.requests = sum(map(_store_reads_of, cells))
        """Maximum number of requests."""
        self.bytes = sum(cell.size * _store_reads_of(cell) for cell in cells)
        """Maximum number of bytes read."""

    def measure(self, *, seconds: float = STORE_SECONDS, report: Report | None = None) -> Measurement:
        """Measure, for about `seconds` at most. Raises `StorageError`, `UsageError`."""
        cells = [cell for some in self._order for cell in some]
        visits = layouts(self._subject.sizes, cells, random.Random(), _store_reads_of)
        try:
            return run(self._subject, self._url, (STORE_SIZES, STORE_DEPTHS), self._order, visits, seconds, report)
        except BrandError:  # some of Brand's errors are OSErrors, too
            raise
        except OSError as error:
            raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error


class _StoreSubject:
    """A `ProbeSubject`: chunks in a store."""

    def __init__(self, location: Location, chunks: Sequence[int], sizes: list[int]) -> None:
        self.device, self.sizes = parse_url(location.name).root, sizes
        self._location, self._chunks = location, chunks

    def cold(self, ranges: Sequence[Range]) -> list[Range]:
        """See `ProbeSubject`. This machine caches nothing of a store in memory."""
        return list(ranges)

    def read(self, piece: Range, buffer: memoryview) -> None:
        self._location.reader().read_into([(self._chunks[piece.file], piece.offset, buffer)])


def _store_reads_of(cell: ProfileCell) -> int:
    return cell.depth * next(waves for size, waves in _WAVES if cell.size <= size)
