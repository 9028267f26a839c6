"""Which fields does an Arrow schema give, and what are the values of a column?

    bool, integers      int      float types              float    text            str
    binary              image or audio if the first values are such files, else bytes
    struct{bytes, path} image or audio, as Hugging Face's `Image` and `Audio` are stored; the path is left out
    list of numbers     ndarray of that dtype; so are `Array2D` to `Array5D`, and tensors
    list of text        list[str]; of binary or struct{bytes, path}: list[image] or list[audio], as for one file
    dates, decimals     str      other lists, structs     json     dictionary      as its values

`ClassLabel` of Hugging Face is an `int`; if its column is called `label`, its names become the classes. A type has a
*layout*: `number`, `numbers` (lists of them), `nested` (lists of lists), `tensor`, `file` (bytes and path), `files`
(lists of them), or `plain`.
Only this module imports pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.importers.fields import FieldMapping, Fields, choose, codec_of_bytes, is_taken
from brand.chunker.importers.lists import codec_of_files
from brand.chunker.importers.objects import SourcePath
from brand.chunker.sources.blocks import cut
from brand.chunker.sources.shards import Block, Shard, Shards
from brand.errors import MissingExtraError, SourceError
from brand.formats.record import Numbered

MOST_ROWS: Final = 1 << 15
"""The most rows of a block; with few columns of numbers, that is less than a block may hold."""
_ARRAYS: Final = ("Array2D", "Array3D", "Array4D", "Array5D")
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
        raise MissingExtraError(
            "reading Parquet and Arrow needs the package pyarrow: pip install 'brand-data[parquet]'"
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
        return layout_of(kind.value_type, feature)[0], "plain"
    if types.is_struct(kind) and _is_file(kind):
        return _MEDIA.get(str(feature.get("_type")), "?"), "file"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        if _is_number(kind.value_type):
            return "ndarray", "numbers"
        if feature.get("_type") in _ARRAYS:
            return "ndarray", "nested"
        codec, layout = layout_of(kind.value_type, _element(feature))
        codec = f"list[{codec}]"
        return (codec, "files" if layout == "file" else "plain") if codec in _LISTS else ("json", "plain")
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


def _element(feature: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feature of the elements of a list: `List(Image())`, `Sequence(Image())`, and `[Image()]`."""
    inner = feature.get("feature")
    return inner if isinstance(inner, dict) else {}


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def _is_file(kind: Any) -> bool:
    names = {field.name: field.type for field in kind}
    types = arrow().types
    return names.keys() == {"bytes", "path"} and (
        types.is_binary(names["bytes"]) or types.is_large_binary(names["bytes"])
    )


def values_of(column: Any, layout: str, codec: str, natural: str) -> Any:
    """Return the values of a column for a field of this codec."""
    if layout != "tensor" and isinstance(column, arrow().ExtensionArray):
        column = column.storage
    if layout == "file" and codec != "json":
        return list(map(_content, column.to_pylist()))
    if layout == "files" and codec != "json":
        return [value and [_content(file) for file in value] for value in column.to_pylist()]
    if codec == "list[ndarray]":
        return _listed_arrays(column)
    if column.null_count == 0 and codec == natural:
        if layout == "number":
            exact = np.int64 if codec == "int" else np.float64
            values = column.to_numpy(zero_copy_only=False)
            if np.can_cast(values.dtype, exact):
                return np.ascontiguousarray(values, exact)
        if layout == "numbers":
            return _arrays(column)
    if layout == "tensor" and codec == "ndarray" and column.null_count == 0:
        return list(column.to_numpy_ndarray())
    if layout == "nested" and codec == "ndarray":
        kind = column.type
        while hasattr(kind, "value_type"):
            kind = kind.value_type
        dtype = kind.to_pandas_dtype()
        return [None if value is None else np.asarray(value, dtype) for value in column.to_pylist()]
    return column.to_pylist()


def _content(file: Mapping[str, Any] | None) -> Any:
    """Return the bytes of a struct{bytes, path}.

    A file that is stored elsewhere is only named. Its name is refused, with a message that explains it.
    """
    return file and (file["path"] if file["bytes"] is None else file["bytes"])


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
    """Return lists of numbers as arrays."""
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()
    values = flat.to_numpy(zero_copy_only=False)
    if arrow().types.is_fixed_size_list(column.type):
        return list(values.reshape(len(column), column.type.list_size))
    lengths = arrow().compute.list_value_length(column).to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(column) else []


def row_bytes(batch: Any) -> NDArray[np.int64]:
    """Return about how many bytes each row of a record batch holds."""
    return sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def _sizes(column: Any) -> NDArray[np.int64]:
    """Return the bytes of each value of a column: exact for binary values, texts, lists of numbers, and structs."""
    types, kind = arrow().types, column.type
    if isinstance(column, arrow().ExtensionArray):
        return _sizes(column.storage)
    if types.is_struct(kind):
        return sum(map(_sizes, column.flatten()), np.zeros(len(column), np.int64))
    width, lengths = 1, None
    if types.is_list(kind) or types.is_large_list(kind):
        width = max(1, kind.value_type.bit_width // 8) if _is_number(kind.value_type) else 8
        lengths = arrow().compute.list_value_length(column)
    elif types.is_binary(kind) or types.is_large_binary(kind) or types.is_string(kind) or types.is_large_string(kind):
        lengths = arrow().compute.binary_length(column)
    if lengths is None:
        mean = 0 if types.is_dictionary(kind) else column.nbytes // max(1, len(column))
        return np.full(len(column), mean, np.int64)
    sizes: NDArray[np.int64] = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return width * sizes


class ArrowFields:
    """The fields of an Arrow schema."""

    def __init__(
        self,
        schema: Any,
        first_rows: Callable[[list[str]], Any],
        choice: FieldMapping,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        """Choose the fields. `first_rows` returns a table of the first rows of some columns.

        `order` is that of the fields, and names all. Raises `UsageError` if the choice does not fit the schema.
        """
        features = _features(schema)
        self._layouts = {column.name: layout_of(column.type, features.get(column.name, {})) for column in schema}
        open_ones = [name for name, (codec, _) in self._layouts.items() if "?" in codec and is_taken(name, choice)]
        looked_at = first_rows(open_ones) if open_ones else {}
        natural = []
        for name in order or self._layouts:
            codec, layout = self._layouts[name]
            if codec == "?":
                codec = codec_of_bytes(_bytes_of(looked_at[name], layout)) if name in open_ones else "bytes"
            if codec == "list[?]":
                codec = (
                    codec_of_files(name, looked_at[name].to_pylist(), choice.codecs) if name in open_ones else "json"
                )
            natural.append((name, codec))
        self._natural = dict(natural)
        self.fields: Fields = choose(natural, choice)
        names = next((_class_names(features.get(c, {})) for c, n in self._renamed if n == "label"), None)
        self.classes = names if names and self.fields.schema.codec("label") == "int" else None

    @cached_property
    def _renamed(self) -> list[tuple[str, str]]:
        return list(zip(self.fields.columns, self.fields.schema.names, strict=True))

    def check(self, name: str, schema: Any, first: str, hint: str = "") -> None:
        """Raise `SourceError` if the schema of the file `name` differs from that of the file `first`."""
        features = _features(schema)
        types = {column.name: column.type for column in schema}
        for column in self.fields.columns:
            if column not in types:
                differs = f"it lacks the column {column!r}"
            elif layout_of(types[column], features.get(column, {})) != self._layouts[column]:
                differs = f"its column {column!r} is {types[column]}, which is another kind of values"
            else:
                continue
            raise SourceError(name, f"{differs}; it is not as in {first}", hint=hint)

    def blocks(self, batches: Iterable[Any], row: int = 0) -> Iterator[Block]:
        """Yield the rows of record batches as blocks of some megabytes, or of one row if that is larger.

        `row` is the number of the first row in messages.
        """
        for batch in batches:
            for low, high in cut(row_bytes(batch.select(list(self.fields.columns))), MOST_ROWS):
                yield self._block(batch.slice(low, high - low), row + low)
            row += batch.num_rows

    def _block(self, batch: Any, row: int) -> Block:
        columns = {}
        for (column, _), (_, codec) in zip(self._renamed, self.fields.schema.fields, strict=True):
            layout = self._layouts[column][1]
            columns[column] = values_of(batch.column(column), layout, codec, self._natural[column])
        return self.fields.block(columns, Numbered(range(row, row + batch.num_rows), "row"))


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features that Hugging Face has stored for the columns, by name."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    lists = {name: {"feature": value[0]} for name, value in (features or {}).items() if _is_short_list(value)}
    return {name: value for name, value in (features or {}).items() if isinstance(value, dict)} | lists


def _is_short_list(feature: Any) -> bool:
    """Whether a feature is written `[Image()]`, which means `List(Image())`."""
    return isinstance(feature, list) and len(feature) == 1


def _class_names(feature: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = feature.get("names")
    return tuple(map(str, names)) if feature.get("_type") == "ClassLabel" and isinstance(names, list) else None


def _bytes_of(column: Any, layout: str) -> list[bytes | None]:
    values = column.to_pylist()
    return [value and value["bytes"] for value in values] if layout == "file" else values


class ArrowShards(Shards):
    """Shards that hold batches of Arrow."""

    def __init__(self, shards: Iterable[Shard], columns: ArrowFields) -> None:
        fields = columns.fields
        super().__init__(shards, fields.schema, fields.choice, fields.renamed, columns.classes)
        self._columns = columns


@contextmanager
def arrow_errors(name: str, what: str) -> Iterator[None]:
    """Turn an error of Arrow about the file `name` into a `SourceError` that says `what` the fault is."""
    library = arrow()
    try:
        yield
    except (library.ArrowException, OSError) as error:
        raise SourceError(name, f"{what}: {error}") from error


def intact(name: str, what: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of the file `name`. Raises `SourceError` if one cannot be read."""
    with arrow_errors(name, what):
        yield from batches
