"""How do several machines agree on one plan, and how do they keep all other conversions out?

A `Job` names a planned conversion, and is small and picklable, so an engine can send it anywhere. All decisions are in
the *shared plan*, a folder in the work folder of the target, which does not change:

    plan.json      the claim: data set, source, versions                        Claim
    job.json       the options of the user, and all decisions                   JobDecisions
    names.bin, entries.bin, ...   the files of the source                       listing
    order.bin      the order of the samples                                     shuffle
    skipped.tsv, extras.zip       the companions, which `sealing` publishes     request

The first machine lists the source, decides, and publishes the plan: it makes the folder under a name of its own and
renames it. A rename onto a folder with contents fails, so the first plan is final, even if two machines make one at the
same time. All others load it: they neither list the source nor decode it again. Each compares its options, the versions
of Brand and zstandard, and the list of files with those of the plan.

Two locks in the work folder save work and report conflicts early. Nothing depends on them, because some cluster file
systems have locks that hold for one machine only.

    lock       shared by processes that make chunks of one plan; another conversion, or `seal`, takes it exclusively
    planning   held by the machine that makes the plan; the others wait
"""

from __future__ import annotations

import base64
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.filetable import TABLE_OPTIONS
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.listing import Listing
from brand.chunker.sources.objects import SourcePath
from brand.chunker.sources.request import FolderRequest, find, hinted
from brand.chunker.sources.source import DURATION, FolderSource
from brand.chunker.work.chunks import decide
from brand.chunker.work.work import CLAIM_NAME, Claim, FolderWork, check_claim, check_folder_target, locked, read_claim
from brand.errors import InterruptedConversionError, LayoutError, NotADataSetError, TargetExistsError, UsageError
from brand.formats import locks
from brand.formats.compression import Compression
from brand.formats.constants import (
    EXTRAS_NAME,
    MANIFEST_NAME,
    MAX_DICTIONARY,
    SHARED_PLAN_NAME,
    SKIPPED_NAME,
    WORK_NAME,
)
from brand.formats.header import Header, Schema, natural, pack_header
from brand.formats.manifest import identity, pack_signed, parse_signed
from brand.formats.noticed import Noticed
from brand.formats.noticed import from_json as noticed_from_json
from brand.formats.noticed import to_json as noticed_to_json
from brand.formats.publish import digest_of, storage_errors, storage_reason, sync_file, sync_folder
from brand.stores.url import is_url

PLAN_WAIT_S: Final = 6 * 3600.0
"""Seconds that a machine waits for another one to list, and perhaps to decode, the source."""
_POLL_S: Final = 0.2
JOB_NAME: Final = "job.json"
_MARKER: Final = "brand-job"
_HINT: Final = "Remove the data set's folder to start again"


@dataclass(frozen=True, slots=True)
class Job:
    """A planned conversion, by name; `run` makes its chunks, `seal` finishes it."""

    source: str
    """Absolute path of the folder that is converted."""
    target: str
    """Absolute path of the data set. All machines see the same folder there."""
    data_set_id: bytes
    chunks: int
    """Number of chunks to make: 0, 1, ..., `chunks - 1`."""

    def check(self, number: int) -> None:
        """Raise `UsageError` if this conversion has no such chunk."""
        if not 0 <= number < self.chunks:
            raise UsageError(f"chunk {number}: {self.target} has chunks 0 to {self.chunks - 1}")


@dataclass(frozen=True)
class JobDecisions:
    """The options of the user, and all decisions before the first chunk."""

    asked: Mapping[str, Any]
    """The options that every machine must give: name -> value."""
    parts: int
    """Number of tasks for which the conversion was planned; 0 if it was not divided."""
    plan: ChunkPlan
    entries: str
    """File of the listing that has the files to convert."""
    columns: tuple[str, ...]
    """Columns of the table of transcripts that became fields."""
    with_text: bool
    with_json: bool
    rows: tuple[tuple[str, str], ...]
    """Fields of the table that has a row for each file: name and codec; empty if there is no table."""
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    noticed: tuple[Noticed, ...]
    """The facts that the source has told."""
    companions: tuple[str, ...]

    def source(self, folder: Path, root: SourcePath) -> FolderSource:
        """Return the files to convert, which are below `root` on this machine; `folder` is that of the shared plan.

        Raises `LayoutError` if they do not have the fields of the plan.
        """
        header = self.plan.header
        listed = ScannedFolder(root, Listing(folder, self.entries, self.columns), None if self.rows else header.classes)
        with_duration = DURATION in header.schema.fields
        source = FolderSource(
            listed,
            header.source["file_field"],
            with_text=self.with_text,
            with_json=self.with_json,
            with_duration=with_duration,
            rows=Schema(self.rows) if self.rows else None,
        )
        if source.schema != header.schema or len(source) != header.samples:
            raise LayoutError("the list of files does not fit the plan", path=folder / self.entries, hint=_HINT)
        return source


def pack_decided(decided: JobDecisions) -> bytes:
    """Return the contents of `job.json`."""
    plan = decided.plan
    apart = {"plan", "problems", "noticed"}
    own = {each.name: getattr(decided, each.name) for each in fields(decided) if each.name not in apart}
    facts = own | {
        "noticed": noticed_to_json(decided.noticed),
        "problems": [asdict(problem) for problem in decided.problems],
        "id": plan.data_set_id.hex(),
        "header": plan.header.to_json(),
        "raw_bytes": plan.raw_bytes,
        "worth": plan.compression.worth,
        "expected_ratio": plan.compression.expected_ratio,
        "dictionary": base64.b64encode(plan.compression.dictionary).decode(),
    }
    return pack_signed(_MARKER, facts)


def parse_decided(data: bytes, path: Path) -> JobDecisions:
    """Read the output of `pack_decided`. Raises a `FormatError` if it is invalid."""
    value = parse_signed(data, path, marker=_MARKER, name="plan", hint=_HINT)
    try:
        header = Header.from_json(value["header"], path)
        dictionary = base64.b64decode(value["dictionary"], validate=True)
        codec: Literal["none", "zstd"] = "zstd" if header.compression == "zstd" else "none"
        compression = Compression(codec, dictionary, float(value["worth"]), float(value["expected_ratio"]))
        raw_bytes = natural(value["raw_bytes"], "raw_bytes")
        plan = ChunkPlan(header, compression, identity(value["id"]), pack_header(header), raw_bytes)
        decided = JobDecisions(
            asked=dict(value["asked"]),
            parts=natural(value["parts"], "parts"),
            plan=plan,
            entries=str(value["entries"]),
            columns=tuple(map(str, value["columns"])),
            with_text=value["with_text"] is True,
            with_json=value["with_json"] is True,
            rows=tuple((str(name), str(codec)) for name, codec in value["rows"]),
            problems=tuple(Problem(str(each["path"]), str(each["reason"])) for each in value["problems"]),
            notes=tuple(map(str, value["notes"])),
            noticed=noticed_from_json(value["noticed"]),
            companions=tuple(map(str, value["companions"])),
        )
        if "/" in decided.entries or not set(decided.companions) <= {EXTRAS_NAME, SKIPPED_NAME}:
            raise ValueError("an invalid file name")
        if len(dictionary) > MAX_DICTIONARY or "file_field" not in header.source:
            raise ValueError("an invalid dictionary or source")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LayoutError(f"the plan is malformed: {error!r}", path=path, hint=_HINT) from error
    return decided


def read_decided(folder: Path) -> JobDecisions:
    """Read the shared plan in `folder`. Raises a `FormatError`, also if there is none, and OSError."""
    path = folder / JOB_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotADataSetError("there is no plan of tasks here", path=path, hint=_HINT) from None
    return parse_decided(data, path)


def plan(request: FolderRequest, place: Path, parts: int, on_progress: OnProgress) -> Job:
    """Make or load the plan of a conversion into the folder `place`. `parts` is for messages of `seal`.

    Raises:
        TargetExistsError: The target is taken, by a data set, by another conversion, or by one with other options or
            versions, or of a source that has changed since.
        SourceError: A file cannot be used.
        StorageError: The storage refused a read or a write.
        InterruptedConversionError: Another machine has been making the plan for six hours.
    """
    with shared_work_folder(place) as folder, storage_errors(place, "cannot write"):
        if not is_planned(folder):
            with _alone(folder / "planning", place, on_progress):
                if not is_planned(folder):
                    _make(request, place, folder, parts, on_progress)
        return _load(request, place, folder)


@contextmanager
def shared_work_folder(place: Path) -> Iterator[Path]:
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
            decided, _ = decide(source, request.kind, found.classes, request.options, scratch / "order.bin")
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
            with_json=source.with_json,
            rows=() if source.rows is None else source.rows.fields,
            problems=found.problems,
            notes=found.notes,
            noticed=tuple(source.noticed),
            companions=tuple(found.write_companions(scratch)),
        )
        (scratch / CLAIM_NAME).write_bytes(claim.pack())
        (scratch / JOB_NAME).write_bytes(pack_decided(told))
        _publish(scratch, folder / SHARED_PLAN_NAME)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, final: Path) -> None:
    """Give a folder its final name, with its files on the device. If another machine was faster, its folder wins."""
    for file in scratch.iterdir():
        sync_file(file)
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
    source_name = str(request.root) if is_url(str(request.root)) else os.path.abspath(str(request.root))
    return Job(source_name, os.path.abspath(place), decided.plan.data_set_id, header.chunks)


def _digest_of(table: SourcePath) -> str:
    with table.open("rb") as file:
        return digest_of(file)[1]


def _asked(request: FolderRequest) -> dict[str, Any]:
    """Return the options that determine the written bytes, by their names in the command."""
    options, rows = request.options, request.rows
    table = request.table if rows is None else rows.path
    try:
        digest = None if table is None else _digest_of(table)
    except OSError as error:
        raise UsageError(f"{table}: the table cannot be read: {storage_reason(error)}") from error
    return {
        "the kind of source": request.kind,
        "--seed": options.seed,
        "--chunk-size": options.chunk_size,
        "--chunk-bytes": options.chunk_bytes,
        "--compression": options.compression,
        "--no-labels": not options.labels,
        "--classes": None if options.classes is None else list(options.classes),
        "--order natural": options.natural_order,
        "--leaf-classes": options.leaf_classes,
        "--on-error skip": options.skip_errors,
        "--validate": options.decode_all,
        "--follow-links": options.follow_links,
        "--transcripts": digest if rows is None else None,
        "--columns": ",".join(request.columns),
        "--separator": request.dialect.separator,
        "--quote": request.dialect.quote,
        "--escape": request.dialect.escape,
        "--table": None if rows is None else digest,
        TABLE_OPTIONS: None if rows is None else f"{rows.key} {sorted(rows.gathered)} {rows.source.choice}",
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
        while not locks.take(descriptor, path):
            waited_s = time.monotonic() - started
            if waited_s > PLAN_WAIT_S:
                raise InterruptedConversionError(
                    f"{place}: another machine has been planning this conversion for {waited_s / 3600:.0f} hours."
                    " Run this task again when it has ended"
                )
            on_progress(StageProgress("wait", int(waited_s), None, 0, None))
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
