"""All checks, one after the other, as `brand doctor` shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brand.doctor import folder, limits, packages, selftest, system
from brand.doctor.finding import CheckResult

OnProgress = Callable[[str, int, int], None]
"""Receives the stage (`import`, `self-test`), the number of steps that are done, and the number of all steps."""


def examine(where: Path | str | None, on_progress: OnProgress) -> list[CheckResult]:
    """Check this installation and this machine, and the data set at `where` if one is given.

    Faults raise no error: each is a `CheckResult`. Takes some seconds.
    """
    found = packages.look(lambda done, total: on_progress("import", done, total))
    found += system.look()
    found += limits.look()
    if where is not None:
        found += folder.look(where)
    return found + selftest.look(lambda done, total: on_progress("self-test", done, total))
