"""Which value does a sample of a mixture have in a field that its member lacks? The one that the user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError, UsageError
from brand.formats.header import Schema
from brand.formats.record import RecordDecoder, Records, encode_columns
from brand.reprs import Reprs

_MEDIA = ("image", "audio", "list[image]", "list[audio]")


class FilledField(Reprs, shows="_value"):
    """The value of one field, stored as a record of this field alone, so that samples get what a member would store.

    Raises `SchemaError` if the value does not fit the codec.
    """

    def __init__(self, name: str, codec: str, value: Any) -> None:
        schema = Schema.parse({name: codec})
        [self._record] = encode_columns(schema, {name: [value]}, [f"fill={{{name!r}: ...}}"])
        self._decoder = RecordDecoder(schema, [name])
        [self._one] = self._decoder.columns(Records.of([self._record]))
        """A column of one value."""
        self._value = self._one.tolist()[0] if isinstance(self._one, np.ndarray) else self._one[0]

    def column(self, count: int) -> NDArray[Any] | list[Any]:
        """Return the value `count` times: an array of an `int` or `float` field, otherwise a list."""
        if isinstance(self._one, np.ndarray):
            return np.repeat(self._one, count)
        return [self.value() for _ in range(count)]

    def value(self) -> Any:
        """Return the value as a sample has it. A transform may change it in place, unless its type is immutable."""
        if isinstance(self._value, int | float | str | bytes):
            return self._value
        [column] = self._decoder.columns(Records.of([self._record]))
        return column[0]


def filled_fields(schemas: Sequence[Mapping[str, str]], fill: Mapping[str, Any]) -> dict[str, FilledField]:
    """Return the fields that some members lack, by name, with their values. `schemas`: field -> codec, by member.

    Raises `SchemaError` if a value does not fit its field; `UsageError` if all members have the field, or none.
    """
    if not isinstance(fill, Mapping):
        raise UsageError(f"fill= is a {type(fill).__name__}: give a dict, fill={{'caption': ''}}")
    found = {}
    for name, value in fill.items():
        codecs = [schema[name] for schema in schemas if name in schema]
        if not codecs or len(codecs) == len(schemas):
            has = "every member has" if codecs else "no member has"
            raise UsageError(f"fill= names {name!r}, which {has}: leave it out")
        if len(set(codecs)) > 1:
            raise SchemaError(f"field {name!r} is {' and '.join(sorted(set(codecs)))} in members of the Mixture")
        if codecs[0] in _MEDIA:
            raise UsageError(f"fill= names {name!r}, a field of {codecs[0]} files: it gives numbers, texts and arrays")
        found[name] = FilledField(name, codecs[0], value)
    return found
