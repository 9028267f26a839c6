"""Which fields does an Arrow schema give, with the features that Hugging Face has stored in it?

The layouts of the columns and their first values decide (`arrow`). `ClassLabel` of Hugging Face is an `int`; the names
of the column `label` become the classes, and those of other columns are kept with their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from brand.chunker.importers.arrow import arrow, element_of, layout_of, numbers_of, plain, row_bytes, values_of
from brand.chunker.importers.fields import FieldMapping, Fields, choose, is_read
from brand.chunker.importers.lists import codec_of_files
from brand.chunker.importers.natural import LOOKED_AT, ROWS_LOOKED_AT, codec_of_bytes
from brand.chunker.sources.blocks import cut
from brand.chunker.sources.shards import Bad, Block, Shard, Shards
from brand.errors import BrandError, SourceError, cause_of
from brand.formats.header import DECODE_MODES, ELEMENTS, DecodeDefault
from brand.formats.media import HEAD_BYTES
from brand.formats.record import Numbered
from brand.printable import printable

MOST_ROWS: Final = 1 << 15
"""The most rows of a block; with few columns of numbers, that is less than a block may hold."""
_SEQUENCES: Final = ("List", "LargeList", "Sequence")
"""Types of lists of Hugging Face."""
_NUMBERS: Final = ("int", "ndarray", "list[int]", "json")
"""Codecs that keep the numbers of classes."""


class ArrowFields:
    """The fields of an Arrow schema."""

    def __init__(
        self,
        schema: Any,
        first_values: Callable[[str], Iterable[Any]],
        choice: FieldMapping,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        """Choose the fields. `first_values` yields a column in arrays of a few values, from its front.

        `order` is that of the fields, and names all. Raises `UsageError` if the choice does not fit the schema.
        """
        features = _features(schema)
        self._layouts = {column.name: layout_of(column.type, features.get(column.name, {})) for column in schema}
        natural = []
        for name in order or self._layouts:
            codec, layout = self._layouts[name]
            if codec == "?":
                codec = _codec_of_first(first_values(name), layout) if is_read(name, choice) else "bytes"
            if codec == "list[?]":
                codec = _codec_of_lists(name, first_values(name), choice) if is_read(name, choice) else "json"
            natural.append((name, codec))
        self._natural = dict(natural)
        dtypes = {c.name: _dtype(c.type) for c in schema if self._layouts[c.name][1] == "number"}
        self.fields: Fields = choose(natural, choice, dtypes=dtypes)
        pairs = self.fields.pairs
        self.notes = [
            f"column {printable(column)!r} is text, because it has a number above {np.iinfo(np.int64).max:,}"
            for column, name, codec in pairs
            if self._layouts[column] == ("?", "number") and codec == "str" and not {column, name} & choice.codecs.keys()
        ]
        self._named = {column: _class_names(features.get(column, {})) for column in self.fields.columns}
        self.field_classes: dict[str, tuple[str, ...]] = {
            f"{field}.{path}" if path else field: names
            for column, field, codec in pairs
            for path, names in self._named[column].items()
            if codec in (_NUMBERS if not path else ("json",))
        }
        """Names of the values of other fields than an `int` field `label`, and of numbers in JSON, by field or path."""
        is_label = dict(self.fields.schema.fields).get("label") == "int"
        self.classes = self.field_classes.pop("label", None) if is_label else None
        self.decode = {
            name: _decode_default(feature)
            for column, name, codec in pairs
            if codec in ("image", "list[image]")
            and (feature := _of_one(features.get(column, {}), codec)).get("_type") == "Image"
        }
        """Image fields of Hugging Face, and lists of them, which `datasets` decodes upright."""

    def check(self, name: str, schema: Any, first: str, hint: str = "") -> None:
        """Raise `SourceError` if the schema of the file `name` differs from that of the file `first`."""
        features = _features(schema)
        types = {column.name: column.type for column in schema}
        for column in self.fields.columns:
            if column not in types:
                differs = f"it lacks the column {column!r}"
            elif layout_of(types[column], features.get(column, {})) != self._layouts[column]:
                differs = f"its column {column!r} is {types[column]}, which is another kind of values"
            elif _class_names(features.get(column, {})) != self._named[column]:
                differs = f"the classes of its column {column!r} have other names or another order"
            else:
                continue
            raise SourceError(name, f"{differs}; it is not as in {first}", hint=hint)

    def blocks(self, batches: Iterable[Any], row: int = 0) -> Iterator[Block | Bad]:
        """Yield the rows of record batches as blocks of some megabytes, or of one row if that is larger.

        `row` is the number of the first row in messages. A row with a value that Python cannot hold is a `Bad`.
        """
        for batch in batches:
            for low, high in cut(row_bytes(batch.select(list(self.fields.columns))), MOST_ROWS):
                yield from self._blocks(batch.slice(low, high - low), row + low)
            row += batch.num_rows

    def _blocks(self, batch: Any, row: int) -> Iterator[Block | Bad]:
        """Yield the rows of a batch as one block; if a value cannot be read, row by row."""
        try:
            yield from list(self._block(batch, row))
        except BrandError:
            raise
        except Exception as error:  # noqa: BLE001 - Arrow raises errors of many kinds for values of a damaged file
            if batch.num_rows == 1:
                yield Bad(f"row {row}", f"a value cannot be read: {cause_of(error)}")
                return
            for at in range(batch.num_rows):
                yield from self._blocks(batch.slice(at, 1), row + at)

    def _block(self, batch: Any, row: int) -> Iterator[Block | Bad]:
        columns: dict[str, Any] = {}
        for _, members, _ in self.fields.packs:
            columns |= {column: numbers_of(batch.column(column)) for column in members}
        for column, _, codec in self.fields.pairs:
            layout = self._layouts[column][1]
            columns[column] = values_of(batch.column(column), layout, codec, self._natural[column])
        yield from self.fields.checked(columns, Numbered(range(row, row + batch.num_rows), "row"))


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features that Hugging Face has stored for the columns, by name."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    features = {  # lists of earlier versions of datasets are [inner feature]
        name: {"feature": value[0], "_type": "List"} if isinstance(value, list) and len(value) == 1 else value
        for name, value in (features or {}).items()
    }
    return {name: value for name, value in features.items() if isinstance(value, dict)}


def _of_one(feature: Mapping[str, Any], codec: str) -> Mapping[str, Any]:
    """Return the feature of a value, or of the elements of a list."""
    return element_of(feature) if codec in ELEMENTS else feature


def _decode_default(feature: Mapping[str, Any]) -> DecodeDefault:
    mode = feature.get("mode")
    return DecodeDefault(mode if mode in DECODE_MODES else "RGB", upright=True)


def _class_names(feature: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of a `ClassLabel`, or of lists of them, at an empty path; of those in structs by their path."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, dict) and feature.get("_type") in _SEQUENCES and "feature" in feature:
            feature = feature["feature"]
        else:
            break
    if not isinstance(feature, dict):
        return {}
    names = feature.get("names")
    if feature.get("_type") == "ClassLabel":
        return {"": tuple(map(str, names))} if isinstance(names, list) else {}
    found = {}
    for key, inner in feature.items():
        for path, some in _class_names(inner).items() if isinstance(inner, dict | list) else ():
            found[f"{key}.{path}" if path else key] = some
    return found


def _codec_of_first(arrays: Iterable[Any], layout: str) -> str:
    """Return the codec that the first values of a column give it; missing and empty ones do not count."""
    if layout == "number":
        values = islice((value for array in arrays for value in array.to_pylist()), ROWS_LOOKED_AT)
        return "int" if all(value is None or value < 1 << 63 for value in values) else "str"
    heads = islice((head for array in arrays for head in _heads(plain(array), layout)), ROWS_LOOKED_AT)
    return codec_of_bytes(islice((head for head in heads if head), LOOKED_AT))


def _codec_of_lists(name: str, arrays: Iterable[Any], choice: FieldMapping) -> str:
    """Return the codec that the first lists of files give their column; missing and empty ones do not count."""
    rows = islice((row for array in arrays for row in plain(array).to_pylist()), ROWS_LOOKED_AT)
    chosen = bool({name, choice.names.get(name)} & choice.codecs.keys())
    return codec_of_files(name, list(islice(filter(None, rows), LOOKED_AT)), chosen=chosen)


def first_arrays(column: Any) -> Iterator[Any]:
    """Yield a column in memory in arrays of a few values, from its front, as `ArrowFields` asks for it."""
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    for chunk in chunks:
        for start in range(0, min(len(chunk), ROWS_LOOKED_AT), LOOKED_AT):
            yield chunk.slice(start, LOOKED_AT)


def _dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of numbers of this type."""
    kind = kind.value_type if arrow().types.is_dictionary(kind) else getattr(kind, "storage_type", kind)
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def _heads(column: Any, layout: str) -> Iterator[bytes | None]:
    """Yield the first bytes of each value: the values may be large."""
    for value in column:
        contents = value["bytes"] if layout == "file" and value.is_valid else value
        yield contents.as_buffer()[:HEAD_BYTES].to_pybytes() if contents.is_valid else None


class ArrowShards(Shards):
    """Shards that hold batches of Arrow."""

    def __init__(self, shards: Iterable[Shard], columns: ArrowFields) -> None:
        fields = columns.fields
        super().__init__(shards, fields.schema, fields.choice, [*fields.renamed, *columns.notes], columns.classes)
        self.field_classes = columns.field_classes
        self._columns = columns
        self.decode = columns.decode
