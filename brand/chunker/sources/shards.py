"""A source that must be read from the front: which shards does it consist of, and what do they hold?

A `Shard` is a stretch that one process reads from its front to its end: a tar file, a few row groups of a Parquet file,
some megabytes of a JSONL file. `Shards` is the seam: each file format (`importers`) is one class with these methods,
and knows nothing of processes, runs or chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brand.formats.schema import Schema


@dataclass(frozen=True, slots=True)
class Shard:
    """One stretch of a source."""

    name: str
    """As messages show it: mostly the file, below the source."""
    bytes: int
    """Stored bytes, for progress and for cutting the work."""
    mark: str
    """What changes when the contents change: size and date of the file, and which stretch of it this is."""
    samples: int | None = None
    """How many samples the source says that it has; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples that follow each other in a shard, as columns."""

    columns: Mapping[str, Sequence[Any]]
    """Field -> its values. Columns of numbers may be arrays of int64 or float64."""
    called: Sequence[str]
    """What messages call each sample: `line 12`."""

    def __len__(self) -> int:
        return len(self.called)

    def only(self, position: int) -> Block:
        """A block of one of these samples."""
        some = slice(position, position + 1)
        return Block({name: values[some] for name, values in self.columns.items()}, self.called[some])


@dataclass(frozen=True, slots=True)
class Bad:
    """A sample that cannot be used, in place of a block. The reader goes on behind it."""

    called: str
    """What messages call it: `line 12`."""
    reason: str
    hint: str = ""
    """What the user can do."""


class Shards(Protocol):
    """A source of shards. Picklable: workers get it, and open the files themselves."""

    @property
    def kind(self) -> str:
        """The source's format, as the header tells it and as the command calls it."""

    @property
    def shards(self) -> Sequence[Shard]:
        """All of them, in the order of the source."""

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the values of `label`; None where there are none."""

    @property
    def choice(self) -> str:
        """What the user chose that changes the samples (`--null`), as a text that is the same for the same choice."""

    @property
    def notes(self) -> Sequence[str]:
        """What the report tells about the source, in sentences."""

    def read(self, number: int) -> Iterator[Block | Bad]:
        """The samples of one shard, in order, in bounded memory.

        Raises `SourceError` that names the shard where the rest of it cannot be read.
        """
