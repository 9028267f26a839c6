"""The values of an Arrow column in Python, and the bytes that they hold.

    bool, integers      int      float types              float    text            str
    binary              image or audio if the first values are such files, else bytes
    struct{bytes, path} image or audio, as Hugging Face's `Image` and `Audio` are stored; the path is left out
    list of numbers     ndarray of that dtype; so are `Array2D` to `Array5D`, and tensors
    list of text        list[str]; of binary or struct{bytes, path}: list[image] or list[audio], as for one file
    dates, decimals     str      other lists, structs     json     dictionary      as its values
    uint64              int, or str if one of the first values does not fit int64

Times and durations become texts to their last digit (`times`), alone as in lists and structs. A type has a *layout*:
`number`, `numbers` (lists of them), `nested` (lists of lists), `tensor`, `file` (bytes and path), `files` (lists of
them), `duration`, or `plain`. Only this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.importers.times import UNITS, duration_text, moment_text, plain_text
from brand.chunker.sources.objects import SourcePath
from brand.errors import BrandError, SourceError, cause_of, missing_extra
from brand.formats.header import FIXED
from brand.formats.record import together
from brand.formats.values import LARGE

_ARRAYS: Final = ("Array2D", "Array3D", "Array4D", "Array5D")
_CONTENTS: Final = ("bytes", "image", "audio")
_LISTS: Final = ("list[?]", "list[image]", "list[audio]", "list[str]")
_MEDIA: Final = {"Image": "image", "Audio": "audio"}


def arrow() -> Any:
    """Return the library pyarrow, with its Parquet reader. Raises `MissingExtraError` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra(
            error, "reading Parquet and Arrow needs the package pyarrow", "'brand-data[parquet]'"
        ) from error
    return pyarrow


def arrow_file(path: SourcePath) -> Any:
    """Open a file for Arrow: mapped, or as a stream if it is in a store. Raises OSError."""
    return arrow().memory_map(str(path)) if isinstance(path, Path) else arrow().PythonFile(path.open(), "r")


def layout_of(kind: Any, feature: Mapping[str, Any]) -> tuple[str, str]:
    """Return (codec, layout) of a type. The codec is `?` if it depends on the values."""
    types = arrow().types
    if isinstance(kind, arrow().BaseExtensionType):
        tensor = isinstance(kind, arrow().FixedShapeTensorType)
        return ("ndarray", "tensor") if tensor else layout_of(kind.storage_type, feature)
    if types.is_dictionary(kind):
        return layout_of(kind.value_type, feature)
    if types.is_struct(kind) and _is_file(kind):
        return _MEDIA.get(str(feature.get("_type")), "?"), "file"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if _is_number(kind.value_type):
            return "ndarray", "numbers"
        if feature.get("_type") in _ARRAYS:
            return "ndarray", "nested"
        codec, layout = layout_of(kind.value_type, element_of(feature))
        if codec == "str" and not _is_text(kind.value_type):
            return "json", "plain"
        codec = f"list[{codec}]"
        return (codec, "files" if layout == "file" else "plain") if codec in _LISTS else ("json", "plain")
    if types.is_null(kind):
        return "null", "plain"
    if types.is_boolean(kind) or types.is_integer(kind):
        return ("?" if types.is_uint64(kind) else "int"), "number"
    if types.is_floating(kind):
        return "float", "number"
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or str(kind) == "binary_view"
    ):
        return _MEDIA.get(str(feature.get("_type")), "?"), "plain"
    if types.is_duration(kind):
        return "str", "duration"
    return (
        ("str", "plain") if _is_text(kind) or types.is_temporal(kind) or types.is_decimal(kind) else ("json", "plain")
    )


def element_of(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feature of the elements of a list: `List(Image())`, `Sequence(Image())`, and `[Image()]`."""
    inner = feature.get("feature")
    return inner if isinstance(inner, dict) else {}


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _is_text(kind: Any) -> bool:
    types = arrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")


def _is_file(kind: Any) -> bool:
    names = {field.name: field.type for field in kind}
    types = arrow().types
    return names.keys() == {"bytes", "path"} and (
        types.is_binary(names["bytes"]) or types.is_large_binary(names["bytes"])
    )


def values_of(column: Any, layout: str, codec: str, natural: str) -> Any:
    """Return the values of a column for a field of this codec."""
    column = plain(column)
    if codec in _CONTENTS and layout in ("file", "plain") and (views := _views(column, layout)) is not None:
        return views
    if layout == "file" and codec != "json":
        return list(map(_content, column.to_pylist()))
    if layout == "files" and codec != "json":
        return [value and [_content(file) for file in value] for value in column.to_pylist()]
    if codec == "list[ndarray]":
        return _listed_arrays(column)
    if layout == "number" and column.null_count == 0 and codec == natural and codec in FIXED:
        exact = np.int64 if codec == "int" else np.float64
        values = column.to_numpy(zero_copy_only=False)
        if np.can_cast(values.dtype, exact):
            return np.ascontiguousarray(values, exact)
    if layout == "numbers" and codec == "ndarray":
        return _arrays(column)
    if layout == "tensor" and codec == "ndarray" and column.null_count == 0:
        return list(column.to_numpy_ndarray())
    if layout == "nested" and codec == "ndarray":
        kind = column.type
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        dtype = kind.to_pandas_dtype()
        return [None if value is None else np.asarray(value, dtype) for value in column.to_pylist()]
    if layout == "duration" and codec == "float":
        a_second = UNITS[column.type.unit]
        return [None if count is None else count / a_second for count in column.cast("int64").to_pylist()]
    if codec == "json":
        return python_values(column, decimals=str)
    return python_values(column)


def numbers_of(column: Any) -> Any:
    """Return a column of numbers in its own dtype; as a list with None if values are missing."""
    column = plain(column)
    return column.to_pylist() if column.null_count else column.to_numpy(zero_copy_only=False)


def plain(column: Any) -> Any:
    """Return a column without extension type and dictionary, except tensors."""
    library = arrow()
    if isinstance(column, library.ExtensionArray) and not isinstance(column.type, library.FixedShapeTensorType):
        column = column.storage
    return column.dictionary_decode() if library.types.is_dictionary(column.type) else column


def python_values(column: Any, decimals: Callable[[Any], Any] = lambda value: value) -> list[Any]:
    """Return the values of an Arrow array, with times and durations as texts, at any depth; None for missing ones."""
    library, column = arrow(), plain(column)
    types, kind = library.types, column.type
    if _is_plain(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if types.is_struct(kind):
        parts = [python_values(part, str) for part in column.flatten()]
        names = [kind.field(number).name for number in range(kind.num_fields)]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)] if parts else column.to_pylist()
        return _with_nulls(column, rows)
    if types.is_map(kind) or not hasattr(kind, "value_type") or types.is_run_end_encoded(kind):
        return _leaves(column, decimals)
    values = python_values(column.flatten(), str)
    lengths = library.compute.list_value_length(column).fill_null(0).to_pylist()
    ends = list(accumulate(lengths))
    return _with_nulls(column, [values[end - length : end] for end, length in zip(ends, lengths, strict=True)])


def _is_plain(kind: Any) -> bool:
    """Return whether the values of a type are those of Python without a loss, at any depth."""
    types = arrow().types
    if types.is_struct(kind):
        return all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    if isinstance(kind, arrow().BaseExtensionType) or types.is_map(kind) or types.is_dictionary(kind):
        return False
    if hasattr(kind, "value_type"):
        return _is_plain(kind.value_type)
    return not (types.is_temporal(kind) or types.is_decimal(kind))


def _with_nulls(column: Any, rows: list[Any]) -> list[Any]:
    if not column.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _leaves(column: Any, decimals: Callable[[Any], Any]) -> list[Any]:
    """Return the values of an array that is neither a struct nor a list."""
    library, kind = arrow(), column.type
    types = library.types
    if types.is_duration(kind):
        a_second = UNITS[kind.unit]
        return [None if v is None else duration_text(v, a_second) for v in column.cast("int64").to_pylist()]
    if (types.is_timestamp(kind) or types.is_time64(kind)) and kind.unit == "ns":
        micro = library.timestamp("us", kind.tz) if types.is_timestamp(kind) else library.time64("us")
        counts = column.cast("int64").to_pylist()
        whole = library.array([None if v is None else v // 1000 for v in counts], "int64").cast(micro).to_pylist()
        pairs = zip(whole, counts, strict=True)
        return [None if count is None else moment_text(moment, count % 1000) for moment, count in pairs]
    if types.is_temporal(kind):
        try:
            return [plain_text(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):
            return list(map(_moment, column))
    if types.is_decimal(kind):
        return [None if value is None else decimals(value) for value in column.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


def _moment(scalar: Any) -> Any:
    """Return a point in time as text, also in a year that Python does not have."""
    try:
        return plain_text(scalar.as_py())
    except (ValueError, OverflowError):
        whole, _, fraction = scalar.cast("string").as_py().replace(" ", "T").partition(".")
        return f"{whole}.{fraction.rstrip('0')}".rstrip(".")


def _content(file: Mapping[str, Any] | None) -> Any:
    """Return the bytes of a struct{bytes, path}.

    A file that is stored elsewhere is only named. Its name is refused, with a message that explains it.
    """
    return file and (file["path"] if file["bytes"] is None else file["bytes"])


def _views(column: Any, layout: str) -> list[memoryview] | None:
    """Return large binary values as views of Arrow's memory: a copy takes as long as it takes to read them.

    None if they are small, if one is missing, or if the type is another one.
    """
    library = arrow()
    if layout == "file":
        column = dict(zip((field.name for field in column.type), column.flatten(), strict=True))["bytes"]
    if not (library.types.is_binary(column.type) or library.types.is_large_binary(column.type)) or column.null_count:
        return None
    if not len(column) or value_bytes(column).mean() < LARGE:
        return None
    return [memoryview(value.as_buffer()).cast("B") for value in column]


def is_made(schema: Any, leaf: str) -> bool:
    """Whether `array_of` makes the values of a leaf of a Parquet file, such as `image` or `image.bytes`."""
    name, _, child = leaf.partition(".")
    found = [field.type for field in schema if field.name == name]
    if child and found:
        kind = found[0]
        if not arrow().types.is_struct(kind) or not _is_file(kind) or child != "bytes":
            return False
        found = [kind.field("bytes").type]
    types = arrow().types
    return len(found) == 1 and any(
        check(found[0]) for check in (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    )


def array_of(kind: Any, values: Sequence[bytes | memoryview | None], beside: Any) -> Any:
    """Return an array of this type; of a struct, `beside` has the other children."""
    library = arrow()
    contents = kind.field("bytes").type if library.types.is_struct(kind) else kind
    large = library.types.is_large_binary(contents) or library.types.is_large_string(contents)
    # `pyarrow.array` never frees a memoryview that it is given.
    present = [value for value in values if value is not None]
    offsets = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
    data = present[0] if len(present) == 1 else together(present)
    valid = np.packbits([value is not None for value in values], bitorder="little")
    parts_of = (valid, offsets.astype(np.int64 if large else np.int32), data)
    made = library.Array.from_buffers(contents, len(values), list(map(library.py_buffer, parts_of)))
    if not library.types.is_struct(kind):
        return made
    parts = {field.name: part for field, part in zip(beside.type, beside.flatten(), strict=True)} | {"bytes": made}
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return library.StructArray.from_arrays([parts[f.name] for f in fields], fields=fields, mask=beside.is_null())


def _listed_arrays(column: Any) -> list[Any]:
    """Return lists of lists of numbers as lists of arrays of the column's dtype; other lists as they are."""
    kind = column.type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    dtype = kind.to_pandas_dtype() if _is_number(kind) else None
    return [
        value and [None if item is None else np.asarray(item, dtype) for item in value] for value in column.to_pylist()
    ]


def _arrays(column: Any) -> Any:
    """Return lists of numbers as arrays of the dtype of the column; None for a missing list."""
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()
    values = flat.to_numpy(zero_copy_only=False)
    fixed = arrow().types.is_fixed_size_list(column.type)
    if fixed and not column.null_count:
        return list(values.reshape(len(column), column.type.list_size))
    lengths = arrow().compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    if not len(column):
        return []
    return _with_nulls(column, np.split(values, np.cumsum(lengths)[:-1]))


def row_bytes(batch: Any) -> NDArray[np.int64]:
    """Return about how many bytes each row of a record batch holds."""
    return sum((value_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def value_bytes(column: Any) -> NDArray[np.int64]:
    """Return the bytes of each value of an array: exact for binary values, texts, lists of numbers, and structs."""
    types, kind = arrow().types, column.type
    if isinstance(column, arrow().ExtensionArray):
        return value_bytes(column.storage)
    if types.is_struct(kind):
        return sum(map(value_bytes, column.flatten()), np.zeros(len(column), np.int64))
    if types.is_dictionary(kind):
        places = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return value_bytes(column.dictionary)[places] if len(column.dictionary) else np.zeros(len(column), np.int64)
    width, lengths = 1, None
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = arrow().compute.list_value_length(column)
        if not _is_number(kind.value_type):
            return _list_bytes(column, lengths)
        width = max(1, kind.value_type.bit_width // 8)
    elif types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind):
        lengths = arrow().compute.binary_length(column)
    if lengths is None:
        return np.full(len(column), column.nbytes // max(1, len(column)), np.int64)
    sizes: NDArray[np.int64] = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return width * sizes


def _list_bytes(column: Any, lengths: Any) -> NDArray[np.int64]:
    """Return the bytes of each list: 8 for each element, and those of the element."""
    ends = np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(8 + value_bytes(column.flatten()))])
    return totals[ends] - totals[np.concatenate([np.zeros(1, np.int64), ends[:-1]])] if len(ends) else ends


@contextmanager
def arrow_errors(name: str, what: str) -> Iterator[None]:
    """Turn an error of Arrow about the file `name` into a `SourceError` that says `what` the fault is."""
    try:
        yield
    except BrandError:
        raise
    except Exception as error:
        raise SourceError(name, f"{what}: {cause_of(error)}") from error


def validated(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of an Arrow file, which may be damaged. Raises ArrowInvalid for one that Arrow must not touch.

    Arrow trusts the offsets in its own files: a damaged one ends the process. A text that is not UTF-8 harms nobody.
    """
    library = arrow()
    for batch in batches:
        for column in batch.columns:
            try:
                column.validate(full=True)
            except library.ArrowInvalid:
                if column.type not in (library.string(), library.large_string()):
                    raise
                kind = library.binary() if column.type == library.string() else library.large_binary()
                column.view(kind).validate(full=True)
        yield batch


def intact(name: str, what: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of the file `name`. Raises `SourceError` if one cannot be read."""
    with arrow_errors(name, what):
        yield from batches
