"""The choices of a user about a conversion, all checked before anything is done.

A new segment of a collection is `Like` the existing ones: all have equal fields, chunk size and dictionary. Classes
keep their numbers, and new ones get the next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from brand.chunker.plan.plan import Layout
from brand.errors import SchemaError, UsageError
from brand.formats.compression import MODES, Compression, Mode
from brand.formats.header import Schema


@dataclass(frozen=True)
class Like:
    """The facts of the existing segments."""

    schema: Schema
    classes: tuple[str, ...] | None
    chunk_size: int
    compression: Compression

    def check(self, schema: Schema, classes: tuple[str, ...] | None) -> None:
        """Raise `SchemaError` if samples with this schema and these classes do not fit."""
        if (told := difference(self.schema, schema)) is not None:
            raise SchemaError(
                f"the new samples do not fit the collection: {told}. All samples of a collection have the same fields "
                "in the same order: convert these to a data set of their own"
            )
        known = self.classes
        if known is None and classes is None:
            return
        if known is None or classes is None or classes[: len(known)] != known:
            raise SchemaError(
                f"the classes of the new samples do not begin with the {len(known or ())} classes of the collection, "
                "so labels would change their meaning. `brand append images` and `brand append audio` give classes of "
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
    """Samples per chunk; None: 64, or the number that makes the mean chunk 4 MiB."""
    chunk_bytes: int | None = None
    """Target for the mean chunk instead, in stored bytes."""
    compression: Mode = "auto"
    """`auto` (zstandard if it saves 10 %), `zstd` or `none`."""
    labels: bool = True
    """Whether the top-level folders are classes."""
    like: Like | None = None
    """The segments of a collection that the data set will join: they decide fields, chunk size and compression."""

    jobs: int | None = None
    """Processes; None for one per core."""
    skip_errors: bool = False
    """Leave out files that cannot be used, and report them, instead of failing at the first."""
    validate: bool | None = None
    """Decode every file beforehand. None: only with `skip_errors`, because only decoding finds every bad file."""
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
        _ = self.layout

    @property
    def layout(self) -> Layout:
        """The size of the chunks. Raises `UsageError`."""
        return Layout(self.chunk_size, self.chunk_bytes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that have numbers already."""
        return () if self.like is None else self.like.classes or ()

    @property
    def with_labels(self) -> bool:
        """Whether top-level folders are classes."""
        return self.labels and (self.like is None or self.like.classes is not None)

    @property
    def processes(self) -> int:
        """Number of worker processes."""
        return self.jobs or default_jobs()

    @property
    def decode_all(self) -> bool:
        """Whether every file is decoded beforehand."""
        return self.skip_errors if self.validate is None else self.validate
