"""Which columns do the names of folders hold? Spark, pandas and DuckDB write `year=2024/part-0.parquet`.

A column is of whole numbers if all its values are, else of texts, as PyArrow infers it. `__HIVE_DEFAULT_PARTITION__` is
a missing value. Special characters are written as `%3A`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from brand.chunker.sources.splits import is_partition

Value = int | str | None

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]+", re.ASCII)
_LIMIT: Final = 1 << 63


def partitions_of(names: Sequence[str]) -> list[dict[str, Value]]:
    """Return the columns and values that the folders of each file name. `names` are paths below the source.

    A file that lacks a column of others has None there.
    """
    texts = [_texts(name) for name in names]
    columns = list(dict.fromkeys(column for some in texts for column in some))
    whole = {column: all(_is_whole(some.get(column)) for some in texts) for column in columns}
    return [
        {column: _value(some.get(column), whole=whole[column]) for column in columns}
        for some in texts
    ]  # fmt: skip


def _texts(name: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in name.split("/")[:-1] if is_partition(part))
    return {unquote(column): None if value == _NULL else unquote(value) for column, value in pairs}


def _is_whole(text: str | None) -> bool:
    return text is None or (_WHOLE.fullmatch(text) is not None and -_LIMIT <= int(text) < _LIMIT)


def _value(text: str | None, *, whole: bool) -> Value:
    return int(text) if whole and text is not None else text
