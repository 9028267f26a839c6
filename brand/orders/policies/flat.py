"""The JSON of the two policies of version 1: one flat record that has the fields of both.

States contain this record, so it does not change. A later policy writes only its own fields, as `Policy` does.
"""

from __future__ import annotations

from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from brand.orders.base.policy import Policy, check_names, check_type
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.slots import REFILLS

_RECORD: Final[dict[str, Sequence[Any]]] = {
    "stripe": range(1, MAX_POSITIONS + 1),
    "refill": REFILLS,
    "nodes": range(1, 2),
    "ranks": range(1, 2),
    "window": range(1),
    "remote": range(1),
}
"""The fields in the order of writing. A policy that does not use a field accepts these values and writes the first."""
_ALWAYS: Final = ["group_chunks", "stripe", "refill"]
"""The fields of every record.

A record has another field only if the value differs from the first value in `_RECORD`.
"""


@dataclass(frozen=True)
class FlatPolicy(Policy):
    """A policy of version 1, whose JSON is the flat record."""

    def to_json(self) -> dict[str, Any]:
        """Return the record."""
        record = {"group_chunks": self.group_chunks}
        for name, unused in _RECORD.items():
            value = getattr(self, name, unused[0])
            if name in _ALWAYS or value != unused[0]:
                record[name] = value
        return record

    @classmethod
    def from_json(cls, values: Values[str, Any]) -> Self:
        """Read the output of `to_json`. Raises ValueError if it is invalid."""
        check_names(values, _ALWAYS, ["group_chunks", *_RECORD], cls.name)
        used = {field.name for field in fields(cls)}
        for name in values.keys() - used:
            check_type(name, values[name], type(_RECORD[name][0]))
            if values[name] not in _RECORD[name]:
                raise ValueError(f"{name}={values[name]!r} of an order of {cls.name}, which does not depend on it")
        return cls(**{name: value for name, value in values.items() if name in used})
