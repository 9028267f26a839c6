"""What a conversion tells while it runs (`Progress`) and when it is done (`Report`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one stage of a conversion is."""

    stage: str
    """`scan`, `check`, `spool` or `pack`."""
    samples: int
    """Samples done."""
    total: int | None
    """Samples in all; None where that is not known yet."""
    bytes: int
    """Source bytes done."""
    total_bytes: int | None
    """Source bytes in all; None where that is not known."""


OnProgress = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file of the source that cannot be used, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What a conversion did, or would do (`dry_run`)."""

    target: str
    samples: int
    classes: int | None
    chunks: int
    chunk_size: int
    source_bytes: int
    stored_bytes: int
    """Bytes of the stored samples; an estimate from a probe in a dry run."""
    compression: str
    dictionary_bytes: int
    skipped: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """Facts that the user may want to know, in sentences."""
    chunks_found: int = 0
    """Chunks that an earlier, interrupted run had finished."""
    seconds: float = 0.0
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)
