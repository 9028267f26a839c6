"""How does the log report replaced samples? With one line for each chunk and process, and then with counts.

Otherwise a missing chunk would cause a line for each of its samples.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Final

from brand.errors import FormatError, counted
from brand.node.serve.repeats import Repeats

EVERY_S: Final = 30.0
"""Seconds between two log lines that sum up further replacements."""

log = logging.getLogger("brand")

_all: weakref.WeakSet[Replacements] = weakref.WeakSet()


class Replacements:
    """Writes replacements to the log, from any thread.

    Can be pickled; a copy in another process begins with no counts.
    """

    def __init__(self) -> None:
        self._begin_anew()
        _all.add(self)

    def _begin_anew(self) -> None:
        self._lock, self._repeats = threading.Lock(), Repeats[int](EVERY_S)

    def __reduce__(self) -> tuple[type[Replacements], tuple[()]]:
        return Replacements, ()

    def __repr__(self) -> str:
        return f"Replacements({self._repeats.counted} counted and not told)"

    def note(self, index: int, by: int, error: FormatError) -> None:
        """Log or count that sample `by` has replaced sample `index`, which cannot be read."""
        now_s = time.monotonic()
        with self._lock:
            sums = list(self._repeats.overdue(now_s))
            told = self._repeats.tell(-1 if error.chunk is None else error.chunk, now_s)
        _sum_up(sums)
        if told:
            log.warning("sample %d is replaced by sample %d: %s", index, by, error)

    def epoch_ended(self) -> None:
        """Log the sum of the replacements that were counted."""
        with self._lock:
            sums = list(self._repeats.rest(time.monotonic()))
        _sum_up(sums)


def _sum_up(sums: Iterable[tuple[int, int, float]]) -> None:
    samples = [count for _, count, _ in sums]
    if samples:
        longest = max(seconds for _, _, seconds in sums)
        what = f"{counted(sum(samples), 'more sample')} of {counted(len(samples), 'chunk')}"
        log.warning("%s replaced within %.0f s; stats()['replaced'] lists them", what, longest)


def _begin_anew_in_child() -> None:
    """Reset the counts and locks in a forked child.

    The child must not wait for a lock that a thread of its parent holds, nor repeat its parent's lines.
    """
    for replacements in list(_all):
        replacements._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_in_child)
