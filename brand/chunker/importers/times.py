"""Dates, times and durations as texts in ISO 8601, to the nanosecond: equal to those of pandas, with it or without.

2024-02-29T12:00:00.000000001    timestamp       P1DT2H3M4.5S    duration
12:00:00.000000001               time of day     2024-02-29      date
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any, Final

UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Unit of Arrow -> how many a second has."""


def moment_text(moment: datetime | time, nanoseconds: int = 0) -> str:
    """Return a point in time as text; `nanoseconds` (0 to 999) follow its microseconds."""
    if not nanoseconds:
        return moment.isoformat()
    text = moment.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{nanoseconds:03}{text[end:]}"


def duration_text(count: int, a_second: int) -> str:
    """Return a duration of `count` units as text, of which `a_second` make a second; days may be negative."""
    seconds, part = divmod(count, a_second)
    days, seconds = divmod(seconds, 86_400)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f"{part * (10**9 // a_second):09}".rstrip("0")
    return f"P{days}DT{hours}H{minutes}M{seconds}{f'.{fraction}' if fraction else ''}S"


def plain_text(value: Any) -> Any:
    """Return a date, a time or a duration of Python as text, and any other value unchanged."""
    if isinstance(value, timedelta):
        return duration_text(value // timedelta(microseconds=1), 10**6)
    return value.isoformat() if isinstance(value, date | time) else value
