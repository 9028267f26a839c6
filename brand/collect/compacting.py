"""How does a collection stay small? `compact` leaves deleted samples out, and makes a few segments of many.

Segments with enough deleted samples are written again without them, and neighbours are merged by the rule of `tiers`,
both in one pass (`rewriting`). Then one version names all new segments. Older versions name the old ones, so these
remain, and so does their disk space, until `forget` removes the versions. Indices do not change: deleted ones remain
deleted for ever.

`merge_due` is the part of it that an append does by itself with `compact=True`: it merges, and leaves out no deleted
sample, so `undelete` restores the same samples as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.collect.home import MOST_PARTS, collection_folder, forget_before, joined, staged, writing
from brand.collect.rewriting import Rewrite, Rewritten, held_in, publish_rewritten, rewrite_parts
from brand.collect.tiers import CROWD, merges
from brand.errors import StorageError, UsageError, counted
from brand.formats.publish import storage_errors
from brand.formats.version import Version
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.io.frontback import OnChunk, silent

_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    version: Version
    segments: int
    """Segments that were written again, or merged."""
    written: int
    """Segments in their place."""
    samples: int
    """Deleted samples that they no longer hold."""
    bytes: int
    """Stored bytes of these samples."""
    freed: int
    """Bytes that were freed, because versions were forgotten."""


def compact(
    collection: Target, *, above: float = 0.0, forget: bool = False, on_chunk: OnChunk = silent
) -> Compacted | None:
    """Write segments again without their deleted samples, and merge neighbouring segments that are small.

    A segment keeps its deleted samples if these are at most the fraction `above` of it. `forget` removes all older
    versions, with the files that only they need; a training that has one of them open, and a loader state of one,
    cannot continue then. Returns None if there was nothing to do. Raises `UsageError`, `FormatError`, `StorageError`.
    """
    if not 0 <= above < 1:
        raise UsageError(f"above={above}: a fraction from 0 to 1 is needed, for example 0.2")
    folder = collection_folder(collection)
    return _compacted(folder, joined(folder), above, on_chunk, forget=forget)


def merge_due(folder: Path, version: Version) -> Version:
    """Merge neighbouring segments if it is time for it in a version; return the new one, or `version`.

    If another command changes the segments meanwhile, nothing is done: the next append merges. Raises as `compact`.
    """
    if not merges([part.samples for part in version.parts]):
        return version
    done = _compacted(folder, joined(folder), 1.0, silent, forget=False, yields=True)
    return version if done is None else done.version


def reminder(version: Version) -> str | None:
    """Return a sentence for people if a collection has many segments that could be merged; else None."""
    held = sum(part.id is not None for part in version.parts)
    if held < CROWD or not merges([part.samples for part in version.parts]):
        return None
    return f"The collection has {counted(held, 'segment')} of at most {MOST_PARTS}: `brand compact` merges them"


def planned(index: JoinedIndex, above: float) -> list[Rewrite]:
    """Return the segments to write: those with deleted samples above the fraction, and those that are merged."""
    held = {part.part: part for part in index.parts}
    left_out: list[NDArray[np.int64]] = []
    for each in index.version.parts:
        gone = held_in(held[each], index.deleted) if each in held else _NONE
        left_out.append(gone if len(gone) > above * each.samples else _NONE)
    runs = merges([part.samples - len(gone) for part, gone in zip(index.version.parts, left_out, strict=True)])
    inside = {number for run in runs for number in run}
    runs += [range(at, at + 1) for at, gone in enumerate(left_out) if len(gone) and at not in inside]
    plans = []
    for run in sorted(runs, key=lambda run: run.start):
        old = index.version.parts[run.start : run.stop]
        parts = tuple(held[part] for part in old if part in held)
        plans.append(Rewrite(old, parts, np.concatenate(left_out[run.start : run.stop])))
    return plans


def _compacted(
    folder: Path, index: JoinedIndex, above: float, on_chunk: OnChunk, *, forget: bool, yields: bool = False
) -> Compacted | None:
    """Do what `planned` says, and publish. `yields`: return None if another command has changed the segments."""
    todo, version = planned(index, above), index.version
    if not todo and not (forget and version.number > 1):
        return None
    with ExitStack() as stack:
        stack.enter_context(storage_errors(folder, "cannot write to"))
        work = stack.enter_context(staged(folder, "compact"))
        done = rewrite_parts(todo, folder, work, on_chunk)
        places = [index.place.take(plan.left_out) for plan in todo]
        stored = sum(int(index.rows.take(some)["size"].sum(dtype=np.int64)) for some in places)
        writer = stack.enter_context(writing(folder, sweep=forget))
        if done:
            published = publish_rewritten(writer, done, _note(done))
            if published is None and yields:
                return None
            if published is None:
                raise StorageError(
                    f"{folder}: another command has changed these segments meanwhile, so nothing was done. Run it again"
                )
            version = published
        freed = forget_before(folder, version) if forget else 0
    old = sum(len(plan.old) for plan in todo)
    return Compacted(version, old, len(todo), sum(len(plan.left_out) for plan in todo), stored, freed)


def _note(done: Sequence[Rewritten]) -> str:
    old, gone = sum(len(each.plan.old) for each in done), sum(len(each.plan.left_out) for each in done)
    into = f" into {len(done):,}" if old > len(done) else ""
    left_out = f", {counted(gone, 'deleted sample')}" if gone else ""
    return f"compact {counted(old, 'segment')}{into}{left_out}"
