"""Tables of pandas, PyArrow and Hugging Face are packed by columns; others say how they become samples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from brand import pack
from brand.errors import SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.test_importers import SAMPLES, SOURCES, plain
from tests.support import tree_digest

COLUMNS: dict[str, list[Any]] = {
    "key": ["a", "b", "c"],
    "label": [0, 1, 0],
    "score": [0.5, 1.5, -2.0],
    "text": ["Äpfel", "", "梨"],
    "facts": [{"a": [1, None]}, {"a": []}, {"a": [3]}],
}
SCHEMA = {"key": "str", "label": "int", "score": "float", "text": "str", "facts": "json"}


def rows() -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def table(kind: str) -> Any:
    """The same rows as a table of a library."""
    if kind == "pandas":
        return pd.DataFrame(COLUMNS)
    made = pa.table(COLUMNS)
    if kind == "batch":
        return made.to_batches()[0]
    return datasets.Dataset(made) if kind == "datasets" else made


def samples_of(target: Path) -> list[dict[str, Any]]:
    stored = StoredDataSet(target)
    return [dict(stored.sample(i)) for i in range(len(stored))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pandas", "table", "batch", "datasets"])
def test_a_table_is_the_data_set_that_its_rows_are(kind: str, tmp_path: Path) -> None:
    """With a schema and without one: the same bytes as from the rows as dicts."""
    pack(rows(), tmp_path / "rows", SCHEMA, jobs=1)
    pack(table(kind), tmp_path / "told", SCHEMA, jobs=1)
    pack(table(kind), tmp_path / "found", jobs=1)
    assert tree_digest(tmp_path / "rows") == tree_digest(tmp_path / "told") == tree_digest(tmp_path / "found")
    assert samples_of(tmp_path / "found") == rows()


@pytest.mark.parametrize("kind", ["pandas", "table", "datasets"])
def test_a_schema_chooses_columns_order_and_codecs(kind: str, tmp_path: Path) -> None:
    """A column that is not there is named."""
    pack(table(kind), tmp_path / "set", {"text": "str", "label": "float"}, jobs=1)
    assert StoredDataSet(tmp_path / "set").header.schema.fields == (("text", "str"), ("label", "float"))
    assert [sample["label"] for sample in samples_of(tmp_path / "set")] == [0.0, 1.0, 0.0]
    with pytest.raises(SchemaError, match="the table has no column 'lable'; its columns are: key, label"):
        pack(table(kind), tmp_path / "wrong", {"lable": "int"})
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("kind", ["pandas", "table"])
def test_a_missing_value_is_named_by_its_row(kind: str, tmp_path: Path) -> None:
    """It is refused in texts and whole numbers; a number may be NaN."""
    made = pd.DataFrame({"text": ["a", None], "x": [1.0, float("nan")]})
    taken = made if kind == "pandas" else pa.table({"text": ["a", None], "x": [1.0, float("nan")]})
    with pytest.raises(SchemaError, match=r"row 1, field 'text' \(str\): expected str, found NoneType; for a missing"):
        pack(taken, tmp_path / "set")
    assert not (tmp_path / "set").exists()
    pack(taken, tmp_path / "set", {"x": "float"}, jobs=1)
    assert str(samples_of(tmp_path / "set")) == "[{'x': 1.0}, {'x': nan}]"


def test_types_of_pandas_become_codecs(tmp_path: Path) -> None:
    """Narrow numbers, bool, categories, dates, arrays, nullable numbers, pictures."""
    picture = (SOURCES.parents[2] / "examples/data/photos/markers/left01.jpg").read_bytes()
    frame = pd.DataFrame(
        {
            "small": np.array([1, -2], np.int8),
            "yes": [True, False],
            "half": np.array([0.5, 2], np.float16),
            "kind": pd.Categorical(["x", "y"]),
            "day": pd.to_datetime(["2024-02-29", "2025-01-01"]),
            "many": pd.array([7, 8], dtype="Int64"),
            "vector": [np.arange(3.0), np.arange(2.0)],
            "photo": [picture, picture],
            "two words": ["a", "b"],
            "index": [5, 6],
        }
    )
    report = pack(frame, tmp_path / "set", jobs=1)
    first = samples_of(tmp_path / "set")[0]
    assert first.pop("vector").tolist() == [0.0, 1.0, 2.0]
    assert first.pop("photo") == picture
    expected = {"small": 1, "yes": 1, "half": 0.5, "kind": "x", "day": "2024-02-29T00:00:00", "many": 7}
    assert first == expected | {"two_words": "a", "index_": 5}
    assert StoredDataSet(tmp_path / "set").header.schema.codec("photo") == "image"
    assert report.notes == ("column 'two words' is field 'two_words'", "column 'index' is field 'index_'")


def test_types_of_arrow_become_codecs(tmp_path: Path) -> None:
    """Wide and narrow numbers, dictionaries, lists, structs, dates, decimals, tensors, slices."""
    import datetime
    import decimal

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int16).reshape(3, 2, 2))
    made = pa.table(
        {
            "u8": pa.array([0, 1, 255], "uint8"),
            "f2": pa.array(np.array([0.5, 1, 2], np.float16)),
            "yes": [True, False, True],
            "word": pa.array(["x", "y", "x"]).dictionary_encode(),
            "long": pa.array(["p", "q", "r"], "large_string"),
            "list": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
            "fixed": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
            "words": [["a"], [], ["b", "c"]],
            "day": [datetime.date(2024, 2, 29)] * 3,
            "price": [decimal.Decimal("1.20")] * 3,
            "tensor": tensor,
            "raw": [b"\0", b"\1", b"\2"],
        }
    )
    for taken in (made, pa.concat_tables([made, made]).slice(2, 3)):
        target = tmp_path / f"set-{taken.column(0)[0]}"
        pack(taken, target, jobs=1)
        expected = taken.to_pylist()
        for found, row in zip(samples_of(target), expected, strict=True):
            told = {name: plain(value) if isinstance(value, np.ndarray) else value for name, value in found.items()}
            row |= {"day": row["day"].isoformat(), "price": str(row["price"])}
            row["tensor"] = np.reshape(row["tensor"], (2, 2)).tolist()
            assert told == row
        sample = samples_of(target)[0]
        assert [sample[name].dtype for name in ("list", "fixed", "tensor")] == [np.int32, np.float32, np.int16]


def test_a_data_set_of_hugging_face_keeps_files_and_order(tmp_path: Path) -> None:
    """Pictures are not decoded, class names are taken, and a shuffled selection is what it shows."""
    whole = datasets.load_from_disk(str(SOURCES / "hf"))
    chosen = whole.select([7, 2, 11])
    pack(chosen, tmp_path / "set", jobs=1)
    stored = StoredDataSet(tmp_path / "set")
    assert stored.header.classes == ("top", "trouser", "pullover", "dress", "coat")
    for found, expected in zip(samples_of(tmp_path / "set"), [SAMPLES[i] for i in (7, 2, 11)], strict=True):
        assert {name: plain(value) for name, value in found.items()} == expected


def test_pillow_images_are_packed(tmp_path: Path, photos: Path) -> None:
    """The file of one that was opened, bit for bit; pixels as PNG."""
    from PIL import Image

    path = photos / "markers" / "left01.jpg"
    with Image.open(path) as opened, Image.open(path) as untouched:
        turned = opened.rotate(90)
        pack([{"image": untouched}, {"image": turned}], tmp_path / "set", {"image": "image"}, jobs=1)
        first, second = (sample["image"] for sample in samples_of(tmp_path / "set"))
        assert first == path.read_bytes()
        assert Image.open(io.BytesIO(second)).tobytes() == turned.tobytes()


def foreign(library: str, name: str) -> Any:
    """An object whose class is called as one of a library."""
    base = type(name, (), {"__module__": f"{library}.core.frame", "__len__": lambda self: 3})
    return type("Derived", (base,), {"__getitem__": lambda self, key: {}[key]})()


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (foreign("polars", "DataFrame"), r"samples is a DataFrame of polars: give table.to_arrow\(\)"),
        (foreign("polars", "LazyFrame"), r"give table.collect\(\).to_arrow\(\)"),
        ({"a": [1, 2], "b": [3, 4]}, r"for row in zip\(\*columns.values\(\)\)"),
        ("folder", "`brand convert`, for images, audio, tar files, Parquet"),
        (Path("folder"), "is a path, and pack takes an iterable of dicts"),
        (pd.DataFrame({1: [2]}), "the names of the table's columns must be texts"),
        (pd.DataFrame({"a": [1, "x"]}), r"column 'a' holds values of several kinds \(int, str\)"),
        (pd.DataFrame({"a": [None]}), "column 'a' has no values in the rows that were read"),
        (pa.table({"a b": [1], "a_b": [2]}), "would both be field 'a_b'"),
    ],
)
def test_the_message_says_how_samples_are_made(samples: Any, says: str, tmp_path: Path) -> None:
    """And the target is still free."""
    with pytest.raises(UsageError, match=says):
        pack(samples, tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_samples_that_are_no_table_need_a_schema(tmp_path: Path) -> None:
    """Their values may differ from sample to sample."""
    with pytest.raises(UsageError, match="the schema is missing"):
        pack([{"a": 1}], tmp_path / "set")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    """There are no data sets of no samples."""
    from brand.errors import SourceError

    with pytest.raises(SourceError, match="there are none"):
        pack(pa.table({"a": pa.array([], "int64")}), tmp_path / "set")
