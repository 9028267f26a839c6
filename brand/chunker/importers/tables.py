"""A table in memory, given to `pack` in place of samples: which fields does it have, and what are their values?

Tables of pandas, tables and batches of PyArrow, and `Dataset` of Hugging Face are read column by column; the types of
the columns determine the codecs. Anything else that is not a list of samples is refused, with the code that makes
samples of it. Libraries are recognized by the names of their classes, so that none is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.importers.arrow import arrow, intact, value_bytes
from brand.chunker.importers.arrowfields import ArrowFields, first_arrays
from brand.chunker.importers.fields import FieldMapping, Fields, choose
from brand.chunker.importers.huggingface import first_of_rows, first_of_stream, stored_rows, stored_stream, with_files
from brand.chunker.importers.natural import LOOKED_AT, ROWS_LOOKED_AT, common_codec, fits_of_values, kind_of_value
from brand.chunker.sources.blocks import BLOCK_BYTES, bytes_of, cut
from brand.chunker.sources.shards import Bad, Block
from brand.errors import SchemaError, UsageError
from brand.formats.header import DecodeDefault, Schema
from brand.formats.record import Numbered

_ROWS_AT_ONCE: Final = 1024
_MOST_INT: Final = (1 << 63) - 1
_ROWS: Final = {("polars", "DataFrame"): "table.to_arrow()", ("polars", "LazyFrame"): "table.collect().to_arrow()"}
"""Library and class of a table -> code that makes a table that `pack` accepts."""


@dataclass(frozen=True)
class Table:
    """A table as fields."""

    fields: Fields
    rows: int | None
    """None if that is not known before all are read."""
    blocks: Iterator[Block]
    """All rows, in order."""
    classes: tuple[str, ...] | None = None
    decode: Mapping[str, DecodeDefault] = field(default_factory=dict)
    """Field -> how its images are decoded by default."""
    field_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Facts for the report, in sentences."""


def table_of(samples: Any, schema: Mapping[str, str] | None, label: str = "") -> Table | None:
    """Return the table that `pack` was given, with the fields of a schema or with all columns.

    The column `label` becomes the field of that name.

    Returns None if it is not a table. Raises `SchemaError`, `UsageError`, `MissingExtraError`.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(samples).__mro__}
    if label and schema is not None and "label" in schema and label not in schema:  # the field, not the column
        schema = {label if name == "label" else name: codec for name, codec in schema.items()}
    if ("pandas", "DataFrame") in kinds:
        return _pandas(samples, schema, label)
    if ("pyarrow", "Table") in kinds or ("pyarrow", "RecordBatch") in kinds:
        table = samples if hasattr(samples, "to_batches") else arrow().Table.from_batches([samples])
        batches = iter(table.to_batches(max_chunksize=_ROWS_AT_ONCE))
        first = partial(_first_of_column, table)
        return _arrow(table.schema, first, len(table), batches, schema, label)
    if ("datasets", "Dataset") in kinds:
        return _hugging_face(samples, schema, label)
    if ("datasets", "IterableDataset") in kinds:
        return _hugging_face_stream(samples, schema, label)
    _refuse(samples, kinds)
    if label:
        raise UsageError("label= names a column of a table; in samples, give the field the name 'label'")
    return None


def _first_of_column(table: Any, name: str) -> Iterator[Any]:
    return first_arrays(table.column(name))


def _choice(names: Sequence[str], schema: Mapping[str, str] | None, label: str) -> FieldMapping:
    if schema is None:
        return FieldMapping(label=label)
    parsed = Schema.parse(schema)
    missing = next((name for name in parsed.names if name not in names), None)
    if missing is not None:
        raise SchemaError(f"the table has no column {missing!r}; its columns are: {', '.join(map(str, names))}")
    return FieldMapping(parsed.names, dict(parsed.fields), label=label)


def _arrow(
    arrow_schema: Any,
    first_values: Callable[[str], Iterable[Any]],
    rows: int | None,
    batches: Iterator[Any],
    schema: Mapping[str, str] | None,
    label: str,
) -> Table:
    choice, order = _choice(arrow_schema.names, schema, label), None if schema is None else tuple(schema)
    columns = ArrowFields(arrow_schema, first_values, choice, order=order)
    found = columns.blocks(intact("the table", "its rows cannot be read", batches))
    return Table(
        columns.fields,
        rows,
        _without_bad(found),
        columns.classes,
        columns.decode,
        columns.field_classes,
        columns.notes,
    )


def _pandas(frame: Any, schema: Mapping[str, str] | None, label: str) -> Table:
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names) or any(not isinstance(name, str) for name in frame.columns):
        raise UsageError("the names of the table's columns must be texts, and no two alike: table.columns = [...]")
    choice = _choice(names, schema, label)
    kinds = {name: _kinds(frame[name]) for name in names}
    natural = {name: _codec(frame[name], kinds[name], choice) for name in names}
    fields = choose(((name, natural[name]) for name in schema or names), choice, fits_of_values(kinds))

    def blocks() -> Iterator[Block | Bad]:
        for start in range(0, len(frame), _ROWS_AT_ONCE):
            rows = frame.iloc[start : start + _ROWS_AT_ONCE][list(fields.columns)]
            for low, high in cut(_row_bytes(rows)):
                some, called = rows.iloc[low:high], Numbered(range(start + low, start + high), "row")
                yield from fields.checked({column: _values(some[column]) for column in fields.columns}, called)

    return Table(fields, len(frame), _without_bad(blocks()))


def _without_bad(blocks: Iterable[Block | Bad]) -> Iterator[Block]:
    """Yield the blocks. Raises `SchemaError` for a sample that cannot be used."""
    for block in blocks:
        if isinstance(block, Bad):
            cure = "; name the field's codec in a schema" if block.reason.startswith("field ") else ""
            raise SchemaError(f"{block.called}, {block.reason}{cure}")
        yield block


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


def _kinds(series: Any) -> list[str]:
    """Return the kinds of the first values of a column; of one of numbers those that its dtype tells."""
    if series.dtype.kind == "u":
        return ["huge" if len(series) and (series.max() > _MOST_INT) else "int"]
    if series.dtype.kind in "ib":
        return ["int"]
    if series.dtype.kind == "f":
        return ["float"]
    kinds = [kind_of_value(value) for value in _first_values(series)]
    found = [kind for kind in kinds if kind != "null"]
    return found[:LOOKED_AT] if {"image", "audio", "bytes"} & set(found) and common_codec(found) else kinds


def _codec(series: Any, kinds: Sequence[str], choice: FieldMapping) -> str:
    common = common_codec(kinds)
    if common is not None:
        return common
    if series.name in choice.codecs:
        return choice.codecs[series.name]
    types = {type(value) for value in _first_values(series) if value is not None}
    names = ", ".join(sorted({each.__name__ for each in types}))
    if len(types) == 1:
        raise SchemaError(f"column {series.name!r} holds values of the class {names}, which no codec stores")
    raise SchemaError(f"column {series.name!r} holds values of several kinds ({names}): name its codec in a schema")


def _hugging_face(samples: Any, schema: Mapping[str, str] | None, label: str) -> Table | None:
    stored = stored_rows(samples, has_schema=schema is not None)
    if stored is None:
        return None
    mean = stored.data.nbytes // max(1, len(stored.data))
    rows = max(1, min(_ROWS_AT_ONCE, BLOCK_BYTES // max(1, mean)))
    batches = (batch for some in stored.iter(rows) for batch in with_files(some))
    return _arrow(stored.features.arrow_schema, partial(first_of_rows, stored), len(stored), batches, schema, label)


def _hugging_face_stream(samples: Any, schema: Mapping[str, str] | None, label: str) -> Table | None:
    stored = stored_stream(samples, has_schema=schema is not None)
    if stored is None:
        return None
    arrow_schema, first = samples.features.arrow_schema, partial(first_of_stream, stored)
    return _arrow(arrow_schema, first, None, _stream_batches(stored), schema, label)


def _stream_batches(stored: Any) -> Iterator[Any]:
    """Yield the rows of a stream in batches that are bounded by bytes, however large a row is."""
    held: list[Any] = []
    size = 0
    for row in stored.iter(1):
        held.append(row)
        size += row.nbytes
        if size >= BLOCK_BYTES or len(held) >= _ROWS_AT_ONCE:
            yield from with_files(arrow().concat_tables(held).combine_chunks())
            held, size = [], 0
    if held:
        yield from with_files(arrow().concat_tables(held).combine_chunks())


def _first_values(series: Any) -> Iterator[Any]:
    """Yield the first values, of which some megabytes at a time are in memory."""
    first = series.iloc[:ROWS_LOOKED_AT]
    for low, high in cut(_row_bytes(first.to_frame())):
        yield from _values(first.iloc[low:high])


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
    if isinstance(samples, Mapping) and {("datasets", "DatasetDict"), ("datasets", "IterableDatasetDict")} & kinds:
        splits = list(samples)
        raise UsageError(
            f"samples is a {type(samples).__name__} with the splits {', '.join(map(str, splits))}: pack each into a"
            f" data set of its own, as brand.pack(samples[{(splits or ['train'])[0]!r}], ...)"
        )
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
