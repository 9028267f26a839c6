"""Arrow's types and values: the codec of a type, and the values of a column for a field.

A *way* is the method by which the values of a type are read: `number`, `numbers` (lists of them), `nested` (lists of
lists), `tensor`, `file` (bytes and path), or `plain`. Only this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from brand.errors import MissingExtraError

_ARRAYS: Final = ("Array2D", "Array3D", "Array4D", "Array5D")
_MEDIA: Final = {"Image": "image", "Audio": "audio"}


def arrow() -> Any:
    """Return the library pyarrow, with its Parquet reader. Raises `MissingExtraError` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "reading Parquet and Arrow needs the package pyarrow: pip install 'brand-data[parquet]'"
        ) from error
    return pyarrow


def way_of(kind: Any, feature: Mapping[str, Any]) -> tuple[str, str]:
    """Return (codec, way of reading) of a type. The codec is `?` if it depends on the values."""
    types = arrow().types
    if isinstance(kind, arrow().BaseExtensionType):
        tensor = isinstance(kind, arrow().FixedShapeTensorType)
        return ("ndarray", "tensor") if tensor else way_of(kind.storage_type, feature)
    if types.is_dictionary(kind):
        return way_of(kind.value_type, feature)[0], "plain"
    if types.is_struct(kind) and _is_file(kind):
        return _MEDIA.get(str(feature.get("_type")), "?"), "file"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if _is_number(kind.value_type):
            return "ndarray", "numbers"
        return ("ndarray", "nested") if feature.get("_type") in _ARRAYS else ("json", "plain")
    if types.is_null(kind):
        return "null", "plain"
    if types.is_boolean(kind) or types.is_integer(kind):
        return "int", "number"
    if types.is_floating(kind):
        return "float", "number"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or str(kind) == "binary_view"
    ):
        return _MEDIA.get(str(feature.get("_type")), "?"), "plain"
    text = types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"
    return ("str", "plain") if text or types.is_temporal(kind) or types.is_decimal(kind) else ("json", "plain")


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _is_file(kind: Any) -> bool:
    names = {field.name: field.type for field in kind}
    types = arrow().types
    return names.keys() == {"bytes", "path"} and (
        types.is_binary(names["bytes"]) or types.is_large_binary(names["bytes"])
    )


def values_of(column: Any, way: str, codec: str, natural: str) -> Any:
    """Return the values of a column for a field of this codec."""
    if way != "tensor" and isinstance(column, arrow().ExtensionArray):
        column = column.storage
    if way == "file" and codec != "json":
        # A file that is stored elsewhere is only named. Its name is refused, with a message that explains it.
        return [value and (value["path"] if value["bytes"] is None else value["bytes"]) for value in column.to_pylist()]
    if column.null_count == 0 and codec == natural:
        if way == "number":
            exact = np.int64 if codec == "int" else np.float64
            values = column.to_numpy(zero_copy_only=False)
            if np.can_cast(values.dtype, exact):
                return np.ascontiguousarray(values, exact)
        if way == "numbers":
            return _arrays(column)
    if way == "tensor" and codec == "ndarray" and column.null_count == 0:
        return list(column.to_numpy_ndarray())
    if way == "nested" and codec == "ndarray":
        dtype = _innermost(column.type)
        return [None if value is None else np.asarray(value, dtype) for value in column.to_pylist()]
    return column.to_pylist()


def _arrays(column: Any) -> Any:
    """Return lists of numbers as arrays."""
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()
    values = flat.to_numpy(zero_copy_only=False)
    if arrow().types.is_fixed_size_list(column.type):
        return list(values.reshape(len(column), column.type.list_size))
    lengths = arrow().compute.list_value_length(column).to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(column) else []


def _innermost(kind: Any) -> Any:
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind.to_pandas_dtype()
