"""Does the user give `pack` a table or a path in place of samples? Then the error says how to make samples of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from brand.errors import UsageError

_ROWS: Final = {
    ("pandas", "DataFrame"): 'table.to_dict("records")',
    ("polars", "DataFrame"): "table.iter_rows(named=True)",
    ("polars", "LazyFrame"): "table.collect().iter_rows(named=True)",
    ("pyarrow", "Table"): "table.to_pylist()",
    ("pyarrow", "RecordBatch"): "table.to_pylist()",
}
"""Library and class of a table -> code that makes dicts of its rows. Names suffice, so no library is imported."""


def refuse_tables(samples: Any) -> None:
    """Raise `UsageError` for tables, columns and paths. The first sample shows any other mistake."""
    for kind in type(samples).__mro__:
        library, _, _ = kind.__module__.partition(".")
        if (library, kind.__name__) in _ROWS:
            rows = _ROWS[library, kind.__name__]
            raise UsageError(
                f"samples is a {kind.__name__} of {library}, and pack takes dicts: give {rows} as samples, where table"
                " is what you gave"
            )
    if isinstance(samples, Mapping):
        raise UsageError(
            "samples is a dict, and pack takes an iterable of dicts, one for each sample; of a dict of columns make"
            " (dict(zip(columns, row)) for row in zip(*columns.values()))"
        )
    if isinstance(samples, str | bytes | os.PathLike):
        raise UsageError(
            f"samples={samples!r} is a path, and pack takes an iterable of dicts; for a folder of files there is"
            " `brand convert images` and `brand convert audio`"
        )
