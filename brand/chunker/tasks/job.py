"""A planned conversion of a folder. Any process that sees source and target can work on it.

A `Job` names it, and is small and picklable, so an engine can send it anywhere. All decisions are in the
*shared plan*, a folder in the work folder of the target. It appears whole or not at all (`planning`), and does not
change afterwards:

    plan.json      the claim: data set, source, versions                        claim
    job.json       the options of the user, and all decisions: `JobDecisions`
    names.bin, entries.bin, ...   the files of the source                       listing
    order.bin      the order of the samples                                     shuffle
    skipped.tsv, extras.zip       the companions, which `sealing` publishes     companions
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.plan.report import Problem
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.listing import Listing
from brand.chunker.sources.source import DURATION, FolderSource
from brand.errors import LayoutError, NotADataSetError, UsageError
from brand.formats.compression import Compression
from brand.formats.constants import EXTRAS_NAME, MAX_DICTIONARY, SKIPPED_NAME
from brand.formats.header import Header, pack_header
from brand.formats.manifest import identity, natural, pack_signed, parse_signed

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
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    companions: tuple[str, ...]

    def source(self, folder: Path, root: Path) -> FolderSource:
        """Return the files to convert, which are below `root` on this machine; `folder` is that of the shared plan.

        Raises `LayoutError` if they do not have the fields of the plan.
        """
        header = self.plan.header
        listed = ScannedFolder(root, Listing(folder, self.entries, self.columns), header.classes)
        with_duration = DURATION in header.schema.fields
        source = FolderSource(
            listed, header.source["file_field"], with_text=self.with_text, with_duration=with_duration
        )
        if source.schema != header.schema or len(source) != header.samples:
            raise LayoutError("the list of files does not fit the plan", path=folder / self.entries, hint=_HINT)
        return source


def pack_decided(decided: JobDecisions) -> bytes:
    """Return the contents of `job.json`."""
    plan = decided.plan
    facts = {
        "asked": dict(decided.asked),
        "parts": decided.parts,
        "id": plan.data_set_id.hex(),
        "header": plan.header.to_json(),
        "raw_bytes": plan.raw_bytes,
        "worth": plan.compression.worth,
        "expected_ratio": plan.compression.expected_ratio,
        "dictionary": base64.b64encode(plan.compression.dictionary).decode(),
        "entries": decided.entries,
        "columns": list(decided.columns),
        "with_text": decided.with_text,
        "problems": [asdict(problem) for problem in decided.problems],
        "notes": list(decided.notes),
        "companions": list(decided.companions),
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
        decided = JobDecisions(
            asked=dict(value["asked"]),
            parts=natural(value["parts"], "parts"),
            plan=ChunkPlan(
                header,
                compression,
                identity(value["id"]),
                pack_header(header),
                natural(value["raw_bytes"], "raw_bytes"),
            ),
            entries=str(value["entries"]),
            columns=tuple(map(str, value["columns"])),
            with_text=value["with_text"] is True,
            problems=tuple(Problem(str(each["path"]), str(each["reason"])) for each in value["problems"]),
            notes=tuple(map(str, value["notes"])),
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
