"""Why does a request for samples take its time? It waits for the data server, then for storage: each wait is a span."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brand.node.wire.draw_messages import Held


class Span(NamedTuple):
    """A time in which a batch waits for one cause. Times are those of `time.monotonic`, in seconds."""

    cause: str
    start_s: float
    end_s: float


def asked(start_s: float, waited_s: float, held: Held) -> Iterator[Span]:
    """Return the spans of a wait for the server: first the server is busy with other requests, then it holds this one.

    Returns nothing if the server was not asked.
    """
    end_s = start_s + waited_s
    parts = [("server", waited_s - sum(held)), *zip(Held._fields, held, strict=True)]
    for cause, seconds in parts:
        if seconds > 0 and start_s < end_s:
            yield Span(cause, start_s, start_s := min(end_s, start_s + seconds))
