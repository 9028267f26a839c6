"""Which columns of a source become fields, under which names and with which codecs, and what replaces a missing value?

A source has columns, each with a codec of its own. `FieldMapping` has the options of the user. `Fields` is the result:
the schema, and the conversion from the source's values to those of the fields. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from brand.chunker.importers.lists import parsed_list
from brand.chunker.sources.shards import Block
from brand.errors import UsageError
from brand.formats.header import CODECS, ELEMENTS, Schema, is_field_name
from brand.formats.media import HEAD_BYTES, kind_of
from brand.printable import printable

LOOKED_AT: Final = 8
"""Values that are inspected to find out whether a column of bytes holds files."""
ROWS_LOOKED_AT: Final = 1000
"""Rows from which columns and codecs are inferred, if the source itself does not declare them."""
FILES_LOOKED_AT: Final = 64
"""Samples from which columns and codecs are inferred, if each sample consists of whole files."""
_LONGEST: Final = 63
_INT: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_FLOAT: Final = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf)\s*", re.ASCII | re.IGNORECASE
)

_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bytes": str.encode,
    "image": str.encode,
    "audio": str.encode,
}


@dataclass(frozen=True)
class FieldMapping:
    """The options of a user for the fields of an import. Names are those of the source, or of the fields."""

    columns: tuple[str, ...] = ()
    """The columns to read; empty for all."""
    codecs: Mapping[str, str] = field(default_factory=dict)
    """Codecs in place of the natural codecs of columns."""
    nulls: Mapping[str, str] = field(default_factory=dict)
    """Replacements of missing values, as texts."""

    def __post_init__(self) -> None:
        for name, codec in self.codecs.items():
            if codec not in CODECS:
                raise UsageError(f"--field {name}={codec}: there is no such codec; the codecs are {', '.join(CODECS)}")


@dataclass(frozen=True)
class Fields:
    """The fields of an import."""

    columns: tuple[str, ...]
    """Names in the source, in the schema's order."""
    schema: Schema
    nulls: Mapping[str, Any]
    """Field -> replacement of a missing value."""

    @property
    def choice(self) -> str:
        """The options that change the values, as a text that is equal for equal options."""
        return repr((self.columns, sorted((name, repr(value)) for name, value in self.nulls.items())))

    @property
    def renamed(self) -> list[str]:
        """Notes on columns whose fields have other names."""
        pairs = zip(self.columns, self.schema.names, strict=True)
        return [f"column {printable(column)!r} is field {name!r}" for column, name in pairs if column != name]

    def block(self, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Block:
        """Return samples as a block of fields, from the source's columns."""
        pairs = zip(self.columns, self.schema.fields, strict=True)
        return Block({name: self._fitted(name, codec, columns[column]) for column, (name, codec) in pairs}, called)

    def block_of_rows(self, rows: Sequence[Mapping[str, Any]], called: Sequence[str]) -> Block:
        """Return samples as a block of fields, from dicts; a name that a dict lacks is a missing value."""
        return self.block({column: [row.get(column) for row in rows] for column in self.columns}, called)

    def _fitted(self, name: str, codec: str, values: Sequence[Any]) -> Sequence[Any]:
        if isinstance(values, np.ndarray):
            return values
        if name in self.nulls:
            values = [self.nulls[name] if value is None else value for value in values]
        fit, exact = _FITS.get(codec, (None, object))
        return values if fit is None or set(map(type, values)) <= {exact} else [fit(value) for value in values]


def choose(columns: Iterable[tuple[str, str]], choice: FieldMapping) -> Fields:
    """Return the fields for columns of these natural codecs. Raises `UsageError` if the options do not fit them."""
    offered = [(column, field_name(column, codec), codec) for column, codec in columns]
    known = {name for column, name, _ in offered for name in (column, name)}
    for asked in (*choice.columns, *choice.codecs, *choice.nulls):
        if asked not in known:
            there = printable(", ".join(column for column, _, _ in offered))
            raise UsageError(f"the source has no column {asked!r}; there are {there}")
    taken = [one for one in offered if is_taken(one[0], choice)]
    seen: dict[str, str] = {}
    for column, name, _ in taken:
        if name in seen:
            both = f"columns {seen[name]!r} and {column!r} would both be field {name!r}"
            raise UsageError(f"{both}: leave one out with --columns")
        seen[name] = column
    chosen = [
        (column, name, choice.codecs.get(name, choice.codecs.get(column, codec))) for column, name, codec in taken
    ]
    for column, name, codec in chosen:
        if codec == "null":
            raise UsageError(
                f"column {column!r} has no values in the rows that were read, so its codec is unknown: give --field"
                f" {name}=CODEC with --null {name}=VALUE, or leave it out with --columns"
            )
    schema = Schema.parse([(name, codec) for _, name, codec in chosen])
    told = {name: choice.nulls.get(name, choice.nulls.get(column)) for column, name, _ in chosen}
    nulls = {name: _parsed(name, schema.codec(name), text) for name, text in told.items() if text is not None}
    return Fields(tuple(column for column, _, _ in chosen), schema, nulls)


def is_taken(column: str, choice: FieldMapping) -> bool:
    """Return whether a user chose this column, by its own name or that of its field."""
    names = {column, field_name(column), field_name(column, "int")}
    return not choice.columns or bool(names & set(choice.columns))


def field_name(column: str, codec: str = "str") -> str:
    """Return the name of a column's field: characters that the name of a field must not contain become `_`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", column)[:_LONGEST] or "_"
    if not is_field_name(name):
        name = f"_{name}"[:_LONGEST]
    return f"{name}_" if name == "index" or (name == "key" and codec not in ("str", "null")) else name


def codec_of_bytes(values: Iterable[bytes | None]) -> str:
    """Return `image` or `audio` if all of these are files of such a kind, else `bytes`."""
    kinds = {(kind_of(value[:HEAD_BYTES]) or "bytes").partition("/")[0] for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else "bytes"


def codec_of_value(value: Any) -> str:
    """Return the natural codec of a Python value; `null` for None."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "str"
    if isinstance(value, bool | int | np.integer | np.bool_):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    if isinstance(value, bytes | bytearray | memoryview):
        return codec_of_bytes([bytes(value[:HEAD_BYTES])])
    if any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__):
        return "image"
    if hasattr(value, "isoformat"):
        return "str"
    return "ndarray" if isinstance(value, np.ndarray) else "json"


def common_codec(codecs: Iterable[str]) -> str | None:
    """Return one codec for all columns or values of these codecs; None if there is none."""
    kinds = set(codecs) - {"null"}
    if not kinds:
        return "null"
    if kinds == {"int", "float"}:
        return "float"
    if kinds <= {"bytes", "image", "audio"} and len(kinds) > 1:
        return "bytes"
    return kinds.pop() if len(kinds) == 1 else None


def _parsed(name: str, codec: str, text: str) -> Any:
    """Return the value that a user means by a text."""
    try:
        if codec == "json":
            return json.loads(text)
        if codec == "ndarray":
            return np.asarray(json.loads(text))
        if codec in ELEMENTS:
            return parsed_list(text)
        return _PARSERS[codec](text)
    except ValueError:
        raise UsageError(f"--null {name}={text}: that is not a value for a field of codec {codec}") from None


def _as_text(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value.__class__.__name__ == "Decimal":
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _as_int(value: Any) -> Any:
    return int(value) if isinstance(value, str) and _INT.fullmatch(value) else value


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def _as_array(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        return value
    return value if array.dtype == object else array


_FITS: Final[dict[str, tuple[Callable[[Any], Any], type]]] = {
    "str": (_as_text, str),
    "int": (_as_int, int),
    "float": (_as_float, float),
    "ndarray": (_as_array, np.ndarray),
}
"""Codec -> conversion of each value, and the type that needs no conversion.

A value that cannot be converted is not changed, and is refused later.
"""
