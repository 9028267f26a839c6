"""`Dataset` and `IterableDataset` of Hugging Face, given to `pack`: which rows do they show, and are files in it whole?

A format of `set_format` that only changes the type of values does not matter: the stored values are taken. Its columns
count. A transform makes the samples itself, so they are taken one by one, as from any object with an index.

The library decodes files in a stream before `map`, `filter` and `rename_column`, and encodes them again, JPEG with
loss, for a reader of stored values. `stored_stream` therefore looks at the steps of a stream: if a step decodes, its
samples are taken as they are shown. The library is recognized by the names of its classes, and is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from brand.chunker.importers.natural import ROWS_LOOKED_AT
from brand.errors import UsageError
from brand.formats.values import is_picture

_FILES_AT_ONCE: Final = 4
"""Rows whose files are read together: a file may be large."""
_DECODES: Final = "decode=True"
"""Part of the text of features that are decoded."""
_PASS: Final = (
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "StepExamplesIterable",
    "CyclingMultiSourcesExamplesIterable",
    "RandomlyCyclingMultiSourcesExamplesIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
    "HorizontallyConcatenatedMultiSourcesExamplesIterable",
    "InterleavedShardsExamplesIterable",
    "BufferShuffledExamplesIterable",
    "SkipExamplesIterable",
    "RepeatExamplesIterable",
    "TakeExamplesIterable",
    "FormattedExamplesIterable",
)
"""Steps of a stream that pass stored values on."""
_CALL: Final = ("MappedExamplesIterable", "FilteredExamplesIterable")
"""Steps that call a function with decoded values."""


def stored_rows(samples: Any, *, has_schema: bool) -> Any | None:
    """Return a `Dataset` that gives its shown columns as stored, in Arrow; None if a transform makes its samples.

    Raises `UsageError` for a format that is not applied, and for a transform without a schema.
    """
    shown = samples.format
    if shown["type"] == "custom":
        if not has_schema:
            raise UsageError(
                "samples is a Dataset with a transform, which makes other columns: give pack a schema, and the"
                " transform is applied; or samples.with_format(None), which stores the columns as they are"
            )
        return None
    if shown["format_kwargs"]:
        told = ", ".join(f"{name}={value!r}" for name, value in shown["format_kwargs"].items())
        raise UsageError(
            f"samples has the format {shown['type']!r} with {told}, which pack does not apply: give"
            " samples.with_format(None), which stores the columns as they are, or samples.map(...)"
        )
    names = samples.column_names if shown["output_all_columns"] else shown["columns"]
    chosen = samples.select_columns(names) if set(names) < set(samples.column_names) else samples
    return chosen.with_format("arrow")


def stored_stream(samples: Any, *, has_schema: bool) -> Any | None:
    """Return an `IterableDataset` that gives values as stored, in Arrow; None if they are taken as they are shown.

    Raises `UsageError` if these need a schema, and there is none.
    """
    if samples.features is None:
        if not has_schema:
            raise UsageError(
                "samples is an IterableDataset that does not know its features: give pack a schema; or give the"
                " features to map or from_generator (features=...), and pack needs none"
            )
        return None
    stored = samples
    if _DECODES in repr(samples.features):
        stored = samples.decode(enable=False) if hasattr(samples, "decode") else samples
        if not _is_whole(getattr(stored, "_ex_iterable", None)):
            if not has_schema:
                raise UsageError(
                    "samples is an IterableDataset whose files are decoded by map, filter, rename_column or its"
                    " generator: call decode(False) before these, and the files are stored as they are; or give pack a"
                    " schema, and decoded images are stored as PNG"
                )
            return None
    return stored.with_format("arrow")


def _is_whole(step: Any) -> bool:
    """Return whether files arrive as they are stored after this step of a stream."""
    name = type(step).__name__.removeprefix("Shuffled")
    if name == "ArrowExamplesIterable":
        return True
    if name == "ExamplesIterable":
        _, first = next(iter(step), ("", {}))
        return not _holds_picture(first)
    before = getattr(step, "ex_iterables", None) or [getattr(step, "ex_iterable", None)]
    if name in _CALL:
        return all(_DECODES not in repr(getattr(each, "features", _DECODES) or _DECODES) for each in before)
    return name in _PASS and all(map(_is_whole, before))


def _holds_picture(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_picture, value.values()))
    return any(map(_holds_picture, value)) if isinstance(value, list | tuple) else is_picture(value)


def first_of_rows(stored: Any, name: str) -> Iterator[Any]:
    """Yield a column of a `Dataset` that gives Arrow in arrays of one value, from its front."""
    column = stored.select_columns([name])
    for row in range(min(len(stored), ROWS_LOOKED_AT)):
        for batch in with_files(column[row : row + 1]):
            yield batch.column(name)


def first_of_stream(stored: Any, name: str) -> Iterator[Any]:
    """Yield a column of an `IterableDataset` that gives Arrow in arrays of one value, from its front."""
    for some in stored.take(ROWS_LOOKED_AT).iter(1):
        for batch in with_files(some.select([name])):
            yield batch.column(name)


def with_files(table: Any) -> Iterator[Any]:
    """Yield batches of a table of Hugging Face with the files that it only names, as `load_dataset("imagefolder")`."""
    named = any(
        column.type.get_field_index("bytes") >= 0 and column.combine_chunks().field("bytes").null_count
        for column in table.columns
        if hasattr(column.type, "get_field_index")
    )
    if not named:
        yield from table.to_batches()
        return
    embedded = sys.modules["datasets.table"].embed_table_storage  # the library is loaded: it made the table
    for row in range(0, len(table), _FILES_AT_ONCE):
        yield from embedded(table.slice(row, _FILES_AT_ONCE)).to_batches()
