"""Which fields does an Arrow schema give?

    bool, integers      int      float types              float    text            str
    binary              image or audio if the first values are such files, else bytes
    struct{bytes, path} image or audio, as Hugging Face's `Image` and `Audio` are stored; the path is left out
    list of numbers     ndarray of that dtype; so are `Array2D` to `Array5D`, and tensors
    dates, decimals     str      other lists, structs     json     dictionary      as its values

`ClassLabel` of Hugging Face is an `int`; if its column is called `label`, its names become the classes. `arrowtypes`
has the types and the values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from brand.chunker.importers.arrowtypes import values_of, way_of
from brand.chunker.importers.fields import FieldMapping, Fields, choose, codec_of_bytes, is_taken
from brand.chunker.sources.shards import Block
from brand.formats.record import Numbered


class ArrowFields:
    """The fields of an Arrow schema."""

    def __init__(
        self,
        schema: Any,
        first_rows: Callable[[list[str]], Any],
        choice: FieldMapping,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        """Choose the fields. `first_rows` returns a table of the first rows of some columns.

        `order` is that of the fields, and names all. Raises `UsageError` if the choice does not fit the schema.
        """
        features = _features(schema)
        self._ways = {column.name: way_of(column.type, features.get(column.name, {})) for column in schema}
        open_ones = [name for name, (codec, _) in self._ways.items() if codec == "?" and is_taken(name, choice)]
        looked_at = first_rows(open_ones) if open_ones else None
        natural = []
        for name in order or self._ways:
            told, way = self._ways[name]
            if told == "?":
                told = (
                    "bytes"
                    if looked_at is None or name not in open_ones
                    else codec_of_bytes(_bytes_of(looked_at[name], way))
                )
            natural.append((name, told))
        self._natural = dict(natural)
        self.fields: Fields = choose(natural, choice)
        names = next((_class_names(features.get(c, {})) for c, n in self._renamed if n == "label"), None)
        self.classes = names if names and self.fields.schema.codec("label") == "int" else None

    @cached_property
    def _renamed(self) -> list[tuple[str, str]]:
        return list(zip(self.fields.columns, self.fields.schema.names, strict=True))

    def ways(self, schema: Any) -> dict[str, tuple[str, str]]:
        """Return how the chosen columns would be read from another schema; a column that it lacks is left out."""
        features = _features(schema)
        columns = {column.name: column.type for column in schema}
        return {c: way_of(columns[c], features.get(c, {})) for c in self.fields.columns if c in columns}

    def differs(self, schema: Any) -> str:
        """Return in words how another schema differs from the first; empty if no difference matters."""
        ways = self.ways(schema)
        for column in self.fields.columns:
            if column not in ways:
                return f"it lacks the column {column!r}"
            if ways[column] != self._ways[column]:
                return f"its column {column!r} is {schema.field(column).type}, which is another kind of values"
        return ""

    def block(self, batch: Any, first_row: int) -> Block:
        """Return the rows of a record batch as a block; `first_row` is the number of the first row in messages."""
        called = Numbered(range(first_row, first_row + batch.num_rows), "row")
        columns = {}
        for (column, _), (_, codec) in zip(self._renamed, self.fields.schema.fields, strict=True):
            columns[column] = values_of(batch.column(column), self._ways[column][1], codec, self._natural[column])
        return self.fields.block(columns, called)


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features that Hugging Face has stored for the columns, by name."""
    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = told["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: value for name, value in features.items() if isinstance(value, dict)} if features else {}


def _class_names(feature: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = feature.get("names")
    return tuple(map(str, names)) if feature.get("_type") == "ClassLabel" and isinstance(names, list) else None


def _bytes_of(column: Any, way: str) -> list[bytes | None]:
    values = column.to_pylist()
    return [value and value["bytes"] for value in values] if way == "file" else values
