"""The result of one check: its subject, whether that works, and the next step if it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "problem"]
"""`missing`: an optional package is not installed, and Brand works without it. `problem`: something does not work."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    part: str
    """The heading in the report: `installed`, `system`, `limits`, `data set`, `self-test`."""
    name: str
    state: State
    told: str
    """The result, in a sentence or less."""
    cure: str = ""
    """The next step; empty if there is none."""
    seconds: float | None = None
    """Duration of a step of the self-test; None for all other checks."""
