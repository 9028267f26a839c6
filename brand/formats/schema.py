"""Which fields does a sample have, and how is each field stored?

A schema is an ordered list of (name, codec). `Schema.parse` checks the schema of a user or a file; the rest of Brand
may then rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from brand.errors import SchemaError
from brand.formats.constants import MAX_FIELDS

FIXED: Final = {"int": "q", "float": "d"}
"""Codecs of fixed size (8 bytes), with their `struct` letter."""

VARIABLE: Final = ("str", "bytes", "json", "ndarray", "image", "audio")
CODECS: Final = (*FIXED, *VARIABLE)

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def is_field_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Schema:
    """The fields of a data set, in storage order."""

    fields: tuple[tuple[str, str], ...] = field()
    """(name, codec) of each field."""

    @classmethod
    def parse(cls, fields: Mapping[str, str] | Iterable[tuple[str, str]]) -> Schema:
        """Check names and codecs. Raises `SchemaError` that names the wrong one and lists the allowed ones."""
        items = tuple(fields.items()) if isinstance(fields, Mapping) else tuple((n, c) for n, c in fields)
        if not 1 <= len(items) <= MAX_FIELDS:
            raise SchemaError(f"a schema has 1 to {MAX_FIELDS} fields, this one has {len(items)}")
        seen: set[str] = set()
        for name, codec in items:
            if not isinstance(name, str) or not is_field_name(name):
                raise SchemaError(f"field name {name!r}: use letters, digits and '_', at most 63, not a digit first")
            if name in seen:
                raise SchemaError(f"field {name!r} occurs twice in the schema")
            if name == "index":
                raise SchemaError("field name 'index' is reserved: every sample has its index automatically")
            if codec not in CODECS:
                raise SchemaError(f"field {name!r}: unknown codec {codec!r}; there are {', '.join(CODECS)}")
            if name == "key" and codec != "str":
                raise SchemaError(f"field 'key' names a sample and must be 'str', not {codec!r}")
            seen.add(name)
        return cls(items)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in storage order."""
        return tuple(name for name, _ in self.fields)

    @cached_property
    def fixed(self) -> tuple[tuple[str, str], ...]:
        """(name, codec) of the fields of fixed size."""
        return tuple(f for f in self.fields if f[1] in FIXED)

    @cached_property
    def variable(self) -> tuple[tuple[str, str], ...]:
        """(name, codec) of the fields of variable size."""
        return tuple(f for f in self.fields if f[1] not in FIXED)

    def codec(self, name: str) -> str:
        """Return the codec of a field. Raises `SchemaError` for an unknown name."""
        for field_name, codec in self.fields:
            if field_name == name:
                return codec
        raise SchemaError(f"no field {name!r}; this data set has {', '.join(self.names)}")
