"""What does one check say? What it looked at, whether that is all right, and the next step where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "problem"]
"""`missing`: something optional is not there, and Brand works without it. `problem`: something does not work."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    part: str
    """The heading under which people read it: `installed`, `system`, `limits`, `data set`, `self-test`."""
    name: str
    state: State
    told: str
    """What was found, in a sentence or less."""
    cure: str = ""
    """The next step; empty where there is none."""
    seconds: float | None = None
    """How long a step of the self-test took; None for all other checks."""
