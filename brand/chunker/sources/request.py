"""From the folder that a user names to a source: listed, joined with its transcripts, without the unusable files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from brand.chunker.plan.options import Options
from brand.chunker.plan.report import OnProgress, Problem
from brand.chunker.sources.check import SKIP_HINT, Memo, leave_out_unusable, misfit_hint
from brand.chunker.sources.companions import write_extras, write_skipped
from brand.chunker.sources.folders import ScannedFolder, check_folder, scan_folder
from brand.chunker.sources.source import FolderSource
from brand.chunker.sources.transcripts import join_table, not_taken
from brand.errors import SourceError, UsageError, counted
from brand.formats.media import has_soundfile
from brand.stores.url import is_url, parse_url

Kind = Literal["images", "audio"]

Target = str | os.PathLike[str]
"""A path; for the data set that is written also a URL, as a str."""

FIELDS: Final[dict[Kind, Literal["image", "audio"]]] = {"images": "image", "audio": "audio"}
"""Kind of folder -> field that holds a file's bytes."""


@dataclass(frozen=True)
class FolderRequest:
    """The conversion of a folder that a user asks for."""

    root: Path
    kind: Kind
    table: Path | None = None
    """Table of transcripts."""
    columns: tuple[str, ...] = ()
    """Other columns of the table that become fields."""
    options: Options = field(default_factory=Options)


def make_request(
    src: Target,
    dst: Target,
    kind: Kind,
    options: Options | None,
    table: Target | None = None,
    columns: Sequence[str] = (),
) -> FolderRequest:
    """Check the arguments of the user. Raises `UsageError` if one is wrong."""
    if isinstance(columns, str):
        raise UsageError(f"columns={columns!r}: give a tuple of names, ({columns!r},)")
    if columns and table is None:
        raise UsageError("--columns names columns of a table: give the table with --transcripts")
    root = Path(os.path.normpath(os.fspath(src)))
    if not is_url(dst) and Path(dst).resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{os.fspath(dst)} is inside {root}: choose a target outside of the source")
    check_folder(root)
    return FolderRequest(root, kind, None if table is None else Path(table), tuple(columns), options or Options())


def folder_of(dst: Target) -> Path | None:
    """Return the folder of a target, or None for a target in a store."""
    if not isinstance(dst, str) or not is_url(dst):
        return Path(dst)
    url = parse_url(dst)
    return Path("/", url.path) if url.scheme == "file" else None


@dataclass(frozen=True)
class FoundFiles:
    """The files that were found for a request."""

    folder: ScannedFolder
    source: FolderSource
    table: Path | None
    problems: tuple[Problem, ...]
    """Files that were left out, by path."""
    notes: tuple[str, ...]

    def write_companions(self, into: Path) -> list[str]:
        """Write `skipped.tsv` and `extras.zip` into a folder, each if it has contents. Return their names."""
        written = write_skipped(into, self.problems), write_extras(into, self.folder, self.source, self.table)
        return [name for name in written if name is not None]


def find(request: FolderRequest, scratch: Path, memo: Memo, on_progress: OnProgress) -> FoundFiles:
    """List the folder into `scratch`. `memo` has the files that do not decode, from an earlier run.

    Raises `UsageError`, and `SourceError` if a file cannot be used or none is left.
    """
    table, options = request.table, request.options
    folder = scan_folder(
        request.root,
        scratch,
        labels=options.with_labels,
        known=options.classes,
        sidecars=request.kind == "audio" and table is None,
        follow_links=options.follow_links,
        exclude=table,
        on_progress=on_progress,
    )
    notes = []
    if folder.ignored:
        notes.append(f"{counted(folder.ignored, 'hidden file or folder', 'hidden files or folders')} ignored")
    if table is not None:
        unusable = {problem.path for problem in folder.problems}
        told, left = join_table(table, request.root, folder.listing, unusable, request.columns)
        notes += [not_taken(table, left)] if left else []
        without = len(folder.listing) - told
        notes += [f"{counted(without, 'audio file')} without a transcript; the text is empty there"] if without else []
    with_text = table is not None or bool(folder.listing.entries["sidecar"].any())
    with_duration = request.kind == "audio" and has_soundfile()
    if request.kind == "audio" and not with_duration:
        notes.append(
            "No field `duration`: pip install 'brand-data[audio]' before converting, to measure the audio files"
        )
    source = FolderSource(folder, FIELDS[request.kind], with_text=with_text, with_duration=with_duration)
    problems = leave_out_unusable(memo, folder, source, options, on_progress)
    return FoundFiles(folder, source, table, tuple(sorted(problems, key=lambda problem: problem.path)), tuple(notes))


@contextmanager
def hinted(source: FolderSource, *, skipping: bool) -> Iterator[None]:
    """Add advice to the error of a file that cannot be used; `skipping` is whether errors are skipped already."""
    try:
        yield
    except SourceError as error:
        otherwise = "--validate finds such files beforehand" if skipping else SKIP_HINT
        raise SourceError(error.path, error.reason, hint=misfit_hint(source) or otherwise) from error
