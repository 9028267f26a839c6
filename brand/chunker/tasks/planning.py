"""How do several machines agree on one plan, and how do they keep all other conversions out?

The first machine lists the source, decides, and publishes the *shared plan* (`job`): a folder that it makes under a
name of its own and renames. A rename onto a folder with contents fails, so the first plan is final, even if two
machines make one at the same time. All others load it: they neither list the source nor decode it again. Each compares
its options, the versions of Brand and zstandard, and the list of files with those of the plan.

Two locks in the work folder save work and report conflicts early. Nothing depends on them, because some cluster file
systems have locks that hold for one machine only.

    lock       shared by processes that make chunks of one plan; another conversion, or `seal`, takes it exclusively
    planning   held by the machine that makes the plan; the others wait
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from brand.chunker.plan.report import OnProgress, StageProgress
from brand.chunker.sources.probe import decide
from brand.chunker.sources.request import FolderRequest, find, hinted
from brand.chunker.tasks.job import JOB_NAME, Job, JobDecisions, pack_decided, read_decided
from brand.chunker.work.claim import CLAIM_NAME, Claim, check_claim, read_claim
from brand.chunker.work.folder_work import FolderWork, check_folder_target
from brand.chunker.work.work import locked
from brand.errors import InterruptedConversionError, TargetExistsError, UsageError
from brand.formats.constants import MANIFEST_NAME, SHARED_PLAN_NAME, WORK_NAME
from brand.formats.publish import file_digest, storage_errors, storage_reason, sync_folder

PLAN_WAIT_S: Final = 6 * 3600.0
"""Seconds that a machine waits for another one to list, and perhaps to decode, the source."""
_POLL_S: Final = 0.2


def plan(request: FolderRequest, place: Path, parts: int, on_progress: OnProgress) -> Job:
    """Make or load the plan of a conversion into the folder `place`. `parts` is for messages of `seal`.

    Raises:
        TargetExistsError: The target is taken, by a data set, by another conversion, or by one with other options or
            versions, or of a source that has changed since.
        SourceError: A file cannot be used.
        StorageError: The storage refused a read or a write.
        InterruptedConversionError: Another machine has been making the plan for six hours.
    """
    with joined(place) as folder, storage_errors(place, "cannot write"):
        if not is_planned(folder):
            with _alone(folder / "planning", place, on_progress):
                if not is_planned(folder):
                    _make(request, place, folder, parts, on_progress)
        return _load(request, place, folder)


@contextmanager
def joined(place: Path) -> Iterator[Path]:
    """Open the work folder of a target, shared with all processes of one plan. It is made if it is missing.

    Raises `TargetExistsError`, `StorageError`.
    """
    _check_free(place)
    folder = place / WORK_NAME
    with storage_errors(place, "cannot write the data set to"):
        folder.mkdir(parents=True, exist_ok=True)
        (place / "chunks").mkdir(exist_ok=True)
    with locked(folder, str(place), lambda: _check_free(place), shared=True):
        _check_free(place)  # it may have been sealed, and its work folder made again by this process
        yield folder


def is_planned(folder: Path) -> bool:
    """Return whether a work folder has a shared plan."""
    # Listed, because a network file system may cache that a name is missing.
    return SHARED_PLAN_NAME in os.listdir(folder)


def _check_free(place: Path) -> None:
    check_folder_target(place)
    if (place / MANIFEST_NAME).exists():
        raise TargetExistsError(f"{place} is a finished data set already. `brand seal {place}` removes its work folder")


def _make(request: FolderRequest, place: Path, folder: Path, parts: int, on_progress: OnProgress) -> None:
    """Make a plan and publish it, unless there is one by then."""
    work, scratch = FolderWork(place, folder), folder / f"planning-{uuid.uuid4().hex}"
    scratch.mkdir()
    try:
        found = find(request, scratch, work, on_progress)
        source = found.source
        with hinted(source, skipping=request.options.skip_errors):
            decided, _ = decide(source, request.kind, found.folder.classes, request.options, scratch / "order.bin")
        claim = Claim(decided.data_set_id, source.fingerprint(times=True))
        check_claim(folder, claim, str(place))
        work.check_room(decided.stored_bytes)
        told = JobDecisions(
            asked=_asked(request),
            parts=parts,
            plan=decided,
            entries=source.listing.entries_name,
            columns=source.listing.columns,
            with_text=source.with_text,
            problems=found.problems,
            notes=found.notes,
            companions=tuple(found.write_companions(scratch)),
        )
        (scratch / CLAIM_NAME).write_bytes(claim.pack())
        (scratch / JOB_NAME).write_bytes(pack_decided(told))
        _publish(scratch, folder / SHARED_PLAN_NAME)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, final: Path) -> None:
    """Rename a folder to its final name, with its files on the device.

    If another machine was faster, its folder wins.
    """
    for file in scratch.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(scratch)
    try:
        scratch.rename(final)
    except OSError:  # also if another machine was faster: a folder with contents cannot be replaced
        if not is_planned(final.parent):
            raise
    sync_folder(final.parent)


def _load(request: FolderRequest, place: Path, folder: Path) -> Job:
    claim, shared = read_claim(folder), folder / SHARED_PLAN_NAME
    decided = read_decided(shared)
    if claim is not None:
        claim.check_versions(str(place))
    asked = _asked(request)
    other = [name for name in decided.asked if asked.get(name) != decided.asked[name]]
    if other:
        told = " and ".join(
            f"{name} is {_said(asked.get(name))}, and was {_said(decided.asked[name])}" for name in other
        )
        raise TargetExistsError(
            f"{place} holds an unfinished conversion with other options: {told}. Give all tasks the same options, or"
            f" remove {place} to start again"
        )
    source = decided.source(shared, request.root)
    if claim is None or claim != Claim(decided.plan.data_set_id, source.fingerprint(times=True)):
        raise TargetExistsError(
            f"{place} holds an unfinished conversion of another source, or its transcripts have changed since."
            f" Remove {place} to start again"
        )
    header = decided.plan.header
    return Job(os.path.abspath(request.root), os.path.abspath(place), decided.plan.data_set_id, header.chunks)


def _asked(request: FolderRequest) -> dict[str, Any]:
    """Return the options that determine the written bytes, by their names in the command."""
    options, table = request.options, request.table
    try:
        texts = None if table is None else file_digest(table)[1]
    except OSError as error:
        raise UsageError(f"{table}: the table of transcripts cannot be read: {storage_reason(error)}") from error
    return {
        "the kind of source": request.kind,
        "--seed": options.seed,
        "--chunk-size": options.chunk_size,
        "--chunk-bytes": options.chunk_bytes,
        "--compression": options.compression,
        "--no-labels": not options.labels,
        "--on-error skip": options.skip_errors,
        "--validate": options.decode_all,
        "--follow-links": options.follow_links,
        "--transcripts": texts,
        "--columns": ",".join(request.columns),
    }


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "given" if value else "not given"
    return "not given" if value is None or value == "" else str(value)


@contextmanager
def _alone(path: Path, place: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold a lock that is free after a plan has been made, or after the process that made it has ended."""
    started = time.monotonic()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited_s = time.monotonic() - started
                if waited_s > PLAN_WAIT_S:
                    raise InterruptedConversionError(
                        f"{place}: another machine has been planning this conversion for {waited_s / 3600:.0f} hours."
                        " Run this task again when it has ended"
                    ) from None
                on_progress(StageProgress("wait", int(waited_s), None, 0, None))
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
