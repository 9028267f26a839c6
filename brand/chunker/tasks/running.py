"""How does any process make one chunk of a planned conversion, and publish it by itself?

A process reads the plan once (each of its threads for itself), makes a chunk under a name that no other process has,
and renames it. So two processes that make one chunk publish equal bytes, one after the other, and a process that is
killed leaves nothing but a temporary file. The rows that `seal` needs of the chunk are stored next to the plan, so that
`seal` need not read the chunk again (`kept`).
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from brand.chunker.sources.request import hinted
from brand.chunker.sources.source import FolderSource
from brand.chunker.tasks.job import JOB_NAME, Job, read_decided
from brand.chunker.work.chunks import ChunksInFolder, Packer, make_chunk
from brand.chunker.work.claim import read_claim
from brand.chunker.work.folder_work import check_folder_target
from brand.chunker.work.kept import KEPT_NAME, keep_chunk
from brand.chunker.work.work import locked
from brand.errors import InterruptedConversionError
from brand.formats.constants import MANIFEST_NAME, SHARED_PLAN_NAME, WORK_NAME, chunk_name
from brand.formats.manifest import read_manifest
from brand.formats.publish import FolderTarget, storage_errors

_here = threading.local()


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
    if _is_sealed(job, place):  # by the process that found all chunks
        return PublishedChunk(number, read_manifest(place).header.chunk_samples(number), 0, found=True)
    folder = place / WORK_NAME
    if not folder.is_dir():
        raise _gone(job)
    with locked(folder, job.target, lambda: check_folder_target(place), shared=True):
        claim = read_claim(folder)
        if claim is None or claim.data_set_id != job.data_set_id:
            raise _gone(job)
        claim.check_versions(job.target)
        return _make(_worker(job, folder), place, folder, number)


@dataclass(frozen=True)
class _Worker:
    """The state of a thread from chunk to chunk."""

    packer: Packer
    source: FolderSource
    skipping: bool


def _worker(job: Job, folder: Path) -> _Worker:
    shared = folder / SHARED_PLAN_NAME
    file = (shared / JOB_NAME).stat()
    which = job, file.st_ino, file.st_mtime_ns  # a plan that was removed and made again has other files to map
    known: tuple[tuple[Job, int, int], _Worker] | None = getattr(_here, "known", None)
    if known is not None and known[0] == which:
        return known[1]
    decided = read_decided(shared)
    source = decided.source(shared, Path(job.source))
    packer = Packer(decided.plan, source, ChunksInFolder(Path(job.target)), shared)
    worker = _Worker(packer, source, decided.asked.get("--on-error skip") is True)
    _here.known = which, worker
    return worker


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


def _is_sealed(job: Job, place: Path) -> bool:
    return (place / MANIFEST_NAME).exists() and read_manifest(place).data_set_id == job.data_set_id


def _gone(job: Job) -> InterruptedConversionError:
    return InterruptedConversionError(
        f"{job.target}: the plan of this conversion is missing or was replaced. Run `brand convert` again"
    )
