"""Which codec do the first values of a column give it, and which later values fit this natural codec?

One rule: a natural codec takes only values that the first rows could have had without another result. Missing and empty
values decide nothing. A whole number is `int` if 64 bits hold it, and else text; it is never rounded to a float. Any
other conversion is one that the user asks for. Pure.

    kind of a value   int (up to 2**53), wide (up to 64 bits), huge, float, nan, str, json, image, audio, bytes, null
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.media import HEAD_BYTES, kind_of

LOOKED_AT: Final = 8
"""Values that are inspected to find out whether a column of bytes holds files."""
ROWS_LOOKED_AT: Final = 1000
"""Rows from which columns and codecs are inferred, if the source itself does not declare them."""
FILES_LOOKED_AT: Final = 64
"""Samples from which columns and codecs are inferred, if each sample consists of whole files."""

_EXACT: Final = 1 << 53
"""Floats hold every whole number up to this one."""
_BITS_64: Final = 1 << 63
_WHOLE: Final = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
INT_DECLARED: Final = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
"""A text that becomes a number if the user declares its field `int`."""
FLOAT_DECLARED: Final = re.compile(
    r"\s*[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf)\s*", re.ASCII | re.IGNORECASE
)
"""A text that becomes a number if the user declares its field `float`."""
_LOOSE: Final = re.compile(
    r"\s*[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE
)
_TRUTH: Final = frozenset(("true", "false"))
_MISSING: Final = frozenset(
    [
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "None",
        "n/a",
        "nan",
        "null",
    ]
)
"""Cells that pandas reads as missing."""
_NO_NUMBERS: Final = ("nan", "inf", "-inf", "NaN")
_MEDIA: Final = ("image", "audio")


@dataclass(frozen=True)
class Misfit:
    """A value that its column's natural codec does not take."""

    value: Any


Fit = Callable[[Any], Any]
"""Conversion of a value, which is not None, for a natural codec; a `Misfit` for a value of another kind."""


def codec_of_bytes(values: Iterable[bytes | None]) -> str:
    """Return `image` or `audio` if most of these are such files, else `bytes`; missing and empty ones do not count."""
    kinds = [(kind_of(value[:HEAD_BYTES]) or "bytes").partition("/")[0] for value in values if value]
    return _most(Counter(kinds))


def _most(kinds: Mapping[str, int]) -> str:
    return next((kind for kind in _MEDIA if 2 * kinds.get(kind, 0) > sum(kinds.values())), "bytes")


def kind_of_value(value: Any) -> str:
    """Return the kind of a Python value; `?NAME` for an object of another class."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return "str"
    if isinstance(value, bool | int | np.integer | np.bool_):
        return _kind_of_whole(int(value))
    if isinstance(value, float | np.floating):
        return "nan" if math.isnan(value) else "float"
    if isinstance(value, bytes | bytearray | memoryview):
        return codec_of_bytes([bytes(value[:HEAD_BYTES])]) if len(value) else "null"
    if any(kind.__module__.startswith("PIL.") for kind in type(value).__mro__):
        return "image"
    if isinstance(value, list | tuple | Mapping):
        return "json"
    if isinstance(value, np.ndarray):
        return "ndarray"
    return "str" if hasattr(value, "isoformat") or _is_decimal(value) else f"?{type(value).__name__}"


def _kind_of_whole(number: int) -> str:
    return "int" if -_EXACT <= number <= _EXACT else "wide" if -_BITS_64 <= number < _BITS_64 else "huge"


def kind_of_cell(cell: str) -> str:
    """Return the kind of a cell of a table in text: `int` and `float` as Python writes them, else `str`."""
    if not cell:
        return "null"
    if _WHOLE.fullmatch(cell):
        kind = "int" if len(cell) < 16 else _kind_of_whole(int(cell)) if len(cell) <= 20 else "huge"
        return "str" if kind == "huge" else kind
    if cell in _NO_NUMBERS:
        return "float"
    return "float" if _NUMBER.fullmatch(cell) and math.isfinite(float(cell)) else "str"


def why_text(column: str, cells: Sequence[str]) -> str:
    """Return a sentence on a column of text if pandas makes numbers, truth values or missing values of its cells.

    `cells` are the first ones, without empty ones. The sentence is empty if pandas makes text of all of them.
    """
    missing = [cell for cell in cells if cell in _MISSING]
    others = [cell for cell in cells if cell not in _MISSING]
    if others and {cell.lower() for cell in others} <= _TRUTH:
        return f"column {column!r} is text: {others[0]!r} is no number here"
    odd = [cell for cell in others if kind_of_cell(cell) == "str"]
    if others and all(kind_of_cell(cell) != "str" or _LOOSE.fullmatch(cell) for cell in others):
        whole = all(map(INT_DECLARED.fullmatch, others))
        codec = "int" if whole else "float" if all(map(FLOAT_DECLARED.fullmatch, others)) else ""
        small = codec == "float" or all(len(cell.strip()) <= 18 for cell in others)
        cure = f": --field {column}={codec} makes numbers of its cells" if codec and small and not missing else ""
        return f"column {column!r} is text, because of {[*odd, *missing, *others][0]!r}{cure}"
    return f"column {column!r} has text such as {missing[0]!r}, which is not a missing value here" if missing else ""


def common_codec(kinds: Iterable[str]) -> str | None:
    """Return one codec for all columns or values of these kinds; `null` if all are missing, None if there is none."""
    counts = Counter(kinds)
    found = counts.keys() - {"null"}
    if found > {"nan"}:
        found -= {"nan"}
    if not found:
        return "null"
    if found <= {"int", "wide"}:
        return "int"
    if found <= {"int", "wide", "huge"}:
        return "str"
    if found <= {"int", "float", "nan"}:
        return "float"
    if found <= {"bytes", *_MEDIA}:
        return _most({kind: counts[kind] for kind in found})
    kind = found.pop() if len(found) == 1 else "?"
    return None if kind.startswith("?") or kind == "wide" else kind


def fits_of_cells(codecs: Mapping[str, str]) -> dict[str, Fit]:
    """Return the conversions of the cells of columns of these codecs: column -> conversion."""
    return {column: _CELLS[codec] for column, codec in codecs.items() if codec in _CELLS}


def fits_of_values(kinds: Mapping[str, Iterable[str]]) -> dict[str, Fit]:
    """Return the conversions of the values of columns that had these kinds in the first rows: column -> conversion."""
    fits = {}
    for column, some in kinds.items():
        codec = common_codec(some)
        fit = _digits if "huge" in some and codec == "str" else _VALUES.get(str(codec))
        if fit is not None:
            fits[column] = fit
    return fits


def _int_cell(cell: str) -> int | Misfit:
    if not _WHOLE.fullmatch(cell):
        return Misfit(cell)
    number = int(cell) if len(cell) <= 20 else _BITS_64
    return number if -_BITS_64 <= number < _BITS_64 else Misfit(cell)


def _float_cell(cell: str) -> float | Misfit:
    return float(cell) if kind_of_cell(cell) in ("int", "float") else Misfit(cell)


def _int_value(value: Any) -> Any:
    whole = isinstance(value, int | np.integer | np.bool_) and -_BITS_64 <= int(value) < _BITS_64
    return value if whole else Misfit(value)


def _float_value(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return value
    whole = isinstance(value, int | np.integer | np.bool_) and _kind_of_whole(int(value)) == "int"
    return float(value) if whole else Misfit(value)


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value) if _is_decimal(value) else Misfit(value)


def _digits(value: Any) -> Any:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return str(int(value)) if whole else Misfit(value)


def _json(value: Any) -> Any:
    return value if isinstance(value, list | tuple | Mapping) else Misfit(value)


def _is_decimal(value: Any) -> bool:
    return type(value).__name__ == "Decimal"


def fitted(values: Sequence[Any], fit: Fit) -> Any:
    """Return the values of a column for its natural codec; None for missing ones. Most columns take no call a value."""
    types = set(map(type, values))
    if types <= _UNCHANGED.get(fit, frozenset()):
        return values
    kind, together = _TOGETHER.get(fit, (None, None))
    made = together(values) if together is not None and types == {kind} else None
    return [None if value is None else fit(value) for value in values] if made is None else made


def _whole_numbers(values: Sequence[int]) -> NDArray[np.int64] | None:
    """Return whole numbers as an array; None if one of them does not fit 64 bits."""
    with suppress(OverflowError):
        return np.array(values, np.int64)
    return None


def _int_cells(cells: Sequence[str]) -> NDArray[np.int64] | None:
    """Return cells as an array of whole numbers; None if one of them is not written as Python writes such a number."""
    try:
        numbers = list(map(int, cells))
    except ValueError:
        return None
    return _whole_numbers(numbers) if list(map(str, numbers)) == list(cells) else None


def _float_cells(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Return cells as an array of numbers; None if one of them needs a closer look.

    Accepted are digits, with a minus sign before and a decimal point between them, and without a zero before another
    digit: `float` reads more than that (`5.`, `007`, `1_0`, spaces).
    """
    joined = f",{','.join(cells)},".encode()
    if joined.translate(None, b"0123456789.,-"):
        return None
    text = np.frombuffer(joined, np.uint8)
    before, here = text[:-2], text[1:-1]
    is_digit = text >= ord("0")
    points_alone = (here == ord(".")) & ~(is_digit[:-2] & is_digit[2:])
    zeros_in_front = (here == ord("0")) & is_digit[2:] & ((before == ord(",")) | (before == ord("-")))
    if points_alone.any() or zeros_in_front.any():
        return None
    try:
        numbers = np.array(list(map(float, cells)))
    except ValueError:
        return None
    # A whole number above the exact ones is text, and one with too many digits is no finite number.
    return numbers if numbers.size and np.abs(numbers).max() < _EXACT else None


_UNCHANGED: Final[dict[Fit, frozenset[type]]] = {
    _text: frozenset((str, type(None))),
    _float_value: frozenset((float, type(None))),
    _json: frozenset((list, dict, type(None))),
}
"""Conversion -> types of values that it leaves as they are."""
_CELLS: Final[dict[str, Fit]] = {"int": _int_cell, "float": _float_cell}
_VALUES: Final[dict[str, Fit]] = {"int": _int_value, "float": _float_value, "str": _text, "json": _json}
_Together = Callable[[Sequence[Any]], NDArray[Any] | None]
_TOGETHER: Final[dict[Fit, tuple[type, _Together]]] = {
    _int_value: (int, _whole_numbers),
    _int_cell: (str, _int_cells),
    _float_cell: (str, _float_cells),
}
"""Conversion -> type of values that are converted together, if all have it, and how: much faster, and may give up."""
