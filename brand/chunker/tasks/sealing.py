"""How does a conversion in tasks become a data set, from the chunks alone?

`seal` reads the front of each chunk: it must be that of this plan, at this place, and whole. The chunk's table becomes
a row of the index; its fixed fields become columns, from the file that the process that made the chunk has stored
(`KeptChunks`), or else from the chunk itself. So no results are sent between machines, and the process that started the
tasks may have ended. Then `seal` writes the companions that the plan holds, the index, and the manifest, last of all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from brand.chunker.plan.report import OnProgress, Report, StageProgress, silent
from brand.chunker.tasks.planning import JobDecisions, is_planned, read_decided
from brand.chunker.tasks.running import by_task, missing
from brand.chunker.work.chunks import KEPT_NAME, KeptChunks, Written
from brand.chunker.work.work import FolderWork, locked
from brand.errors import ForeignFileError, FormatError, MissingChunksError, MissingFileError, NotADataSetError, counted
from brand.formats.chunk import read_front
from brand.formats.constants import MANIFEST_NAME, SHARED_PLAN_NAME, WORK_NAME, chunk_name
from brand.formats.contents import read_facts
from brand.formats.index import IndexBuilder, companions_in
from brand.formats.manifest import Manifest, read_manifest
from brand.formats.publish import storage_errors

LOCK_WAIT_S: Final = 30.0
"""Seconds to wait for a process that was given up and may still be making a chunk."""
_READERS: Final = 8
_AT_ONCE: Final = 256
_SHOWN: Final = 8
"""The most tasks, and the most damaged chunks, that a message names."""


def seal(target: str | Path, on_progress: OnProgress = silent) -> Report:
    """Finish a conversion in tasks whose chunks all exist. Sealing again changes nothing.

    Raises:
        MissingChunksError: Chunks are missing, damaged, or of another data set. Nothing is changed then; the message
            names the tasks that make them.
        NotADataSetError: There is no conversion in tasks here.
        TargetExistsError: Tasks are still at work, or another conversion is.
        StorageError: The storage refused a read or a write.
    """
    started, place = time.monotonic(), Path(target)
    folder = place / WORK_NAME
    if not folder.is_dir():
        return _report(place, read_manifest(place), started)
    _check_names(place, folder)
    with locked(folder, str(place), lambda: None, wait_s=LOCK_WAIT_S), storage_errors(place, "cannot write"):
        work = FolderWork(place, folder)
        if (place / MANIFEST_NAME).exists():  # a seal that was killed while it tidied up
            work.tidy()
            return _report(place, read_manifest(place), started)
        decided = read_decided(folder / SHARED_PLAN_NAME)
        builder = IndexBuilder(folder / "built", decided.plan.header, place)
        _add_chunks(place, folder, decided, builder, on_progress)
        for name in decided.companions:
            if (folder / SHARED_PLAN_NAME / name).exists():  # a seal that was killed has published it
                work.publish_companion(folder / SHARED_PLAN_NAME / name, name)
        companions = companions_in(place)
        for name in decided.companions:
            if name not in companions:
                raise MissingFileError("the file that belongs to the data set is missing", path=place / name)
        manifest = work.seal(decided.plan, builder, companions, decided.noticed)
    return _report(place, manifest, started, decided)


def _check_names(place: Path, folder: Path) -> None:
    """Raise an error if a chunk is missing, before anything is locked, read or written."""
    if (place / MANIFEST_NAME).exists():
        return
    if not is_planned(folder):
        raise NotADataSetError(
            "this conversion was not planned in tasks: run the same `brand convert` command again to continue it",
            path=place,
        )
    decided = read_decided(folder / SHARED_PLAN_NAME)
    with storage_errors(place, "cannot read"):
        lost = missing(place, decided.plan.header.chunks)
    if lost:
        raise _unfinished(place, decided, lost, [])


def _add_chunks(
    place: Path, folder: Path, decided: JobDecisions, builder: IndexBuilder, on_progress: OnProgress
) -> None:
    header, lost, reasons = decided.plan.header, list[int](), list[str]()
    done = done_bytes = 0
    for number, chunk in _read_all(place, folder, decided):
        if isinstance(chunk, str):
            lost.append(number)
            reasons.append(chunk)
            continue
        if not lost:  # else there will be no index: only look for further bad chunks
            builder.add(number, chunk.rows, chunk.checksum, chunk.columns, chunk.counts)
        done += len(chunk.rows)
        done_bytes += int(chunk.rows["size"].sum(dtype=np.int64))
        on_progress(StageProgress("seal", done, header.samples, done_bytes, None))
    if lost:
        raise _unfinished(place, decided, lost, reasons)


def _read_all(place: Path, folder: Path, decided: JobDecisions) -> Iterator[tuple[int, Written | str]]:
    """Yield the facts of each chunk for the index, in order; for one that must be made again, the reason.

    Threads wait for the storage; memory holds a few hundred chunks.
    """

    def read(number: int) -> tuple[int, Written | str]:
        return number, _read(place, folder, decided, number)

    numbers = iter(range(decided.plan.header.chunks))
    with ThreadPoolExecutor(_READERS) as readers:
        while some := list(islice(numbers, _AT_ONCE)):
            yield from readers.map(read, some)


def _read(place: Path, folder: Path, decided: JobDecisions, number: int) -> Written | str:
    path, plan = place / chunk_name(number), decided.plan
    try:
        with path.open("rb") as file:
            front = read_front(file, path, number)
            if front.preamble.data_set_id != plan.data_set_id or front.preamble.number != number:
                expected, found = plan.data_set_id.hex(), front.preamble.data_set_id.hex()
                what = "a chunk of another data set" if expected != found else f"this is chunk {front.preamble.number}"
                raise ForeignFileError(what, path=path, chunk=number, expected=expected, found=found)
            kept = KeptChunks(folder / KEPT_NAME, {number: front.preamble.file_size}).find(plan, number)
            if kept is not None and kept.checksum == front.preamble.checksum:
                return kept
            return Written(front.rows, front.preamble.checksum, *read_facts(file, front, path), found=True)
    except FileNotFoundError:
        return f"chunk {number} is missing"
    except FormatError as error:
        return str(error)


def _unfinished(place: Path, decided: JobDecisions, lost: list[int], reasons: list[str]) -> MissingChunksError:
    count = decided.plan.header.chunks
    parts = by_task(lost, count, decided.parts) if decided.parts else {}
    what = ("is" if len(lost) == 1 else "are") + (" missing or damaged" if reasons else " missing")
    message = f"{place} is not finished: {counted(len(lost), 'chunk')} of {count:,} {what}"
    error = MissingChunksError(message, lost, parts)
    for reason in reasons[:_SHOWN]:
        error.add_note(f"  {reason}")
    if not parts:
        error.add_note("The command that began this conversion makes them: run it again")
    for part, numbers in islice(parts.items(), _SHOWN):
        which = f"{counted(len(numbers), 'chunk')}, the first is {numbers[0]:,}"
        error.add_note(f"  `brand convert ... --task {part}` makes {which}")
    if len(parts) > _SHOWN:
        error.add_note(f"  and {counted(len(parts) - _SHOWN, 'more task')}; --json lists all")
    return error


def _report(place: Path, manifest: Manifest, started: float, decided: JobDecisions | None = None) -> Report:
    header = manifest.header
    return Report(
        target=str(place),
        samples=header.samples,
        classes=header.classes,
        chunks=header.chunks,
        chunk_size=header.chunk_size,
        source_bytes=manifest.raw_bytes if decided is None else decided.plan.raw_bytes,
        stored_bytes=manifest.stored_bytes,
        compression=header.compression,
        dictionary_bytes=manifest.dictionary_size,
        skipped=() if decided is None else decided.problems,
        noticed=manifest.noticed,
        notes=("It was finished already; nothing was changed",) if decided is None else decided.notes,
        seconds=time.monotonic() - started,
    )
