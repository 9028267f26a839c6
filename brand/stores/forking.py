"""May this process access a store? No, if it was forked from a process that has done so.

The threads of the libraries that access stores do not exist in a forked process, and a request there waits for ever.
So a request in a forked process is an error at once, and the message names the remedy.
"""

from __future__ import annotations

import os

from brand.errors import UsageError

_spoken = False
"""Whether this process, or one that it was forked from, has accessed a store."""
_forked = False
"""Whether this process was forked from one that had."""


def note_use() -> None:
    """Record that this process is about to access a store. Raises `UsageError` if it must not."""
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
