"""The progress of a conversion while it runs (`StageProgress`), and its result (`Report`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from brand.formats.noticed import Noticed
from brand.printable import escaped, printable


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The progress of one stage of a conversion."""

    stage: str
    """`scan`, `check`, `spool`, `pack` or `seal`; `wait` while another machine makes the plan."""
    samples: int
    """Samples done; with `wait`, seconds."""
    total: int | None
    """Samples in all; None if that is not known yet."""
    bytes: int
    """Source bytes done."""
    total_bytes: int | None
    """Source bytes in all; None if that is not known."""


OnProgress = Callable[[StageProgress], None]


def silent(_: StageProgress) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file of the source that cannot be used, and the reason."""

    path: str
    """Path below the source folder, as in `skipped.tsv`: `brand.printable.unescaped` returns the name itself."""
    reason: str
    """The reason, on one line."""

    @classmethod
    def of(cls, name: str, reason: str) -> Problem:
        """Return a problem from any name and any reason; escapes the name, and puts the reason on one line."""
        return cls(escaped(name), printable(" ".join(reason.split())))


@dataclass(frozen=True)
class Report:
    """The result of a conversion, or of a dry run (`dry_run`)."""

    target: str
    """Folder of the data set."""
    samples: int
    """Samples in the data set."""
    classes: tuple[str, ...] | None
    """Names of the classes, by label; None if the data set has no labels."""
    chunks: int
    """Number of chunk files."""
    chunk_size: int
    """Samples per chunk."""
    source_bytes: int
    """Bytes of all records before compression: the files or values, and their keys and labels."""
    stored_bytes: int
    """Bytes of the stored samples; an estimate from a probe in a dry run."""
    compression: str
    """`none` or `zstd`."""
    dictionary_bytes: int
    """Size of the trained dictionary; 0 if there is none."""
    skipped: tuple[Problem, ...] = ()
    """Files of the source that were left out, by path."""
    notes: tuple[str, ...] = ()
    """Facts that the user may want to know, in sentences."""
    noticed: tuple[Noticed, ...] = ()
    """What was noticed about the source and the samples, with counts; also in the manifest."""
    chunks_found: int = 0
    """Chunks that an earlier, interrupted run had finished."""
    seconds: float = 0.0
    """Duration; an estimate in a dry run."""
    dry_run: bool = False
    """Whether this was a dry run, which writes nothing."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return asdict(self) | {"noticed": [fact.to_json() for fact in self.noticed]}


@dataclass(frozen=True)
class TaskReport:
    """The result of one task of a conversion."""

    target: str
    """Folder of the data set."""
    task: str
    """The task, as `3/8`."""
    first: int
    """Number of the first chunk of the task."""
    chunks: int
    """Number of chunks of the task."""
    chunks_found: int
    """Chunks of the task that had been made before."""
    samples: int
    """Samples in these chunks."""
    source_bytes: int
    """Bytes of these samples before compression."""
    chunks_in_all: int
    """Chunks of the whole data set."""
    chunks_missing: int
    """Chunks of the whole data set that no task has made yet."""
    seconds: float
    """Duration in seconds."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return asdict(self)
