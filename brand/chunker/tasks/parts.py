"""A task of a planned conversion: its chunks, and the function by which one machine makes them all."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brand.chunker.plan.options import default_jobs
from brand.chunker.plan.report import OnProgress, StageProgress, TaskReport, silent
from brand.chunker.sources.workers import run_tasks
from brand.chunker.tasks.job import Job, read_decided
from brand.chunker.tasks.planning import joined
from brand.chunker.tasks.running import run
from brand.errors import UsageError
from brand.formats.constants import SHARED_PLAN_NAME, chunk_name

MAX_PARTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Task:
    """Task `number` of `of`, counted from 0: a run of consecutive chunks.

    Raises `UsageError` if there is no such task.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.of <= MAX_PARTS:
            raise UsageError(f"task {self}: a conversion has 1 to {MAX_PARTS:,} tasks")
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


def by_part(numbers: Sequence[int], count: int, parts: int) -> dict[str, list[int]]:
    """Return the task of each of these chunks of a data set that has `count`. Numbers are sorted; so are tasks."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        part = Task(((number + 1) * parts - 1) // count, parts)
        found.setdefault(str(part), []).append(number)
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
    with joined(place) as folder:
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
        part=str(part),
        first=numbers.start,
        chunks=len(numbers),
        chunks_found=found,
        samples=done,
        source_bytes=done_bytes,
        chunks_in_all=job.chunks,
        chunks_missing=still,
        seconds=time.monotonic() - started,
    )
