"""How does any process make one chunk of a planned conversion, and publish it by itself?

A process reads the plan once (each of its threads for itself), makes a chunk under a name that no other process has,
and renames it. So two processes that make one chunk publish equal bytes, one after the other, and a process that is
killed leaves nothing but a temporary file. The rows that `seal` needs of the chunk are stored next to the plan
(`KeptChunks`), so that `seal` need not read the chunk again. One machine makes all chunks of a `Task` with `run_task`.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brand.chunker.plan.plan import default_jobs
from brand.chunker.plan.report import OnProgress, StageProgress, TaskReport, silent
from brand.chunker.sources.objects import source_path
from brand.chunker.sources.request import hinted
from brand.chunker.sources.source import FolderSource
from brand.chunker.sources.workers import run_tasks
from brand.chunker.tasks.planning import JOB_NAME, Job, read_decided, shared_work_folder
from brand.chunker.work.chunks import KEPT_NAME, ChunksInFolder, Packer, keep_chunk, make_chunk
from brand.chunker.work.work import check_folder_target, locked, read_claim
from brand.errors import InterruptedConversionError, UsageError
from brand.formats.constants import MANIFEST_NAME, SHARED_PLAN_NAME, WORK_NAME, chunk_name
from brand.formats.manifest import read_manifest
from brand.formats.publish import FolderTarget, storage_errors

MAX_TASKS: Final = 100_000


@dataclass(frozen=True, slots=True)
class PublishedChunk:
    """A chunk under its final name."""

    number: int
    samples: int
    bytes: int
    """Bytes of its samples before compression."""
    found: bool
    """Whether it had been made before."""


def run(job: Job, number: int) -> PublishedChunk:
    """Make chunk `number` and publish it, unless it exists and is whole. Any number of processes and threads may do so.

    Raises:
        SourceError: A file cannot be used, or has changed since the plan was made.
        StorageError: The storage refused a read or a write.
        TargetExistsError: This process has other versions than the plan, or another conversion has the target.
        InterruptedConversionError: The plan is missing: another process has removed or replaced it.
    """
    job.check(number)
    place = Path(job.target)
    manifest = read_manifest(place) if (place / MANIFEST_NAME).exists() else None
    if manifest is not None and manifest.data_set_id == job.data_set_id:  # sealed, by the process that found all chunks
        return PublishedChunk(number, manifest.header.chunk_samples(number), 0, found=True)
    folder = place / WORK_NAME
    if not folder.is_dir():
        raise _gone(job)
    with locked(folder, job.target, lambda: check_folder_target(place), shared=True):
        claim = read_claim(folder)
        if claim is None or claim.data_set_id != job.data_set_id:
            raise _gone(job)
        claim.check_versions(job.target)
        return _make(_thread_worker.get(job, folder), place, folder, number)


@dataclass(frozen=True)
class _Worker:
    """The state of a thread from chunk to chunk."""

    packer: Packer
    source: FolderSource
    skipping: bool


class _ThreadWorker(threading.local):
    """The worker of this thread, for the plan of its last chunk."""

    _last: tuple[tuple[Job, int, int], _Worker] | None = None

    def get(self, job: Job, folder: Path) -> _Worker:
        shared = folder / SHARED_PLAN_NAME
        file = (shared / JOB_NAME).stat()
        which = job, file.st_ino, file.st_mtime_ns  # a plan that was removed and made again has other files to map
        if self._last is None or self._last[0] != which:
            decided = read_decided(shared)
            source = decided.source(shared, source_path(job.source))
            packer = Packer(decided.plan, source, ChunksInFolder(Path(job.target)), shared)
            self._last = which, _Worker(packer, source, decided.asked.get("--on-error skip") is True)
        return self._last[1]


_thread_worker = _ThreadWorker()


def _make(worker: _Worker, place: Path, folder: Path, number: int) -> PublishedChunk:
    plan, kept = worker.packer.plan, folder / KEPT_NAME
    chunk = worker.packer.earlier.find(plan, number)
    if chunk is None:
        temporary = folder / f"{number:08d}-{uuid.uuid4().hex}.tmp"
        try:
            with hinted(worker.source, skipping=worker.skipping):
                chunk = make_chunk(worker.packer, number, temporary)
            with storage_errors(place / chunk_name(number), "cannot write"):
                FolderTarget(place).publish(temporary, chunk_name(number))
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    if not chunk.found or not (kept / str(number)).exists():
        with storage_errors(kept, "cannot write"):
            kept.mkdir(exist_ok=True)
            keep_chunk(kept, plan.data_set_id, number, chunk)
    return PublishedChunk(number, len(chunk.rows), int(chunk.rows["raw_size"].sum(dtype="i8")), chunk.found)


def _gone(job: Job) -> InterruptedConversionError:
    return InterruptedConversionError(
        f"{job.target}: the plan of this conversion is missing or was replaced. Run `brand convert` again"
    )


@dataclass(frozen=True, slots=True)
class Task:
    """Task `number` of `of`, from 0: a run of consecutive chunks. Raises `UsageError` if there is no such task."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.of <= MAX_TASKS:
            raise UsageError(f"task {self}: a conversion has 1 to {MAX_TASKS:,} tasks")
        if not 0 <= self.number < self.of:
            raise UsageError(
                f"task {self}: tasks are counted from 0, so they are 0/{self.of} to {self.of - 1}/{self.of}"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Task:
        """Return the task that a user means by `3/8`."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
        if match is None:
            raise UsageError(f"task {text!r}: write number and count, as 0/8 for the first of eight")
        return cls(int(match[1]), int(match[2]))

    def chunks(self, count: int) -> range:
        """Return the chunks of the task in a data set that has `count`; none if there are more tasks than chunks."""
        return range(self.number * count // self.of, (self.number + 1) * count // self.of)


def by_task(numbers: Sequence[int], count: int, tasks: int) -> dict[str, list[int]]:
    """Return the task of each of these chunks of a data set that has `count`. Numbers are sorted; so are tasks."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        task = Task(((number + 1) * tasks - 1) // count, tasks)
        found.setdefault(str(task), []).append(number)
    return found


def missing(place: Path, count: int) -> list[int]:
    """Return the numbers of the missing chunks of a data set that has `count`. Raises OSError."""
    there = set(os.listdir(place / "chunks"))
    return [number for number in range(count) if Path(chunk_name(number)).name not in there]


def run_task(job: Job, part: Task, *, jobs: int | None = None, on_progress: OnProgress = silent) -> TaskReport:
    """Make all chunks of a task in `jobs` processes of this machine. Existing chunks are found, not made again.

    Raises as `run` does, and `InterruptedConversionError` if a process died.
    """
    started, place = time.monotonic(), Path(job.target)
    numbers = part.chunks(job.chunks)
    with shared_work_folder(place) as folder:
        header = read_decided(folder / SHARED_PLAN_NAME).plan.header
        total = sum(header.chunk_samples(number) for number in numbers)
        done = done_bytes = found = 0
        with closing(run_tasks(run, job, numbers, jobs=jobs or default_jobs())) as chunks:
            for _, made in chunks:
                done, done_bytes, found = done + made.samples, done_bytes + made.bytes, found + made.found
                on_progress(StageProgress("pack", done, total, done_bytes, None))
        still = len(missing(place, job.chunks))
    return TaskReport(
        target=job.target,
        task=str(part),
        first=numbers.start,
        chunks=len(numbers),
        chunks_found=found,
        samples=done,
        source_bytes=done_bytes,
        chunks_in_all=job.chunks,
        chunks_missing=still,
        seconds=time.monotonic() - started,
    )
