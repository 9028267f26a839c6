"""Which files of a folder cannot be used, and what happens to them?

The scan has already found the files that cannot be read. If every file must be decoded, all processes decode here.
The work folder keeps the result, so a conversion that was stopped does not decode again. Bad files end the conversion
with an error, or it leaves them out of the source and reports them. If the whole folder holds files of another kind,
leaving files out does not help: `misfit_hint` explains that to the user.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from brand.chunker.plan.options import Options
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.source import FolderSource
from brand.chunker.sources.workers import run_tasks
from brand.errors import SourceError, counted
from brand.formats.media import HEAD_BYTES, kind_of

SKIP_HINT: Final = "--on-error skip leaves such files out and lists them"
_FILES_A_TASK: Final = 32
_LOOKED_AT: Final = 64
"""Number of inspected files, evenly spread over the folder."""
_VERBS: Final = {"image": "`brand convert images` is for images", "audio": "`brand convert audio` is for audio files"}

Bad = list[tuple[int, str]]
"""(index, reason) of files that do not decode."""


class Memo(Protocol):
    """Results of an earlier run of the same conversion. The work folder is one."""

    def recall(self, name: str, key: str) -> Any:
        """Return the result that was stored under `name` with the same `key`, or None."""

    def remember(self, name: str, key: str, value: Any) -> None:
        """Store a result under `name` for a run that continues this one."""


def leave_out_unusable(
    memo: Memo, folder: ScannedFolder, source: FolderSource, options: Options, on_progress: OnProgress
) -> list[Problem]:
    """Leave the files that cannot be used out of the source, and return them.

    Raises `SourceError` for the first such file unless errors are skipped, and if no file is left.
    """
    problems, alone, misfit = list(folder.problems), set(folder.lost_sidecars), ""
    if options.decode_all:
        bad = _decode_all(memo, source, options, on_progress)
        problems += [Problem.of(source.listing.key(index), reason) for index, reason in bad]
        alone.update(name for index, _ in bad for name in source.sidecars(index))
        if len(bad) == len(source):
            misfit = misfit_hint(source)
        if bad:
            mask = np.zeros(len(source), bool)
            mask[[index for index, _ in bad]] = True
            source.listing = source.listing.without(mask)
    if alone:
        alone.difference_update(source.all_sidecars())
        problems += [Problem.of(name, "the audio file that it belongs to was left out") for name in sorted(alone)]
    if problems and not options.skip_errors:
        more = f"{counted(len(problems) - 1, 'more file')} cannot be used either. " if len(problems) > 1 else ""
        raise SourceError(problems[0].path, problems[0].reason, hint=misfit or more + SKIP_HINT)
    if not len(source):
        first = f"The first: {problems[0].path}: {problems[0].reason}"
        hint = f"{first}. {misfit}" if misfit else first
        raise SourceError(str(folder.root), "none of its files can be used", hint=hint)
    return problems


def _decode_all(memo: Memo, source: FolderSource, options: Options, on_progress: OnProgress) -> Bad:
    key = f"{source.fingerprint(times=True)} {source.file_field}"
    known: Bad | None = memo.recall("checked", key)
    if known is not None:
        return known
    bad: Bad = []
    sizes = source.listing.entries["size"]
    total, total_bytes = len(source), int(sizes.sum())
    done = done_bytes = 0
    for first, found in run_tasks(_decode_some, source, range(0, total, _FILES_A_TASK), jobs=options.processes):
        bad += found
        some = sizes[first : first + _FILES_A_TASK]
        done, done_bytes = done + len(some), done_bytes + int(some.sum())
        on_progress(StageProgress("check", done, total, done_bytes, total_bytes))
    bad.sort()
    memo.remember("checked", key, bad)
    return bad


def _decode_some(source: FolderSource, first: int) -> Bad:
    bad = []
    for index in range(first, min(first + _FILES_A_TASK, len(source))):
        try:
            source.check(index)
        except SourceError as error:
            bad.append((index, error.reason))
    return bad


def misfit_hint(source: FolderSource) -> str:
    """Return advice for the user if no inspected file is of the kind that is converted; else an empty text."""
    total, kinds = len(source), set[str]()
    looked_at = min(total, _LOOKED_AT)
    for index in np.linspace(0, max(0, total - 1), looked_at, dtype=np.int64).tolist():
        try:
            with (source.root / source.listing.key(index)).open("rb") as file:
                kinds.add((kind_of(file.read(HEAD_BYTES)) or "").partition("/")[0])
        except OSError:
            continue
    if source.file_field in kinds or not kinds:
        return ""
    what = {"image": "an image", "audio": "an audio file"}[source.file_field]
    which = f"none of the {counted(total, 'file')}" if looked_at == total else f"none of {looked_at} inspected files"
    how = next((verb for kind, verb in _VERBS.items() if kind in kinds), "brand.pack takes samples of any kind")
    return f"In this folder {which} is {what}: {how}"
