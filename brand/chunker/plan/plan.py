"""The choices of a user about a conversion, and the decisions that follow: chunk size, compression, header, identity.

All is checked and decided before anything is written. A new segment of a collection is `Like` the existing ones: all
have equal fields, chunk size and dictionary. Classes keep their numbers, and new ones get the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import xxhash

from brand.errors import SchemaError, UsageError, counted
from brand.formats.compression import MODES, Compression, Mode, choose
from brand.formats.constants import MAX_CHUNK_SAMPLES
from brand.formats.header import DecodeDefault, Header, Schema, canonical_json, pack_header
from brand.printable import printable

USUAL_SAMPLES: Final = 64
"""Samples per chunk, as the paper recommends (section 5.5)."""
LEAST_BYTES: Final = 4 << 20
"""The smallest mean chunk: if samples are small, a chunk holds more than the usual number."""
NO_DEFAULTS: Final[Mapping[str, DecodeDefault]] = MappingProxyType({})
MOST_BYTES: Final = 256 << 20
"""The largest mean chunk: if samples are large, a chunk holds fewer than the usual number, at least one."""
_SAMPLES_BYTES: Final = 1 << 30
_MARGIN: Final = 0.97
"""Estimated sizes are multiplied by this factor, so that the mean chunk reaches `LEAST_BYTES` in spite of errors."""


@dataclass(frozen=True)
class Layout:
    """The size of chunks that a user asks for: in samples, in bytes, or neither. Raises `UsageError` for both."""

    chunk_size: int | None = None
    """Samples per chunk."""
    chunk_bytes: int | None = None
    """Target for the mean chunk, in stored bytes."""

    def __post_init__(self) -> None:
        if self.chunk_size is not None and self.chunk_bytes is not None:
            raise UsageError("give a chunk size in samples or in bytes, not both")
        if self.chunk_size is not None and not 1 <= self.chunk_size <= MAX_CHUNK_SAMPLES:
            raise UsageError(f"chunk size {self.chunk_size}: a chunk has 1 to {MAX_CHUNK_SAMPLES:,} samples")
        if self.chunk_bytes is not None and self.chunk_bytes < 1:
            raise UsageError(f"chunk bytes {self.chunk_bytes}: a chunk has at least one byte")


@dataclass(frozen=True)
class ChunkPlan:
    """All decisions that are made before the first chunk is written."""

    header: Header
    compression: Compression
    data_set_id: bytes
    packed_header: bytes
    raw_bytes: int
    """Raw bytes of all records; an estimate if the source does not know them."""

    @property
    def stored_bytes(self) -> int:
        """Estimate of the stored bytes."""
        return round(self.raw_bytes * self.compression.expected_ratio)


def make_plan(  # noqa: PLR0913 - a keyword each
    *,
    samples: int,
    raw_bytes: int | None,
    probe: Sequence[bytes],
    compression: Mode | Compression,
    layout: Layout,
    schema: Schema,
    names: Mapping[str, tuple[str, ...]],
    seed: int,
    source: Mapping[str, str],
    fingerprint: str,
    decode: Mapping[str, DecodeDefault] = NO_DEFAULTS,
) -> ChunkPlan:
    """Decide everything.

    `probe` holds records of randomly placed samples. `raw_bytes` is None if the source does not know it; the probe
    then gives an estimate. A mode of compression is judged by the probe. `names` has the classes of `label`, and those
    of other fields.
    """
    probe_bytes = sum(map(len, probe))
    raw = raw_bytes if raw_bytes is not None else round(probe_bytes / len(probe) * samples)
    chunks = max(1, min(-(-samples // USUAL_SAMPLES), raw // LEAST_BYTES))
    compression = compression if isinstance(compression, Compression) else choose(compression, probe, samples, chunks)
    exact = raw_bytes is not None and compression.codec == "none"
    size = chunk_samples(samples, raw * compression.expected_ratio * (1 if exact else _MARGIN), layout)
    others = dict(names)
    labels = others.pop("label", None) if ("label", "int") in schema.fields else None
    header = Header(samples, size, schema, labels, compression.codec, seed, dict(source), dict(decode), others)
    seen = xxhash.xxh3_128()
    for record in probe:
        seen.update(record)
    identity = canonical_json(
        {
            "header": header.to_json(),
            "source": fingerprint,
            "probe": seen.hexdigest(),
            "dictionary": compression.dictionary.hex(),
        }
    )
    return ChunkPlan(header, compression, xxhash.xxh3_128_digest(identity), pack_header(header), raw)


def chunk_samples(samples: int, stored_bytes: float, layout: Layout) -> int:
    """Return the number of samples in a chunk.

    Chunks of small samples are filled evenly: the last one is never a small rest if the others can be a little larger.
    If the usual number of samples is more than `MOST_BYTES`, a chunk holds those that fit.
    """
    if layout.chunk_size is not None:
        return layout.chunk_size
    if layout.chunk_bytes is not None:
        chunks = max(1, round(stored_bytes / layout.chunk_bytes))
        return min(MAX_CHUNK_SAMPLES, -(-samples // chunks))
    chunks = max(1, int(stored_bytes / LEAST_BYTES))
    most = max(1, int(MOST_BYTES * samples / max(1.0, stored_bytes)))
    return min(MAX_CHUNK_SAMPLES, max(min(USUAL_SAMPLES, most), -(-samples // chunks)))


@dataclass(frozen=True)
class Like:
    """The facts of the existing segments."""

    schema: Schema
    classes: tuple[str, ...] | None
    chunk_size: int
    compression: Compression
    decode: Mapping[str, DecodeDefault]
    """How images of the collection are decoded, whatever the source of new ones says."""
    field_classes: Mapping[str, tuple[str, ...]]
    """Names of the values of other fields than `label`."""

    def check(
        self, schema: Schema, classes: tuple[str, ...] | None, field_classes: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Raise `SchemaError` if samples with this schema and these classes do not fit."""
        if (told := difference(self.schema, schema)) is not None:
            raise SchemaError(
                f"the new samples do not fit the collection: {told}. All samples of a collection have the same fields "
                "in the same order: convert these to a data set of their own"
            )
        for name in sorted(self.field_classes.keys() | field_classes.keys()):
            if self.field_classes.get(name) != field_classes.get(name):
                raise SchemaError(
                    f"the values of field {name!r} have other names than in the collection, so they would change their "
                    "meaning: convert these samples to a data set of their own"
                )
        known = self.classes
        if known is None and classes is None:
            return
        if known is None or classes is None or classes[: len(known)] != known:
            raise SchemaError(
                "the classes of the new samples do not begin with the "
                f"{counted(len(known or ()), 'class', 'classes')} of the collection, so labels would "
                "change their meaning. `brand append images` and `brand append audio` give classes of "
                "the same name their old numbers"
            )


def difference(known: Schema, new: Schema) -> str | None:
    """Return in words how a schema differs from the known one; None if it does not."""
    if known.fields == new.fields:
        return None
    here, there = dict(known.fields), dict(new.fields)
    if lost := [name for name in here if name not in there]:
        return f"they have no field {lost[0]!r}"
    if more := [name for name in there if name not in here]:
        return f"they have a field {more[0]!r}, which the collection does not have"
    if other := [name for name in here if here[name] != there[name]]:
        return f"field {other[0]!r} is {there[other[0]]}, and {here[other[0]]} in the collection"
    return f"their fields are in the order {', '.join(there)}, and {', '.join(here)} in the collection"


def check_classes(classes: Sequence[str]) -> None:
    """Raise `UsageError` unless there are classes, each with a name of its own."""
    twice = (
        next((name for number, name in enumerate(classes) if name in classes[:number]), None)
        if (len(set(classes)) < len(classes))
        else None
    )
    if isinstance(classes, str) or not classes:
        raise UsageError(f"classes={classes!r}: give the names of the classes, in the order of their labels")
    if twice is not None:
        raise UsageError(f"the class {printable(twice)!r} is named twice: each label has one name")


def default_jobs() -> int:
    """Return the number of processes without an option: one for each core that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Options:
    """The options of a conversion.

    The first group determines the bytes that are written, the second how the work is done. Raises `UsageError` if a
    value is out of range.
    """

    seed: int = 0
    """Seed of the shuffle."""
    chunk_size: int | None = None
    """Samples per chunk; None: 64, or the number that makes the mean chunk at least 4 and at most 256 MiB."""
    chunk_bytes: int | None = None
    """Target for the mean chunk instead, in stored bytes."""
    compression: Mode = "auto"
    """`auto` (zstandard if it saves 10 %), `zstd` or `none`."""
    labels: bool = True
    """Whether folders are classes."""
    classes: tuple[str, ...] | None = None
    """Names of the classes, in the order of their labels; other classes are an error. None: those of the source."""
    natural_order: bool = False
    """Sort the folders' names as people do: `c2` before `c10`."""
    leaf_classes: bool = False
    """The folder that holds a file is its class, not the top-level folder."""
    split: str | None = None
    """The split or configuration to convert, of a source that has several; `all` takes all files together."""
    like: Like | None = None
    """The segments of a collection that the data set will join: they decide fields, chunk size and compression."""

    jobs: int | None = None
    """Processes; None for one per core."""
    skip_errors: bool = False
    """Leave out files that cannot be used, and report them, instead of failing at the first."""
    validate: bool | None = None
    """Decode every image and audio file before it is stored.

    None: in a folder only with `skip_errors`, because only decoding finds every bad file; in data of other tools never.
    """
    follow_links: bool = False
    """Follow symbolic links that lead out of the source, or to folders."""
    dry_run: bool = False
    """Decide everything and write nothing."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"{self.jobs} processes: at least one is needed")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed}: a seed is a whole number from 0 to 2^64 - 1")
        if self.compression not in MODES:
            raise UsageError(f"compression {self.compression!r}: give one of {', '.join(MODES)}")
        if self.classes is not None:
            check_classes(self.classes)
        if not self.labels and (self.classes is not None or self.natural_order or self.leaf_classes):
            raise UsageError("without labels there are no classes to order: leave out --no-labels")
        _ = self.layout

    @property
    def layout(self) -> Layout:
        """The size of the chunks. Raises `UsageError`."""
        return Layout(self.chunk_size, self.chunk_bytes)

    @property
    def known_classes(self) -> tuple[str, ...]:
        """Classes that have numbers already."""
        return self.classes or (() if self.like is None else self.like.classes or ())

    @property
    def with_labels(self) -> bool:
        """Whether folders are classes."""
        return self.labels and (self.like is None or self.like.classes is not None)

    @property
    def processes(self) -> int:
        """Number of worker processes."""
        return self.jobs or default_jobs()

    def processes_for(self, held_bytes: int) -> int:
        """Return the number of worker processes, each of which holds this many bytes of samples.

        If the user gives no number, the processes together hold at most 1 GiB, unless one alone holds more.
        """
        return self.jobs or max(1, min(default_jobs(), _SAMPLES_BYTES // max(1, held_bytes)))

    @property
    def decode_all(self) -> bool:
        """Whether every file is decoded beforehand."""
        return self.skip_errors if self.validate is None else self.validate
