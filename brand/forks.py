"""Functions that run in a forked child, on systems that can fork a process."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_in_child(act: Callable[[], object]) -> None:
    """Call `act` in each child that this process forks, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=act)
