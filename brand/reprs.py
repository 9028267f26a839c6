"""A line about an object for logs and debuggers, made from the fields that its class names."""

from __future__ import annotations

from collections.abc import Sized
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, Final

_LONGEST: Final = 4
"""Longer collections are shown by their length."""


class Reprs:
    """Gives a class its `__repr__`: `class Executor(Reprs, shows="depth _reads _results")`.

    A name may be a path, such as `_state.core.peers`. Long collections, queues and arrays are shown by their length,
    and fields that are not set yet are left out. Do not name a field that holds a secret.
    """

    __slots__ = ()
    _shows: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, shows: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if shows:
            cls._shows = tuple(shows.split())

    def __repr__(self) -> str:
        fields = []
        for path in self._shows:
            try:
                value = attrgetter(path)(self)
            except AttributeError:
                continue
            fields.append(f"{path.rpartition('.')[2].lstrip('_')}={_in_short(value)}")
        return f"{type(self).__name__}({', '.join(fields)})"


def _in_short(value: Any) -> str:
    match value:
        case bool() | None | str():
            return repr(value)
        case bytes() | bytearray():
            return f"{len(value):,} B"
        case Enum():
            return value.name
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case _ if hasattr(value, "qsize"):
            return f"{value.qsize():,} items"
        case list() | tuple() | set() | frozenset() | dict() if len(value) <= _LONGEST and _plain(value):
            return repr(value)
        case Sized() if type(value).__module__.partition(".")[0] != "brand":
            return f"{len(value):,} items"
        case _:
            return repr(value)


def _plain(values: Any) -> bool:
    scalars = (int, float, str, type(None))
    every = [*values, *values.values()] if isinstance(values, dict) else values
    return all(isinstance(each, scalars) for each in every)
