"""From the folder that a user names to a source: listed, joined with its transcripts, without the unusable files.

The scan finds the files that cannot be read. If every file must be decoded, all processes decode here. The work folder
keeps the result, so a conversion that was stopped does not decode again. Bad files end the conversion with an error, or
it leaves them out of the source and reports them. If the whole folder holds files of another kind, leaving files out
does not help: `misfit_hint` explains that to the user.

Two companions may be written next to the samples. `skipped.tsv` lists the files that were left out. `extras.zip` holds
the transcripts (tables and sidecars) and the empty folders of the source; `brand unpack` restores them.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.filetable import FileTable, join_rows
from brand.chunker.sources.folders import ScannedFolder, check_folder, scan_folder, split_folder
from brand.chunker.sources.listing import SIDECARS, SIDECARS_OF, TEXT_BITS, Listing, join_table
from brand.chunker.sources.objects import WITHOUT_LISTS, ObjectPath, SourcePath, is_below, is_zip, source_path
from brand.chunker.sources.source import FolderSource, intact
from brand.chunker.sources.texttable import Dialect
from brand.chunker.sources.trees import UNKNOWN, FileFacts, contents, folders_in
from brand.chunker.sources.workers import run_tasks
from brand.errors import SourceError, UsageError, counted
from brand.formats.audio import INSTALL_FFMPEG, has_soundfile, missing_decoder
from brand.formats.constants import EXTRAS_NAME, SKIPPED_NAME, most_unpacked
from brand.formats.endings import kind_by_names
from brand.formats.media import HEAD_BYTES, kind_of
from brand.formats.noticed import Noticed, merged
from brand.formats.publish import publish_bytes, storage_errors
from brand.printable import printable
from brand.stores.url import is_url, parse_url

SKIP_HINT: Final = "--on-error skip leaves such files out and lists them"
_ANNOTATES: Final = re.compile(r"\.(json|jsonl|xml|csv|tsv)$|label|annotation")
_ABOUT_ANNOTATIONS: Final = (
    "If it says what is in the images: --table takes a table with a row for each, and brand.pack takes any annotations"
    " (docs/guides/detection-and-segmentation.md)"
)
_FILES_A_TASK: Final = 32
_LOOKED_AT: Final = 64
"""Number of inspected files, evenly spread over the folder."""
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/+", re.IGNORECASE)
_VERBS: Final = {"image": "`brand convert images` is for images", "audio": "`brand convert audio` is for audio files"}

Bad = list[tuple[int, str]]
"""(index, reason) of files that do not decode."""

_FILES_AT_ONCE: Final = 1024
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # so that every run writes equal bytes

Kind = Literal["images", "audio"]
Target = str | os.PathLike[str]
"""A path; for the data set that is written also a URL, as a str."""
FIELDS: Final[dict[Kind, Literal["image", "audio"]]] = {"images": "image", "audio": "audio"}
"""Kind of folder -> field that holds a file's bytes."""


def write_skipped(into: Path, problems: Iterable[Problem]) -> list[str]:
    """Write `skipped.tsv` into a folder, unless no file was left out. Return the names of the files written.

    It has one line for each file that was left out, sorted by path. Paths are escaped, so a tab or a line break in a
    name does not break the table.
    """
    rows = sorted((p.path, p.reason) for p in problems)
    if not rows:
        return []
    lines = ["path\treason", *map("\t".join, rows)]
    with storage_errors(into, "cannot write"):
        (into / SKIPPED_NAME).write_bytes(("\n".join(lines) + "\n").encode())
    return [SKIPPED_NAME]


def write_extras(into: Path, folder: ScannedFolder, source: FolderSource, table: SourcePath | None) -> list[str]:
    """Write `extras.zip` into a folder, unless it would be empty. Return the names of the files written."""
    names = [] if table is None or (name := _name_below(folder.root, table)) is None else [name]
    names += folder.tables
    empty = [f"{name}/" for name in sorted(folder.empty_folders)]
    if not names and not empty and not source.listing.entries["sidecar"].any():
        return []
    path = into / EXTRAS_NAME
    with storage_errors(path, "cannot write"):
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            with zipfile.ZipFile(path, "w", method) as archive:
                for name in empty:
                    archive.writestr(zipfile.ZipInfo(name, _DATE), b"")
                several = iter((*names, *source.all_sidecars()))
                while some := [FileFacts(name, UNKNOWN, 0) for name in islice(several, _FILES_AT_ONCE)]:
                    for file, data in zip(some, contents(folder.root, some), strict=True):
                        archive.writestr(zipfile.ZipInfo(file.key, _DATE), intact(data), compress_type=method)
                unpacked = sum(info.file_size for info in archive.infolist())
            if unpacked <= most_unpacked(path.stat().st_size):
                break
    return [EXTRAS_NAME]


def _name_below(root: SourcePath, path: SourcePath) -> str | None:
    """Return the path of a file below a folder; None if it is not there."""
    if isinstance(path, Path) and isinstance(root, Path):
        path, root = path.resolve(), root.resolve()
    return str(path)[len(str(root)) + 1 :] if is_below(path, root) else None


class Memo:
    """Results that take long to make, stored in a folder for a run that continues this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def remember(self, name: str, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, or the one that is stored under `name` for the same `key`. Raises OSError."""
        path = self.folder / f"{name}.json"
        with suppress(FileNotFoundError, ValueError):
            stored = json.loads(path.read_bytes())
            if stored["key"] == key:
                return stored["value"]
        value = compute()
        publish_bytes(path, json.dumps({"key": key, "value": value}).encode())
        return value


def leave_out_unusable(
    memo: Memo, folder: ScannedFolder, source: FolderSource, options: Options, on_progress: OnProgress
) -> list[Problem]:
    """Leave the files that cannot be used out of the source, and return them.

    Raises `SourceError` for the first such file unless errors are skipped, and if no file is left.
    """
    problems, alone, misfit = list(folder.problems), set(folder.lost_sidecars), ""
    if options.decode_all:
        key = f"{source.fingerprint(times=True)} {source.file_field}"
        bad: Bad = memo.remember("checked", key, lambda: _decode_all(source, options, on_progress))
        problems += [Problem.of(source.listing.key(index), reason) for index, reason in bad]
        alone.update(name for index, _ in bad for name in source.sidecars(index))
        if len(bad) == len(source):
            misfit = misfit_hint(source)
        if bad:
            source.leave_out([index for index, _ in bad])
    if alone:
        of = {"image": "image", "audio": "audio file"}[source.file_field]
        alone.difference_update(source.all_sidecars())
        problems += [Problem.of(name, f"the {of} that it belongs to was left out") for name in sorted(alone)]
    if problems and not options.skip_errors:
        more = f"{counted(len(problems) - 1, 'more file')} cannot be used either. " if len(problems) > 1 else ""
        raise SourceError(problems[0].path, problems[0].reason, hint=misfit or more + SKIP_HINT)
    if not len(source):
        first = f"The first: {problems[0].path}: {problems[0].reason}"
        hint = f"{first}. {misfit}" if misfit else first
        raise SourceError(str(folder.root), "none of its files can be used", hint=hint)
    return problems


def _decode_all(source: FolderSource, options: Options, on_progress: OnProgress) -> Bad:
    bad: Bad = []
    sizes = source.listing.entries["size"]
    total, total_bytes = len(source), int(sizes.sum())
    done = done_bytes = 0
    for first, found in run_tasks(_decode_some, source, range(0, total, _FILES_A_TASK), jobs=options.processes):
        bad += found
        some = sizes[first : first + _FILES_A_TASK]
        done, done_bytes = done + len(some), done_bytes + int(some.sum())
        on_progress(StageProgress("check", done, total, done_bytes, total_bytes))
    return sorted(bad)


def _decode_some(source: FolderSource, first: int) -> Bad:
    return list(source.check(np.arange(first, min(first + _FILES_A_TASK, len(source)))))


def misfit_hint(source: FolderSource) -> str:
    """Return advice for the user if no inspected file is of the kind that is converted; else an empty text."""
    total, heads = len(source), _heads(source)
    looked_at, kinds = len(heads), {(kind_of(head) or "").partition("/")[0] for head in heads}
    names = [source.listing.key(index) for index in range(min(total, _LOOKED_AT))]
    if source.file_field in kinds or not kinds:
        return ""
    what = {"image": "an image", "audio": "an audio file"}[source.file_field]
    which = (
        f"none of the {counted(total, 'file')}"
        if looked_at == total
        else f"none of {counted(looked_at, 'inspected file')}"
    )
    importer = kind_by_names(names)
    otherwise = "brand.pack takes samples of any kind"
    if importer not in (None, *FIELDS):
        otherwise = f"`brand convert {importer}` reads files such as {printable(names[0])}"
    how = next((verb for kind, verb in _VERBS.items() if kind in kinds), otherwise)
    return f"In this folder {which} is {what}: {how}"


def _heads(source: FolderSource) -> list[bytes]:
    """Return the first bytes of some files, evenly spread over the folder."""
    heads = []
    for index in np.linspace(0, max(0, len(source) - 1), min(len(source), _LOOKED_AT), dtype=np.int64).tolist():
        with suppress(OSError), (source.root / source.listing.key(index)).open("rb") as file:
            heads.append(file.read(HEAD_BYTES))
    return heads


@dataclass(frozen=True)
class FolderRequest:
    """The conversion of a folder that a user asks for."""

    root: SourcePath
    kind: Kind
    table: SourcePath | None = None
    """Table of transcripts."""
    columns: tuple[str, ...] = ()
    """Other columns of the table that become fields."""
    dialect: Dialect = field(default_factory=Dialect)
    """The form of the table."""
    rows: FileTable | None = None
    """A table with a row for each file."""
    options: Options = field(default_factory=Options)


def url_of(src: Target) -> tuple[str, str] | None:
    """Return scheme and rest of a source that is a URL; None for a path.

    A `Path` that was made from a URL has lost a slash; it is a URL, too, unless there is such a file.
    """
    text = os.fspath(src)
    found = _URL.match(text)
    if found is None or (not isinstance(src, str) and Path(text).exists()):
        return None
    return found[1].lower(), text[found.end() :]


def local_source(src: Target) -> str:
    """Return the path of a source, which is on this machine. A URL `file://` names a path, too.

    Raises `UsageError` for any other URL, with the command that copies it. A `Path` that was made from a URL has lost a
    slash; it is a URL, too, unless there is such a file.
    """
    found = url_of(src)
    if found is None:
        return os.fspath(src)
    scheme, rest = found
    if scheme == "file":
        return f"/{rest}"
    url = f"{scheme}://{rest}"
    raise UsageError(
        f"{printable(url)}: a source is read from the disk of this machine. Copy it first, for example with"
        f" {printable(_how_to_copy(scheme, rest))}, and convert the copy"
    )


def _how_to_copy(scheme: str, rest: str) -> str:
    """Return the command that copies a URL to this machine: one file, or a folder; of a pattern, the folder of it."""
    parent, _, name = rest.rpartition("/")
    pattern = any(mark in name for mark in "*?{[")
    one = bool(parent) and not pattern and "." in name
    url = f"{scheme}://{parent if pattern and parent else rest}"
    match scheme:
        case "s3":
            return f"`aws s3 cp {url} FOLDER/`" if one else f"`aws s3 sync {url} FOLDER`"
        case "gs":
            return f"`gcloud storage cp {url} FOLDER/`" if one else f"`gcloud storage rsync --recursive {url} FOLDER`"
        case "az":
            container, _, path = url.removeprefix("az://").partition("/")
            some = f" --pattern '{path if one else f'{path}/*'}'" if path else ""
            return f"`az storage blob download-batch --source {container} --destination FOLDER{some}`"
        case "http" | "https" if rest.startswith("huggingface.co/datasets/"):
            return f"`hf download --repo-type dataset {'/'.join(rest.split('/')[2:4])} --local-dir FOLDER`"
        case "http" | "https":
            return f"`curl --location --remote-name {url}`" if one else f"`wget --recursive --no-parent {url}`"
        case "hf":
            name = "/".join(rest.split("/")[1:3]) or "OWNER/NAME"
            return f"`hf download --repo-type dataset {name.partition('@')[0]} --local-dir FOLDER`"
    return "the program of that store"


def make_request(
    src: Target,
    dst: Target,
    kind: Kind,
    options: Options | None,
    table: Target | None = None,
    columns: Sequence[str] = (),
    dialect: Dialect | None = None,
    rows: FileTable | None = None,
) -> FolderRequest:
    """Check the arguments of the user. Raises `UsageError` if one is wrong."""
    if isinstance(columns, str):
        raise UsageError(f"columns={columns!r}: give a tuple of names, ({columns!r},)")
    if columns and table is None:
        raise UsageError("--columns names columns of a table: give the table with --transcripts")
    if dialect not in (None, Dialect()) and table is None:
        raise UsageError("--separator, --quote and --escape are for a table: give the table with --transcripts")
    root, chosen = source_folder(src, options)
    if not is_url(dst) and isinstance(root, Path) and Path(dst).resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{os.fspath(dst)} is inside {root}: choose a target outside of the source")
    check_folder(root)
    transcripts = None if table is None else source_of(table)
    if transcripts is not None and not transcripts.is_file() and not (transcripts / "wav.scp").is_file():
        what = "it is not a file, nor a folder with wav.scp" if transcripts.exists() else "there is no such file"
        raise UsageError(f"{transcripts}: {what}: --transcripts names a table, or a manifest of speech")
    if rows is not None:  # as `datasets` does: the table says what belongs to a file, not its folder
        if chosen.natural_order or chosen.leaf_classes:
            raise UsageError("folders are no classes next to a table: leave out --order and --leaf-classes")
        if chosen.classes is not None:
            rows.source.give_classes(chosen.classes)
        chosen = replace(chosen, labels=False, classes=None)
    return FolderRequest(root, kind, transcripts, tuple(columns), dialect or Dialect(), rows, chosen)


def source_of(src: Target) -> SourcePath:
    """Return the path of a source: on this machine, in a store, or in a zip. Raises `UsageError`, `SourceError`.

    A `Path` that was made from a URL has lost a slash; it is a URL, too, unless there is such a file.
    """
    found = url_of(src)
    if found is None or found[0] == "file":
        return source_path(Path(local_source(src)))
    return source_path(f"{found[0]}://{found[1]}")


def source_folder(src: Target, options: Options | None) -> tuple[SourcePath, Options]:
    """Return the folder that a user names, or that of the split, and the options for it.

    Raises `UsageError`, `SourceError` as `source_of`; `UsageError`, too, if the folder holds several splits, and none
    of them was asked for, and if it is on a web server, which does not list its files.
    """
    root = source_of(src)
    if isinstance(root, ObjectPath) and root.root.startswith(WITHOUT_LISTS) and not is_zip(root.root):
        local_source(src)
    return split_folder(root, options or Options())


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
    table: SourcePath | None
    classes: tuple[str, ...] | None
    """Names of the values of `label`."""
    problems: tuple[Problem, ...]
    """Files that were left out, by path."""
    notes: tuple[str, ...]

    def write_companions(self, into: Path) -> list[str]:
        """Write `skipped.tsv` and `extras.zip` into a folder, each if it has contents. Return their names."""
        return write_skipped(into, self.problems) + write_extras(into, self.folder, self.source, self.table)


def find(request: FolderRequest, scratch: Path, memo: Memo, on_progress: OnProgress) -> FoundFiles:
    """List the folder into `scratch`. `memo` has the files that do not decode, from an earlier run.

    Raises `UsageError`, and `SourceError` if a file cannot be used or none is left.
    """
    rows, options = request.rows, request.options
    table = request.table if rows is None else rows.path
    sidecars = SIDECARS_OF[FIELDS[request.kind]] if table is None else ()
    folder = scan_folder(
        request.root,
        scratch,
        options,
        sidecars=sidecars,
        exclude=table,
        images=request.kind == "images" and rows is None,
        on_progress=on_progress,
    )
    notes = []
    if folder.ignored:
        notes.append(f"{counted(folder.ignored, 'hidden file or folder', 'hidden files or folders')} ignored")
    if isinstance(request.root, ObjectPath) and is_zip(request.root.root) and request.root.path.parts:
        notes.append(f"The files are those of the folder {request.root.path} of the zip")
    unusable, without_row = {problem.path for problem in folder.problems}, np.zeros(0, bool)
    noticed = [*folder.noticed]
    if rows is not None:
        notes += [*rows.source.notes, *_not_classes(request.root)]
        problems, without_row, more = join_rows(rows, request.root, folder.listing, unusable)
        noticed += more
        folder = replace(folder, problems=[*folder.problems, *problems])
    elif table is not None:
        told, about = join_table(table, request.root, folder.listing, unusable, request.columns, request.dialect)
        notes += about
        without = len(folder.listing) - told
        notes += [f"{counted(without, 'audio file')} without a transcript; the text is empty there"] if without else []
    beside = folder.listing.entries["sidecar"]
    with_text = request.table is not None or bool(folder.tables) or bool((beside & TEXT_BITS).any())
    with_json = bool((beside & SIDECARS[".json"]).any())
    if table is None:
        noticed += _lacking(request.kind, folder.listing, with_text=with_text, with_json=with_json)
    with_duration = request.kind == "audio" and has_soundfile()
    if request.kind == "audio" and not with_duration:
        notes.append(
            "No field `duration`: pip install 'brand-data[audio]' before converting, to measure the audio files"
        )
    source = FolderSource(
        folder,
        FIELDS[request.kind],
        with_text=with_text,
        with_json=with_json,
        with_duration=with_duration,
        rows=None if rows is None else rows.fields,
        noticed=merged(noticed),
    )
    if rows is not None:
        source.describe(field_classes=rows.source.field_classes)
    if without_row.any() and options.skip_errors:
        source.leave_out(np.flatnonzero(without_row).tolist())
    problems = leave_out_unusable(memo, folder, source, options, on_progress)
    classes = folder.classes if rows is None else rows.source.classes
    return FoundFiles(
        folder, source, table, classes, tuple(sorted(problems, key=lambda problem: problem.path)), tuple(notes)
    )


def _not_classes(root: SourcePath) -> list[str]:
    """Return a note if the folders of a source with a table could be classes."""
    folders = any(not name.startswith(".") for name in folders_in(root))
    return ["Folders are no classes here: the table says what belongs to a file"] if folders else []


def _lacking(kind: Kind, listing: Listing, *, with_text: bool, with_json: bool) -> Iterator[Noticed]:
    """Yield facts about files that lack the text or the JSON which other files have next to them."""
    file, beside = {"images": "image", "audio": "audio file"}[kind], listing.entries["sidecar"]
    told = listing.entries["text_size"] > 0
    for there, name, has, what in (
        (with_text, "text", told | (beside & TEXT_BITS > 0), "text next to [it|them]: the text is empty there"),
        (with_json, "json", beside & SIDECARS[".json"] > 0, ".json next to [it|them]: the value is null there"),
    ):
        without = np.flatnonzero(~has) if there else np.zeros(0, np.intp)
        if len(without):
            template = f"{{count}} {file}[s] [has|have] no {what}"
            yield Noticed(f"files_without_{name}", len(without), listing.key(int(without[0])), template, name)


@contextmanager
def hinted(source: FolderSource, *, skipping: bool) -> Iterator[None]:
    """Add advice to the error of a file that cannot be used; `skipping` is whether errors are skipped already."""
    try:
        yield
    except SourceError as error:
        hint = "--validate finds such files beforehand" if skipping else SKIP_HINT
        if error.reason.endswith(INSTALL_FFMPEG):
            heads = _heads(source)
            such = sum(map(bool, map(missing_decoder, heads)))
            hint = f"{such:,} of {counted(len(heads), 'inspected file')} are such; {hint}"
        elif source.file_field == "audio" and error.reason.endswith(" text"):
            hint = f"If it has the texts of audio files, --transcripts names it. {SKIP_HINT}, without their texts"
        elif error.reason.endswith(" text") and _ANNOTATES.search(error.path.lower()):
            hint = f"{_ABOUT_ANNOTATIONS}. {SKIP_HINT}, with what they say"
        raise SourceError(error.path, error.reason, hint=misfit_hint(source) or hint) from error
