"""A source that must be read from the front: the Protocol that each file format implements.

A `Shard` is a stretch that one process reads from its front to its end: a tar file, a few row groups of a Parquet file,
some megabytes of a JSONL file. `Shards` is the interface: each file format (`importers`) is one class with these
methods, and knows nothing of processes, runs or chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brand.formats.header import Schema


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


class Shards(Protocol):
    """A source of shards. Picklable: workers receive it, and open the files themselves."""

    @property
    def kind(self) -> str:
        """The source's format, by its name in the header and in the command."""

    @property
    def shards(self) -> Sequence[Shard]:
        """All shards, in the order of the source."""

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the values of `label`; None if there are none."""

    @property
    def choice(self) -> str:
        """The options that change the samples (`--null`), as a text that is equal for equal options."""

    @property
    def notes(self) -> Sequence[str]:
        """Facts about the source for the report, in sentences."""

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the samples of one shard, in order, in bounded memory.

        Raises `SourceError` that names the shard if the rest of it cannot be read.
        """
