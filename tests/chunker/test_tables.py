"""A table, a dict of columns or a path in place of samples is refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brand import pack
from brand.errors import UsageError


def table_of(library: str, name: str) -> Any:
    """An object whose class is called as one of a library."""
    base = type(name, (), {"__module__": f"{library}.core.frame", "__len__": lambda self: 3})
    return type("Derived", (base,), {"__getitem__": lambda self, key: {}[key]})()


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (table_of("pandas", "DataFrame"), r'DataFrame of pandas, .* give table.to_dict\("records"\)'),
        (table_of("polars", "DataFrame"), r"table.iter_rows\(named=True\)"),
        (table_of("pyarrow", "Table"), r"table.to_pylist\(\)"),
        ({"a": [1, 2], "b": [3, 4]}, r"for row in zip\(\*columns.values\(\)\)"),
        ("folder", "`brand convert images`"),
        (Path("folder"), "`brand convert audio`"),
    ],
)
def test_the_message_says_how_samples_are_made(samples: Any, says: str, tmp_path: Path) -> None:
    """And the target is still free."""
    with pytest.raises(UsageError, match=says):
        pack(samples, tmp_path / "set", {"a": "int", "b": "int"})
    assert not (tmp_path / "set").exists()
