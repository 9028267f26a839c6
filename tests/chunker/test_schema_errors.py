"""What does not fit the schema is said with sample and field, whatever way the samples come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand import pack
from brand.errors import SchemaError
from brand.storage.dataset.dataset import StoredDataSet

GOOD: dict[str, Any] = {
    "int": 1,
    "float": 1.5,
    "str": "text",
    "bytes": b"raw",
    "json": {"a": [1, None]},
    "ndarray": np.arange(3),
    "image": b"\x89PNG",
    "audio": b"RIFF",
}
WRONG: list[tuple[str, Any]] = [
    ("int", "1"),
    ("int", 1.0),
    ("int", None),
    ("int", b"1"),
    ("int", np.float64(1)),
    ("int", 2**63),
    ("int", -(2**63) - 1),
    ("float", "1.0"),
    ("float", None),
    ("float", b"1"),
    ("float", [1.0]),
    ("float", 1j),
    ("float", 10**400),
    ("str", 1),
    ("str", b"text"),
    ("str", None),
    ("str", "\ud800"),
    ("bytes", "raw"),
    ("bytes", 5),
    ("bytes", None),
    ("json", {1, 2}),
    ("json", float("nan")),
    ("json", [float("inf")]),
    ("json", {"a": object()}),
    ("json", "\ud800"),
    ("json", b"raw"),
    ("ndarray", np.array(["text"])),
    ("ndarray", np.array([object()])),
    ("ndarray", np.array(["2020-01-01"], "M8[D]")),
    ("ndarray", [[1], [1, 2]]),
    ("ndarray", None),
    ("image", "a.png"),
    ("image", None),
    ("audio", 3),
]


class Items:
    """A list that is only an indexable."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize("way", [list, iter, Items], ids=["list", "iterator", "indexable"])
@pytest.mark.parametrize(("codec", "wrong"), WRONG, ids=lambda value: repr(value)[:24])
def test_a_wrong_value_names_sample_and_field(
    tmp_path: Path, way: Callable[[Any], Any], codec: str, wrong: Any
) -> None:
    """Each codec refuses what it cannot give back; the message says where."""
    samples = [{"f": GOOD[codec], "ok": 1} for _ in range(8)]
    samples[5] = {"f": wrong, "ok": 1}
    with pytest.raises(SchemaError, match=r"sample 5, field 'f'"):
        pack(way(samples), tmp_path / "set", {"ok": "int", "f": codec}, jobs=1)
    assert not (tmp_path / "set" / "brand.json").exists()


@pytest.mark.slow
def test_json_nested_too_deep_is_a_schema_error(tmp_path: Path) -> None:
    """Not a RecursionError."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SchemaError, match=r"sample 0, field 'f'"):
        pack([{"f": deep}], tmp_path / "set", {"f": "json"}, jobs=1)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("way", [list, iter, Items], ids=["list", "iterator", "indexable"])
def test_a_missing_field_names_sample_and_what_is_there(tmp_path: Path, way: Callable[[Any], Any], jobs: int) -> None:
    """The message lists the sample's own fields."""
    samples: list[dict[str, Any]] = [{"a": 1, "b": "x"} for _ in range(20)]
    samples[7] = {"a": 1, "bb": "x"}
    with pytest.raises(SchemaError, match=r"sample 7 has no field 'b'; its fields are: a, bb"):
        pack(way(samples), tmp_path / "set", {"a": "int", "b": "str"}, jobs=jobs)


@pytest.mark.parametrize("wrong", [(1, "x"), "text", 5, None, [("a", 1)]], ids=repr)
def test_a_sample_that_is_no_dict_is_named(tmp_path: Path, wrong: Any) -> None:
    """Tuples, as ImageFolder gives them, are refused with the sample's index."""
    with pytest.raises(SchemaError, match=r"sample 1 is a .*must be a dict"):
        pack([{"a": 1}, wrong], tmp_path / "set", {"a": "int"}, jobs=1)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({}, "1 to 64 fields"),
        ({f"f{n}": "int" for n in range(65)}, "1 to 64 fields"),
        ({"1a": "int"}, "1a"),
        ({"a-b": "int"}, "a-b"),
        ({"": "int"}, "field name ''"),
        ({"a" * 64: "int"}, "at most 63"),
        ({"é": "int"}, "é"),
        ({"index": "int"}, "reserved"),
        ({"key": "int"}, "'key'.*'str'"),
        ({"a": "integer"}, "integer.*bytes|integer.*int"),
        ({"a": "INT"}, "INT"),
        ({"a": int}, "unknown codec"),
        ({1: "int"}, "field name 1"),
    ],
)
def test_a_bad_schema_is_refused_before_anything_is_written(tmp_path: Path, schema: Any, named: str) -> None:
    """The message names the field and what is allowed."""
    with pytest.raises(SchemaError, match=named):
        pack([{"a": 1}], tmp_path / "set", schema, jobs=1)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("schema", [{"n": "int"}, {"label": "float"}, {"label": "str"}])
def test_classes_need_an_int_field_label(tmp_path: Path, schema: dict[str, str]) -> None:
    """Names without numbers to name are a mistake."""
    with pytest.raises(SchemaError, match="'label'"):
        pack([{"n": 1, "label": 1}], tmp_path / "set", schema, classes=["a"], jobs=1)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 0])
def test_integers_at_the_edge_are_kept(tmp_path: Path, value: int) -> None:
    """64 bits, signed, all of them."""
    pack([{"n": value}], tmp_path / "set", {"n": "int"}, jobs=1)
    assert StoredDataSet(tmp_path / "set").sample(0) == {"n": value}
    assert StoredDataSet(tmp_path / "set").column("n").tolist() == [value]
