"""A source that must be read from its front: the Protocol of all file formats, and the first stage of an import.

A `Shard` is a stretch that one process reads from its front to its end: a tar file, a few row groups of a Parquet file,
some megabytes of a JSONL file. `Shards` is the interface: each file format (`importers`) is one class with these
methods, and knows nothing of processes, runs or chunks.

`exchange` reads every shard once. A task is a *stretch*: one shard, or several small ones that follow each other. The
worker that reads it writes a part and publishes it, so a run that was stopped reads no finished stretch again. The
second stage is that of every conversion: it reads the parts as one source (`spool`).
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import xxhash

from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Problem, StageProgress
from brand.chunker.sources.blocks import bytes_of
from brand.chunker.sources.labels import LabelTexts, NewLabels, missing_classes, renumbered
from brand.chunker.sources.shuffle import SortKeys
from brand.chunker.sources.spool import (
    PARTS_NAME,
    PartWriter,
    SortedPart,
    SpoolSource,
    find_part,
    publish_part,
)
from brand.chunker.sources.workers import run_tasks
from brand.errors import SchemaError, SourceError, counted
from brand.formats.audio import missing_decoder
from brand.formats.header import ELEMENTS, DecodeDefault, Schema
from brand.formats.media import check_file, misfit
from brand.formats.noticed import Noticed
from brand.formats.publish import storage_errors
from brand.formats.record import encode_columns

_SAMPLES_HELD: Final = 8
"""Samples in the memory of a process if they are large: as they are read, as values, as records, and being written.

Texts take the most: bytes, a line, its value, and three steps on the way to a record.
"""
_MEASURED: Final = 64
"""Samples whose sizes are looked at."""
LEAST_BYTES: Final = 32 << 20
"""The fewest stored bytes of a stretch; smaller shards are joined."""
_VERSION: Final = 4
"""Version of the form of parts. Increase it when the form changes, so that parts of earlier versions are made again."""
SKIP_HINT: Final = "--on-error skip leaves such samples out and lists them"


@dataclass(frozen=True, slots=True)
class Shard:
    """One stretch of a source."""

    name: str
    """Name in messages: mostly the file, below the source."""
    bytes: int
    """Stored bytes, for progress and for cutting the work."""
    mark: str
    """A text that changes if the contents change: size and date of the file, and the stretch of it."""
    samples: int | None = None
    """Number of samples that the source declares; None if it does not."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples that follow each other in a shard, as columns."""

    columns: Mapping[str, Sequence[Any]]
    """Field -> its values. Columns of numbers may be arrays of int64 or float64."""
    called: Sequence[str]
    """Name of each sample in messages: `line 12`."""

    def __len__(self) -> int:
        return len(self.called)

    def only(self, position: int) -> Block:
        """Return a block of one of these samples."""
        some = slice(position, position + 1)
        return Block({name: values[some] for name, values in self.columns.items()}, self.called[some])


@dataclass(frozen=True, slots=True)
class Bad:
    """A sample that cannot be used, in place of a block. The reader continues after it."""

    called: str
    """Name in messages: `line 12`."""
    reason: str
    hint: str = ""
    """Advice for the user."""


class Shards(ABC):
    """A source of shards. Picklable: workers receive it, and open the files themselves."""

    kind: ClassVar[str]
    """The source's format, by its name in the header and in the command."""
    least_held: int = 0
    """Bytes that a process holds in any case as it reads a shard."""

    def __init__(
        self,
        shards: Iterable[Shard],
        schema: Schema,
        choice: str = "",
        notes: Sequence[str] = (),
        classes: tuple[str, ...] | None = None,
    ) -> None:
        """`choice` are the options that change the samples, as a text that is equal for equal options.

        `notes` are facts about the source for the report, in sentences. `classes` names the values of `label`.

        Facts with a count are `Noticed` objects: those that are known here belong in `noticed`, and `read` yields those
        that it finds. Both are in the report, in `brand info` and in the manifest.
        """
        self.shards, self.schema, self.choice = tuple(shards), schema, choice
        self.notes, self.classes = tuple(notes), classes
        self.noticed: tuple[Noticed, ...] = ()
        """Facts about the source that are known before it is read."""
        self.decode: Mapping[str, DecodeDefault] = {}
        """Field -> how its images are decoded by default, as the tool does whose data they are."""
        self.field_classes: Mapping[str, tuple[str, ...]] = {}
        """Names of the values of other fields than `label`."""
        self.numbers: NewLabels | LabelTexts | None = None
        """Other numbers for the source's labels, or numbers for texts."""

    def give_classes(self, given: tuple[str, ...]) -> None:
        """Give labels the numbers of these classes. Raises `UsageError` if there are no labels, or other classes."""
        self.schema, self.numbers = renumbered(self.schema, self.classes, given)
        if self.classes is not None:
            self.noticed += missing_classes(self.classes, given)
        self.choice += repr(self.numbers)
        self.classes = given

    @abstractmethod
    def read(self, number: int) -> Iterator[Block | Bad | Noticed]:
        """Yield the samples of one shard, in order, in bounded memory, and facts about them.

        The counts of equal facts (`what`, `field`) of all shards are added. A part that an earlier run has made keeps
        its facts.

        Raises `SourceError` that names the shard if the rest of it cannot be read.
        """


def cut_stretches(sizes: Sequence[int], least: int) -> list[range]:
    """Return shards of these sizes in stretches of at least `least` bytes; the last one may be smaller. Pure."""
    stretches, first, held = [], 0, 0
    for number, size in enumerate(sizes):
        held += size
        if held >= least:
            stretches.append(range(first, number + 1))
            first, held = number + 1, 0
    if first < len(sizes):
        stretches.append(range(first, len(sizes)))
    return stretches


@dataclass(frozen=True)
class ExchangeContext:
    """The facts that a worker needs to make any part."""

    source: Shards
    stretches: Sequence[range]
    seed: int
    folder: Path
    """Folder of the parts."""
    skip: bool
    """Leave out samples that cannot be used."""
    validate: bool
    """Decode images and audio files."""

    def identity(self, number: int) -> str:
        """Return the identity of the contents of a part, as far as it is known before reading."""
        source = self.source
        shards = [(shard.name, shard.bytes, shard.mark) for shard in self._shards(number)]
        told = [
            _VERSION,
            source.kind,
            source.schema.fields,
            source.choice,
            self.seed,
            self.skip,
            self.validate,
            number,
            shards,
        ]
        return xxhash.xxh3_128_hexdigest(json.dumps(told).encode("utf-8", "surrogateescape"))

    def bytes(self, number: int) -> int:
        """Return the stored bytes of a stretch."""
        return sum(shard.bytes for shard in self._shards(number))

    def _shards(self, number: int) -> list[Shard]:
        return [self.source.shards[shard] for shard in self.stretches[number]]


def exchange(
    source: Shards, options: Options, folder: Path, on_progress: OnProgress
) -> tuple[SpoolSource, list[Problem], int]:
    """Write all parts below the work folder `folder`.

    Returns them as one source, the samples that were left out, and the number of parts that an earlier run had made.
    Raises `SourceError`, `StorageError`, `InterruptedConversionError`.
    """
    stretches = cut_stretches([shard.bytes for shard in source.shards], LEAST_BYTES)
    plan = ExchangeContext(
        source, stretches, options.seed, folder / PARTS_NAME, options.skip_errors, options.validate is True
    )
    with storage_errors(folder, "cannot write"):
        plan.folder.mkdir(exist_ok=True)
        _remove_others(plan)
    parts: dict[int, SortedPart] = {}
    found = samples = done = 0
    totals = [shard.samples for shard in source.shards]
    total = None if None in totals else sum(number or 0 for number in totals)
    total_bytes = sum(map(plan.bytes, range(len(stretches))))
    mean = total_bytes // total if total else _sample_bytes(source)
    jobs = options.processes_for(max(source.least_held, _SAMPLES_HELD * mean))
    for number, (part, was_there) in run_tasks(make_part, plan, range(len(stretches)), jobs=jobs):
        parts[number] = part
        found += was_there
        samples += part.samples
        done += plan.bytes(number)
        on_progress(StageProgress("spool", samples, total, done, total_bytes))
    if not samples:
        raise SourceError("samples", "there are none: every shard is empty, or all samples were left out")
    on_progress(StageProgress("spool", samples, samples, total_bytes, total_bytes))
    ordered = [parts[number] for number in range(len(stretches))]
    spooled = SpoolSource(folder, source.schema, ordered, source.noticed)
    spooled.describe(field_classes=source.field_classes)
    return spooled, [p for part in ordered for p in part.problems], found


def _sample_bytes(source: Shards) -> int:
    """Return the mean size of the first samples; 0 if it cannot be read, which `make_part` reports."""
    with suppress(SourceError):
        for block in source.read(0) if source.shards else ():
            if isinstance(block, Block) and len(block):
                some = min(len(block), _MEASURED)
                sizes = (sum(map(bytes_of, values[:some])) for values in block.columns.values())
                return sum(sizes) // some
    return 0


def make_part(plan: ExchangeContext, number: int) -> tuple[SortedPart, bool]:
    """Make one part, unless an earlier run has made it. Return the part, and whether an earlier run had made it.

    Raises `SourceError`, `StorageError`.
    """
    identity = plan.identity(number)
    found = find_part(plan.folder, number, identity)
    if found is not None:
        return found, True
    keys = SortKeys(plan.seed, number)
    with storage_errors(plan.folder, "cannot write"), PartWriter(plan.folder, number, keys) as writer:
        problems, noticed = list[Problem](), list[Noticed]()
        for shard_number in plan.stretches[number]:
            shard = plan.source.shards[shard_number]
            before = writer.samples + len(problems)
            for block in plan.source.read(shard_number):
                if isinstance(block, Noticed):
                    noticed.append(block)
                else:
                    problems += _take(plan, shard, writer, block)
                del block  # large values are freed before the next ones are read
            _compare(shard, writer.samples + len(problems) - before)
        part = writer.finish(problems, noticed)
    publish_part(plan.folder, number, identity, part)
    return part, False


def _take(plan: ExchangeContext, shard: Shard, writer: PartWriter, block: Block | Bad) -> list[Problem]:
    """Add a block; return the samples that are left out."""
    if isinstance(block, Bad):
        problem = Problem.of(f"{shard.name}, {block.called}", block.reason)
        return _left_out(plan, shard, problem, f"{block.called}: {block.reason}", block.hint)
    if not len(block):
        return []
    try:
        _check_files(plan.source.schema, block, validate=plan.validate)
        if plan.source.numbers is not None:
            block = replace(block, columns=plan.source.numbers.relabelled(block.columns, block.called))
        writer.add(encode_columns(plan.source.schema, block.columns, block.called))
    except SchemaError as error:
        if len(block) > 1:
            singly = (_take(plan, shard, writer, block.only(position)) for position in range(len(block)))
            return [problem for problems in singly for problem in problems]
        problem = Problem.of(f"{shard.name}, {block.called[0]}", str(error).removeprefix(f"{block.called[0]}, "))
        return _left_out(plan, shard, problem, str(error), hint_for(plan.source, block, str(error)))
    return []


def _check_files(schema: Schema, block: Block, *, validate: bool) -> None:
    """Raise `SchemaError` if a value of an image or audio field is not such a file; with `validate` decode it, too."""
    for name, codec in schema.variable:
        kind = ELEMENTS.get(codec, codec)
        if kind not in ("image", "audio"):
            continue
        for called, value in zip(block.called, block.columns[name], strict=True):
            listed = kind != codec and isinstance(value, list | tuple)
            for position, data in enumerate(value if listed else (value,)):
                if isinstance(data, bytes | memoryview) and (why := _why_unusable(kind, data, validate=validate)):
                    where = f"element {position}: " if listed else ""
                    raise SchemaError(f"{called}, field {name!r} ({codec}): {where}{why}")


def _why_unusable(codec: str, data: bytes | memoryview, *, validate: bool) -> str:
    """Return in words why these bytes are no file of an image or audio field; empty if they are."""
    if not data:
        return "its contents are empty"
    why = (missing_decoder(data) if codec == "audio" else "") or misfit(codec, data)
    if not why and validate:
        try:
            check_file(codec, data)
        except ValueError as error:
            return str(error)
    return why


def _left_out(plan: ExchangeContext, shard: Shard, problem: Problem, reason: str, hint: str) -> list[Problem]:
    if plan.skip:
        return [problem]
    raise SourceError(shard.name, reason, hint=f"{hint}; {SKIP_HINT}" if hint else SKIP_HINT)


def hint_for(source: Shards, block: Block, reason: str) -> str:
    """Return advice for a single sample that does not fit the schema, for this reason."""
    for name, codec in source.schema.fields:
        value = block.columns[name][0]
        if value is None and codec != "json":
            missing = "[]" if codec in ELEMENTS else "VALUE"
            return f"--null {shlex.quote(f'{name}={missing}')} replaces each missing value"
        if codec in ELEMENTS and isinstance(value, list) and any(item is None for item in value):
            if ELEMENTS[codec] in ("image", "audio"):
                return "A list of files has no missing elements: brand.pack takes rows without them"
            return f"--field {name}=json keeps missing elements"
    if ("label", "int") in source.schema.fields and isinstance(block.columns["label"][0], str) and not source.numbers:
        return "--field label=str --classes FILE numbers texts by a list of names"
    if "JSON has no" in reason:  # no other codec holds such a value, either
        return "--columns takes the fields that it names, and no others"
    return "--field NAME=CODEC stores a field with another codec"


def _compare(shard: Shard, found: int) -> None:
    if shard.samples is not None and shard.samples != found:
        what = f"it holds {counted(found, 'sample')}, and its index says {shard.samples:,}"
        raise SourceError(shard.name, what, hint="The file is truncated, or belongs to another version of the source")


def _remove_others(plan: ExchangeContext) -> None:
    """Remove parts that belong to another division of the source, so that they do not take its disk space."""
    numbers = {path.stem for path in plan.folder.iterdir()} - {f"{number:06d}" for number in range(len(plan.stretches))}
    for path in [path for path in plan.folder.iterdir() if path.stem in numbers]:
        with suppress(FileNotFoundError):
            path.unlink()
