"""JSON: arrays, sequences and lines give the objects that the json module reads; a message for each other cause."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker.importers.jsonvalues import stream_items
from brand.errors import SourceError
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.test_text_tables import codecs_of, follow, rows_of
from tests.rounds import examples
from tests.support import Outcome, brand

ROWS: list[dict[str, Any]] = [
    {"n": n, "text": f'text {n} "quoted" äöü 梨 \\', "list": [n, {"x": None}]} for n in range(500)
]


def converted(source: Path, *more: str) -> Outcome:
    return brand("convert", "jsonl", source, source.parent / "set", "-j", 1, *more)


FORMS = {
    "array": lambda rows: json.dumps(rows),
    "array with breaks": lambda rows: json.dumps(rows, indent=2),
    "array, one object a line": lambda rows: "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n",
    "lines": lambda rows: "\n".join(map(json.dumps, rows)),
    "no break between objects": lambda rows: "".join(map(json.dumps, rows)),
    "objects with breaks": lambda rows: "\n".join(json.dumps(row, indent=1) for row in rows),
    "spaces between objects": lambda rows: " ".join(map(json.dumps, rows)),
    "arrays behind each other": lambda rows: json.dumps(rows[:100]) + json.dumps(rows[100:]),
    "an array a line": lambda rows: json.dumps(rows[:100]) + "\n" + json.dumps(rows[100:]) + "\n",
    "mark and spaces": lambda rows: "\ufeff\n  \n" + json.dumps(rows),
    "lines with a mark": lambda rows: "\ufeff" + "\r\n\r\n".join(map(json.dumps, rows)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.json.gz"])
def test_all_forms_give_the_samples(form: str, name: str, tmp_path: Path) -> None:
    """Those of the json module, in order."""
    data = FORMS[form](ROWS).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    told = converted(tmp_path / name)
    assert told.code == 0, told.err
    assert rows_of(tmp_path / "set") == ROWS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there are no samples: every file is empty"),
        (" \n\n", "there are no samples: every file is empty"),
        ("[]", "there are no samples: every file is empty"),
        ("[1, 2]", "none of its first lines is a sample. x.json: item 1: it holds a number, and a sample is an object"),
        ('"text"\n', "line 1: it holds a text, and a sample is an object"),
        ("null\n", "line 1: it holds null, and a sample is an object"),
        ("<html>\n", "line 1: it is no JSON: Expecting value"),
        ("{'a': 1}\n", "line 1: it is a dict as Python prints it, and no JSON: json.dumps writes JSON"),
        ('{"a": 1,}\n', "line 1: it is no JSON: "),
        ('{"a": 1}\n{"a": 2}{"a": 3}\n', "line 2: two values are on one line"),
        ('[{"a": 1}, {"a": 2}', "it is truncated: the array ends after item 2, without ]"),
        ('[{"a": 1}, {"a": 2', "item 2: it is no JSON: Expecting ',' delimiter"),
        ('[{"a": 1} {"a": 2}]', "after item 1: expected a comma or ], found '{'"),
        ('[{"a": 1}, {"a": tru}]', "item 2: it is no JSON: Expecting value"),
        ('[{"a": "x\ny"}]', "item 1: it is no JSON: Invalid control character"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "line 1: it is nested too deeply"),
        ('[{"a": ' + "[" * 100_000 + "]" * 100_000 + "}]", "item 1: it is nested too deeply"),
        ('[{"a": ' + "9" * 5000 + "}]", "item 1: Exceeds the limit"),
    ],
)
def test_each_cause_has_its_message(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    told = converted(tmp_path / "x.json")
    assert told.code == 1
    assert says in told.err, told.err
    assert "Traceback" not in told.err
    assert ("every file is empty" in told.err) == (not text.strip("[] \n"))


def test_values_that_are_no_objects_can_be_left_out(tmp_path: Path) -> None:
    """Of an array too; the rest is read, and they are counted by number."""
    rows = [{"a": 1}, 5, {"a": 2}, None, [1], {"a": 3}, {"b": 1}]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    told = converted(tmp_path / "x.json", "--columns", "a", "--on-error", "skip", "--json")
    assert told.code == 0, told.err
    assert [p["path"] for p in told.json["skipped"]] == [f"x.json, item {n}" for n in (2, 4, 5, 7)]
    assert [row["a"] for row in rows_of(tmp_path / "set")] == [1, 2, 3]


def test_utf_16_names_the_command_and_it_works(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": "Ä"}\n{"a": "b"}\n', encoding="utf-16")
    told = converted(tmp_path / "x.jsonl")
    assert "x.jsonl: it is text in UTF-16" in told.err
    follow(told.err, tmp_path)
    assert converted(tmp_path / "utf8-x.jsonl").code == 0
    assert rows_of(tmp_path / "set") == [{"a": "Ä"}, {"a": "b"}]


@pytest.mark.parametrize("form", ["lines", "array"])
def test_nan_is_null_and_counted(form: str, tmp_path: Path) -> None:
    """In texts, whole numbers and nested values; floats keep it. Both cures of the message help."""
    rows: list[dict[str, Any]] = [
        {"t": "x", "n": 1, "f": 0.5, "j": [1.0, {"y": 2}]},
        {"t": math.nan, "n": 2, "f": math.nan, "j": [math.nan, {"y": math.nan}]},
        {"t": "z", "n": 3, "f": 1.5, "j": []},
    ]
    (tmp_path / "x.json").write_text(FORMS[form](rows))
    told = converted(tmp_path / "x.json")
    assert "field 't' (str): expected str, found NoneType; for a missing text give ''. --null t=VALUE" in told.err
    told = converted(tmp_path / "x.json", "--null", "t=")
    assert told.code == 0, told.err
    assert "3 values are NaN, which JSON does not have: they are null" in told.out
    found = rows_of(tmp_path / "set")
    assert [row["t"] for row in found] == ["x", "", "z"]
    assert [row["j"] for row in found] == [[1.0, {"y": 2}], [None, {"y": None}], []]
    assert math.isnan(found[1]["f"])
    told = brand("convert", "jsonl", tmp_path / "x.json", tmp_path / "skip", "--on-error", "skip", "-j", 1)
    assert [row["n"] for row in rows_of(tmp_path / "skip")] == [1, 3]


@pytest.mark.parametrize(
    ("values", "codec", "found"),
    [
        ([1, True], "int", [1, 1]),
        ([2**53 + 1, 5], "int", [2**53 + 1, 5]),
        ([2**63 - 1, -(2**63)], "int", [2**63 - 1, -(2**63)]),
        ([2**63, 1], "str", [str(2**63), "1"]),
        ([10**30, -(10**30)], "str", [str(10**30), str(-(10**30))]),
        ([1, 2.5], "float", [1.0, 2.5]),
        ([2**53, 2.5], "float", [2.0**53, 2.5]),
        ([0.5, math.nan], "float", None),
        ([math.nan, math.nan], "float", None),
        ([[1], {"a": 1}], "json", [[1], {"a": 1}]),
        (["1", "2"], "str", ["1", "2"]),
    ],
)
def test_kinds_of_values(values: list[Any], codec: str, found: list[Any] | None, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"a": value}) + "\n" for value in values))
    told = converted(tmp_path / "x.jsonl")
    assert told.code == 0, told.err
    assert codecs_of(tmp_path / "set") == {"a": codec}
    assert found is None or [row["a"] for row in rows_of(tmp_path / "set")] == found


@pytest.mark.parametrize(
    ("first", "late", "cure", "stored"),
    [
        (1, "01234", "str", "01234"),
        (1, 2.0, "float", 2.0),
        (1, 2**63, "str", str(2**63)),
        (1, [1], "json", [1]),
        (0.5, 2**53 + 1, "str", str(2**53 + 1)),
        (0.5, "nan", "str", "nan"),
        ("x", 5, "str", "5"),
        ("x", True, "str", "True"),
        ("x", {"a": 1}, "json", {"a": 1}),
        ([1], "x", "json", "x"),
        ([1], 5, "json", 5),
        (2**63, "x", "str", "x"),
        (2**63, 0.5, "str", "0.5"),
    ],
)
def test_a_late_value_of_another_kind_is_refused_and_the_hint_helps(
    first: Any, late: Any, cure: str, stored: Any, tmp_path: Path
) -> None:
    """A natural codec takes only what the first rows could have had."""
    lines = [json.dumps({"a": first})] * 1000 + [json.dumps({"a": late})]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    told = converted(tmp_path / "x.jsonl")
    assert (told.code, "x.jsonl: line 1001: field 'a': " in told.err) == (1, True), told.err
    assert f"--field a={cure} stores" in told.err
    assert converted(tmp_path / "x.jsonl", "--field", f"a={cure}").code == 0
    assert rows_of(tmp_path / "set")[-1]["a"] == stored


def test_a_mixed_column_names_only_cures_that_help(tmp_path: Path) -> None:
    """Text cannot hold lists."""
    for values, cures in (([1, "x"], ("json", "str")), ([[1], "x"], ("json",)), ([2**53 + 1, 0.5], ("json", "str"))):
        (tmp_path / "x.jsonl").write_text("".join(json.dumps({"a": value}) + "\n" for value in values))
        told = converted(tmp_path / "x.jsonl")
        assert told.code == 2
        for codec in ("json", "str"):
            assert (f"--field a={codec}" in told.err) == (codec in cures)
        for number, codec in enumerate(cures):
            target = tmp_path / f"{cures}-{number}-{values[0]}"
            told = brand("convert", "jsonl", tmp_path / "x.jsonl", target, "--field", f"a={codec}", "-j", 1)
            assert told.code == 0, told.err
            assert [row["a"] for row in rows_of(target)] == (values if codec == "json" else list(map(str, values)))


def test_an_array_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    """300 MB in one line, in a process that may have 700 MB of addresses more than Python with its libraries."""
    with (tmp_path / "x.json").open("w") as file:
        text = json.dumps("x" * 10_000)
        file.write("[")
        file.writelines(f'{"," if n else ""}{{"n": {n}, "t": {text}}}' for n in range(30_000))
        file.write("]")
    code = (
        "import resource, sys; from brand.chunker.importers.jsonvalues import stream_items\n"
        "rows = (row for _, row, _, _ in stream_items('x', open(sys.argv[1], 'rb')))\n"
        "count = sum(row['n'] == n for n, row in enumerate(rows))\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.json")], capture_output=True, text=True, check=True
    )
    count, peak = map(int, run.stdout.split())
    assert count == 30_000
    assert peak < 200_000 if resource.getpagesize() == 4096 else True


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@examples(60)
@given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=6), st.integers(1, 9), st.booleans())
def test_any_array_is_read_as_the_json_module_reads_it(rows: list[dict[str, Any]], step: int, ascii_only: bool) -> None:
    """Whatever pieces the file is read in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brand.chunker.importers.jsonvalues.READ_BYTES", step)
        data = json.dumps(rows, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        try:
            data.decode()
        except UnicodeDecodeError:
            return
        found = [row for _, row, _, _ in stream_items("x", io.BytesIO(data))]
        assert found == rows


@examples(60)
@given(
    st.lists(st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=3), min_size=1, max_size=4), st.data()
)
def test_a_truncated_array_is_never_a_whole_one(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    """Wherever it is cut."""
    whole = json.dumps(rows).encode()
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(SourceError):
        list(stream_items("x", io.BytesIO(whole[:cut])))


def test_a_stored_set_has_no_nan_in_json(tmp_path: Path) -> None:
    """An infinity in a nested value is refused: JSON has none, and it is not missing."""
    (tmp_path / "x.jsonl").write_text('{"a": [1.0]}\n{"a": [Infinity]}\n')
    told = converted(tmp_path / "x.jsonl")
    assert "x.jsonl: line 2, field 'a' (json): JSON has no infinity" in told.err
    assert converted(tmp_path / "x.jsonl", "--on-error", "skip").code == 0
    assert len(StoredDataSet(tmp_path / "set")) == 1


def test_one_object_with_lists_of_objects_is_told(tmp_path: Path) -> None:
    """COCO's annotations are one object, and so one sample: the report says what to do, and that works."""
    table = {"info": {"year": 2017}, "images": [{"id": 1}, {"id": 2}], "annotations": [{"id": n} for n in range(5)]}
    (tmp_path / "instances 2017.json").write_text(json.dumps(table))
    told = converted(tmp_path / "instances 2017.json", "--json")
    (note,) = [note for note in told.json["notes"] if "one object" in note]
    assert "instances 2017.json is one object, and so one sample: its list 'annotations' has 5 items" in note
    command = re.search(r"`(.*)`", note)
    assert command, note
    subprocess.run(command[1], shell=True, cwd=tmp_path, check=True)
    (lines,) = tmp_path.glob("*.jsonl")
    assert brand("convert", "jsonl", lines, tmp_path / "each").code == 0
    assert [row["id"] for row in rows_of(tmp_path / "each")] == list(range(5))


@pytest.mark.parametrize(
    "rows", [[{"a": [1, 2]}], [{"a": [{"b": 1}]}, {"a": [{"b": 2}, {"b": 3}]}], [{"a": [{"b": 1}]}], [{"a": {"b": 1}}]]
)
def test_other_objects_are_samples_without_a_word(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(rows if len(rows) > 1 else rows[0]))
    told = converted(tmp_path / "x.json", "--json")
    assert told.code == 0, told.stdout
    assert [note.split()[0] for note in told.json["notes"]] == ["Compared"]
