"""May this process speak to a store? Not where it was forked from a process that has done so.

The threads of the libraries that speak to stores do not live on in a forked process, and a request there waits for
ever. So a forked process is refused, with the cure, before it waits.
"""

from __future__ import annotations

import os

from brand.errors import UsageError

_spoken = False
"""Whether this process, or one that it was forked from, has spoken to a store."""
_forked = False
"""Whether this process was forked from one that had."""


def note_use() -> None:
    """This process is about to speak to a store. Raises `UsageError` where it may not."""
    global _spoken
    if _forked:
        raise UsageError(
            "this process was forked from one that has read from an object store, and would wait for ever: start it"
            " with multiprocessing's 'spawn' or 'forkserver', or read through a BrandDataset, whose server reads for it"
        )
    _spoken = True


def _note_fork() -> None:
    global _forked
    _forked = _forked or _spoken


os.register_at_fork(after_in_child=_note_fork)
