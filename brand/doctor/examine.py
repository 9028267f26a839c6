"""All checks, one after the other: what `brand doctor` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brand.doctor import folder, limits, packages, selftest, system
from brand.doctor.finding import CheckResult

OnProgress = Callable[[str, int, int], None]
"""Is told the stage (`import`, `self-test`), how many steps of it are done, and how many there are."""


def examine(where: Path | str | None, on_progress: OnProgress) -> list[CheckResult]:
    """Check this installation and this machine, and the data set at `where` if one is given.

    Raises no error for what it finds: each fault is a `CheckResult`. Takes some seconds.
    """
    found = packages.look(lambda done, total: on_progress("import", done, total))
    found += system.look()
    found += limits.look()
    if where is not None:
        found += folder.look(where)
    return found + selftest.look(lambda done, total: on_progress("self-test", done, total))
