"""What does a conversion tell while it runs (`StageProgress`) and when it is done (`Report`)?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from brand.printable import escaped, printable


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far one stage of a conversion is."""

    stage: str
    """`scan`, `check`, `spool`, `pack` or `seal`; `wait` while another machine makes the plan."""
    samples: int
    """Samples done; with `wait`, seconds."""
    total: int | None
    """Samples in all; None where that is not known yet."""
    bytes: int
    """Source bytes done."""
    total_bytes: int | None
    """Source bytes in all; None where that is not known."""


OnProgress = Callable[[StageProgress], None]


def silent(_: StageProgress) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file of the source that cannot be used, and why."""

    path: str
    """Below the source folder, as `skipped.tsv` has it: `brand.printable.unescaped` gives the name itself."""
    reason: str
    """On one line."""

    @classmethod
    def of(cls, name: str, reason: str) -> Problem:
        """A problem from any name and any reason; escapes the name, and puts the reason on one line."""
        return cls(escaped(name), printable(" ".join(reason.split())))


@dataclass(frozen=True)
class Report:
    """What a conversion did, or would do (`dry_run`)."""

    target: str
    """Folder of the data set."""
    samples: int
    """Samples in the data set."""
    classes: tuple[str, ...] | None
    """Names of the classes, by label; None where the set has no labels."""
    chunks: int
    """Number of chunk files."""
    chunk_size: int
    """Samples a chunk."""
    source_bytes: int
    """Bytes of all records before compression: the files or values, and their keys and labels."""
    stored_bytes: int
    """Bytes of the stored samples; an estimate from a probe in a dry run."""
    compression: str
    """`none` or `zstd`."""
    dictionary_bytes: int
    """Size of the trained dictionary; 0 where there is none."""
    skipped: tuple[Problem, ...] = ()
    """Files of the source that were left out, by path."""
    notes: tuple[str, ...] = ()
    """Facts that the user may want to know, in sentences."""
    chunks_found: int = 0
    """Chunks that an earlier, interrupted run had finished."""
    seconds: float = 0.0
    """How long it took; an estimate in a dry run."""
    dry_run: bool = False
    """Whether this was a dry run, which writes nothing."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class TaskReport:
    """What one part of a conversion did."""

    target: str
    """Folder of the data set."""
    part: str
    """Which part, as `3/8`."""
    first: int
    """Number of its first chunk."""
    chunks: int
    """How many chunks it has."""
    chunks_found: int
    """How many of them had been made before."""
    samples: int
    """Samples in them."""
    source_bytes: int
    """Bytes of these samples before compression."""
    chunks_in_all: int
    """Chunks of the whole data set."""
    chunks_missing: int
    """Chunks of the whole data set that no part has made yet."""
    seconds: float
    """How long it took."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)
