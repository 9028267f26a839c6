"""A table in memory, given to `pack` in place of samples: which fields does it have, and what are their values?

Tables of pandas, tables and batches of PyArrow, and `Dataset` of Hugging Face are read column by column; the types of
the columns determine the codecs. Anything else that is not a list of samples is refused, with the code that makes
samples of it. Libraries are recognized by the names of their classes, so that none is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.importers.arrow import ArrowFields, arrow, value_bytes
from brand.chunker.importers.fields import (
    LOOKED_AT,
    ROWS_LOOKED_AT,
    FieldMapping,
    Fields,
    choose,
    codec_of_bytes,
    codec_of_value,
    common_codec,
)
from brand.chunker.sources.blocks import BLOCK_BYTES, bytes_of, cut
from brand.chunker.sources.shards import Block
from brand.errors import SchemaError, UsageError
from brand.formats.header import Schema
from brand.formats.media import HEAD_BYTES
from brand.formats.record import Numbered

_ROWS_AT_ONCE: Final = 1024
_ROWS: Final = {("polars", "DataFrame"): "table.to_arrow()", ("polars", "LazyFrame"): "table.collect().to_arrow()"}
"""Library and class of a table -> code that makes a table that `pack` accepts."""


@dataclass(frozen=True)
class Table:
    """A table as fields."""

    fields: Fields
    rows: int
    blocks: Iterator[Block]
    """All rows, in order."""
    classes: tuple[str, ...] | None = None


def table_of(samples: Any, schema: Mapping[str, str] | None) -> Table | None:
    """Return the table that `pack` was given, with the fields of a schema or with all columns.

    Returns None if it is not a table. Raises `SchemaError`, `UsageError`, `MissingExtraError`.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(samples).__mro__}
    if ("pandas", "DataFrame") in kinds:
        return _pandas(samples, schema)
    if ("pyarrow", "Table") in kinds or ("pyarrow", "RecordBatch") in kinds:
        table = samples if hasattr(samples, "to_batches") else arrow().Table.from_batches([samples])
        batches = iter(table.to_batches(max_chunksize=_ROWS_AT_ONCE))
        return _arrow(
            table.schema,
            lambda names: table.select(names).slice(0, LOOKED_AT).to_batches(),
            len(table),
            batches,
            schema,
        )
    if ("datasets", "Dataset") in kinds:
        stored = samples.with_format("arrow")  # the stored values, without decoding
        mean = samples.data.nbytes // max(1, len(samples.data))
        rows = max(1, min(_ROWS_AT_ONCE, BLOCK_BYTES // max(1, mean)))
        batches = (batch for some in stored.iter(rows) for batch in some.to_batches())
        arrow_schema = samples.features.arrow_schema

        def first(names: list[str]) -> Iterator[Any]:
            for row in range(min(LOOKED_AT, len(samples))):
                yield from stored[row].select(names).to_batches()

        return _arrow(arrow_schema, first, len(samples), batches, schema)
    _refuse(samples, kinds)
    return None


def _choice(names: Sequence[str], schema: Mapping[str, str] | None) -> FieldMapping:
    if schema is None:
        return FieldMapping()
    parsed = Schema.parse(schema)
    missing = next((name for name in parsed.names if name not in names), None)
    if missing is not None:
        raise SchemaError(f"the table has no column {missing!r}; its columns are: {', '.join(map(str, names))}")
    return FieldMapping(parsed.names, dict(parsed.fields))


def _arrow(
    arrow_schema: Any,
    first_rows: Callable[[list[str]], Iterable[Any]],
    rows: int,
    batches: Iterator[Any],
    schema: Mapping[str, str] | None,
) -> Table:
    choice, order = _choice(arrow_schema.names, schema), None if schema is None else tuple(schema)
    columns = ArrowFields(arrow_schema, first_rows, choice, order=order)
    return Table(columns.fields, rows, columns.blocks(batches), columns.classes)


def _pandas(frame: Any, schema: Mapping[str, str] | None) -> Table:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names) or any(not isinstance(name, str) for name in frame.columns):
        raise UsageError("the names of the table's columns must be texts, and no two alike: table.columns = [...]")
    choice = _choice(names, schema)
    natural = {name: _codec(frame[name]) for name in names}
    fields = choose(((name, natural[name]) for name in schema or names), choice)

    def blocks() -> Iterator[Block]:
        for start in range(0, len(frame), _ROWS_AT_ONCE):
            rows = frame.iloc[start : start + _ROWS_AT_ONCE][list(fields.columns)]
            for low, high in cut(_row_bytes(rows)):
                some, called = rows.iloc[low:high], Numbered(range(start + low, start + high), "row")
                yield fields.block({column: _values(some[column]) for column in fields.columns}, called)

    return Table(fields, len(frame), blocks())


def _row_bytes(frame: Any) -> NDArray[np.int64]:
    """Return about how many bytes each row holds. Values that are not Python objects yet are not made."""
    sizes = np.zeros(len(frame), np.int64)
    for _, series in frame.items():
        if series.dtype == object:
            sizes += np.fromiter(map(bytes_of, series), np.int64, len(series))
        elif hasattr(series.dtype, "pyarrow_dtype"):
            chunks = series.array.__arrow_array__().chunks
            sizes += np.concatenate([np.empty(0, np.int64), *map(value_bytes, chunks)])
    return sizes


def _codec(series: Any) -> str:
    if series.dtype.kind in "iub":
        return "int"
    if series.dtype.kind == "f":
        return "float"
    values = list(_first_values(series.iloc[:ROWS_LOOKED_AT]))
    if values and all(isinstance(value, bytes) for value in values):
        return codec_of_bytes(values[:LOOKED_AT])
    common = common_codec(map(codec_of_value, values))
    if common is None:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise SchemaError(f"column {series.name!r} holds values of several kinds ({kinds}): name its codec in a schema")
    return common


def _first_values(series: Any) -> Iterator[Any]:
    """Yield the values that are not missing; in place of bytes their beginning, because they may be large."""
    for low, high in cut(_row_bytes(series.to_frame())):
        for value in _values(series.iloc[low:high]):
            if value is not None:
                yield value[:HEAD_BYTES] if isinstance(value, bytes) else value


def _values(series: Any) -> Any:
    """Return a column's values; None for a missing one. Numbers without missing values are returned as an array."""
    kind = series.dtype.kind
    if isinstance(series.dtype, np.dtype) and kind in "iubf":
        exact = np.float64 if kind == "f" else np.int64
        values = series.to_numpy()
        return values.astype(exact) if np.can_cast(values.dtype, exact) else values.tolist()
    return [None if missing else value for missing, value in zip(series.isna().tolist(), series.tolist(), strict=True)]


def _refuse(samples: Any, kinds: set[tuple[str, str]]) -> None:
    """Raise `UsageError` for other tables, columns and paths. The first sample reveals any other mistake."""
    for library, name in sorted(kinds & _ROWS.keys()):
        raise UsageError(f"samples is a {name} of {library}: give {_ROWS[library, name]}, where table is what you gave")
    if isinstance(samples, Mapping):
        raise UsageError(
            "samples is a dict, and pack takes an iterable of dicts, one for each sample; turn a dict of columns into"
            " (dict(zip(columns, row)) for row in zip(*columns.values()))"
        )
    if isinstance(samples, str | bytes | os.PathLike):
        raise UsageError(
            f"samples={samples!r} is a path, and pack takes an iterable of dicts; for a folder of files there is"
            " `brand convert`, for images, audio, tar files, Parquet, MDS, JSONL and others"
        )
