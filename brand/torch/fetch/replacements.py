"""What does the log say of replaced samples? One line for each chunk and process, and then counts.

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
"""How often the log sums up further replacements."""

log = logging.getLogger("brand")

_all: weakref.WeakSet[Replacements] = weakref.WeakSet()


class Replacements:
    """Writes replacements to the log, from any thread. Picklable; begins anew in another process."""

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
        """Sample `by` has replaced sample `index`, which cannot be read."""
        now_s = time.monotonic()
        with self._lock:
            sums = list(self._repeats.overdue(now_s))
            told = self._repeats.tell(-1 if error.chunk is None else error.chunk, now_s)
        _sum_up(sums)
        if told:
            log.warning("sample %d is replaced by sample %d: %s", index, by, error)

    def epoch_ended(self) -> None:
        """Sum up the replacements that were counted."""
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
    """A forked child must not wait for a lock that a thread of its parent holds, nor repeat its parent's lines."""
    for replacements in list(_all):
        replacements._begin_anew()


os.register_at_fork(after_in_child=_begin_anew_in_child)
