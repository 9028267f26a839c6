"""CSV and TSV: the cells that pandas and the csv module read, bad rows one by one, and codecs that lose nothing."""

from __future__ import annotations

import csv
import gzip
import io
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker.importers.fields import FieldMapping, choose, fields_told
from brand.chunker.sources.texttable import MOST_CHARACTERS, Dialect, TextTable
from brand.errors import SourceError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.rounds import examples
from tests.support import Outcome, brand


def converted(source: Path, *more: str) -> Outcome:
    return brand("convert", "csv", source, source.parent / "set", "-j", 1, *more)


def rows_of(target: Path) -> list[dict[str, Any]]:
    stored = StoredDataSet(target)
    return [{k: v for k, v in stored.sample(i).items() if k != "index"} for i in range(len(stored))]


def codecs_of(target: Path) -> dict[str, str]:
    return dict(StoredDataSet(target).header.schema.fields)


def table(text: str | bytes, dialect: Dialect | None = None, name: str = "x.csv") -> TextTable:
    data = text if isinstance(text, bytes) else text.encode()
    return TextTable(name, name, io.BytesIO(data), dialect or Dialect())


QUOTES = [
    'He said "hi"',
    '"Hello," she said',
    '"unbalanced',
    'unbalanced"',
    '5" disk',
    '"',
    '""',
    "it's",
    '"both"',
    "plain",
]


def test_a_table_with_tabs_is_read_literally(tmp_path: Path) -> None:
    """A thousand rows with quotes stay a thousand rows, as pandas reads them with QUOTE_NONE; the report counts."""
    random.seed(7)
    lines = [f"{n}\t{random.choice(QUOTES)} {n}\t{random.choice(QUOTES)}" for n in range(1000)]
    source = tmp_path / "x.tsv"
    source.write_text("id\ttext\tmore\n" + "\n".join(lines) + "\n")
    told = converted(source, "--json")
    assert told.code == 0, told.err
    expected = pd.read_csv(source, sep="\t", quoting=csv.QUOTE_NONE, dtype={"text": str, "more": str})
    assert rows_of(tmp_path / "set") == expected.to_dict("records")
    quoted = sum(any(len(c) > 1 and c[0] == c[-1] == '"' for c in line.split("\t")) for line in lines)
    assert f"{quoted} rows have cells in quotes, and the quotes are kept: --quote double removes them" in str(told.json)


def test_the_hint_of_literal_quotes_reads_what_pandas_wrote(tmp_path: Path) -> None:
    """`--quote double` for a TSV with quoted cells, as `to_csv` writes it."""
    frame = pd.DataFrame({"id": [1, 2, 3], "text": ['a "quote"', "two\nlines", "tab\there"]})
    frame.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    assert "--quote double" in converted(tmp_path / "x.tsv").err
    assert converted(tmp_path / "x.tsv", "--quote", "double").code == 0
    assert rows_of(tmp_path / "set") == frame.to_dict("records")


def test_a_quoted_header_of_a_tsv_asks_how_it_is_meant(tmp_path: Path) -> None:
    """As R's write.table writes it."""
    (tmp_path / "x.tsv").write_text('"id"\t"text"\n1\t"a"\n')
    told = converted(tmp_path / "x.tsv")
    assert (told.code, "give --quote double" in told.err) == (2, True)
    assert converted(tmp_path / "x.tsv", "--quote", "double").code == 0
    assert rows_of(tmp_path / "set") == [{"id": 1, "text": "a"}]


@pytest.mark.parametrize(
    ("text", "more", "expected"),
    [
        ("a|b\n1|x,y\n", (), [{"a": 1, "b": "x,y"}]),
        ("a;b\n1;2,5\n", (), [{"a": 1, "b": "2,5"}]),
        ('"a,1";b\n1;x\n', (), [{"a_1": 1, "b": "x"}]),
        ("a:b\n1:x\n", ("--separator", ":"), [{"a": 1, "b": "x"}]),
        ("a b\n1 x\n", ("--separator", "space"), [{"a": 1, "b": "x"}]),
        ("a\tb,c\n1\tx\n", ("--separator", "tab"), [{"a": 1, "b_c": "x"}]),
        ("a\tb,c,d\n1\tx\n", ("--separator", "\\t"), [{"a": 1, "b_c_d": "x"}]),
        ("a,b\n1,'x, y'\n", ("--quote", "single"), [{"a": 1, "b": "x, y"}]),
        ('a,b\n1,"x\n2,y"\n', ("--quote", "none"), [{"a": 1, "b": '"x'}, {"a": 2, "b": 'y"'}]),
        ('a,b\n1,"say \\"hi\\""\n', ("--escape", "\\"), [{"a": 1, "b": 'say "hi"'}]),
        ("a,b\n1,x\\, y\n", ("--escape", "\\", "--quote", "none"), [{"a": 1, "b": "x, y"}]),
        ("\ufeffa,b\n1,x\n", (), [{"a": 1, "b": "x"}]),
        ("a,b\r\n1,x\r\n\r\n2,y\r\n", (), [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
        ('a,b\n1,"x\r\ny"\n', (), [{"a": 1, "b": "x\r\ny"}]),
        ("a,b\n1,\n2,y", (), [{"a": 1, "b": ""}, {"a": 2, "b": "y"}]),
    ],
)
def test_forms_of_tables(text: str, more: tuple[str, ...], expected: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text.encode())
    told = converted(tmp_path / "x.csv", *more)
    assert told.code == 0, told.err
    assert rows_of(tmp_path / "set") == expected


BAD_ROWS = [
    ("a,b\n1,x\n2\n3,z\n", "line 3", "it has 1 cell, and the header has 2 columns"),
    ("a,b\n1,x\n2,y,y\n3,z\n", "line 3", "it has 3 cells, and the header has 2 columns"),
    ('a,b\n1,x\n2,"y\n3,z\n', "line 3", "a quote that opens in it is not closed properly up to line 4"),
    ('a,b\n1,x\n2,"y\n3,z\n4,"w"\n', "line 3", "a quote that opens in it is not closed properly up to line 5"),
    ('a,b\n1,x\n2,"y"y\n3,z\n', "line 3", "',' expected after '\"'"),
    ('a,b\n1,x\n"2,y"\n3,z\n', "line 3", "it has 1 cell"),
    ('a,b\n1,x\n2,"y\n",y\n3,z\n', "line 3", "it has 3 cells, and the header has 2 columns; a quote that opens in it"),
    ("a,b\n1,x\n2,y\ry\n3,z\n", "line 3", "it has a carriage return outside of quotes"),
    ("a\tb\n1\tx\n2\ty\ty\n3\tz\n", "line 3", "it has 3 cells, and the header has 2 columns"),
    (b"a,b\n1,x\n2,\xe9\n3,z\n", "line 3", "it is not UTF-8: "),
    (b"a\tb\n1\tx\n2\t\xe9\n3\tz\n", "line 3", "it is not UTF-8: "),
]


@pytest.mark.parametrize(("text", "line", "says"), BAD_ROWS)
def test_a_bad_row_is_one_row_and_can_be_left_out(text: str | bytes, line: str, says: str, tmp_path: Path) -> None:
    """It is named by the line at which it begins; the rows around it are read."""
    source = tmp_path / "x.csv"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    told = converted(source)
    assert told.code == 1
    assert f"x.csv: {line}: {says}" in told.err
    told = converted(source, "--on-error", "skip", "--json")
    assert told.code == 0, told.err
    skipped = [problem["path"] for problem in told.json["skipped"]]
    kept = [row["a"] for row in rows_of(tmp_path / "set")]
    assert skipped[0] == f"x.csv, {line}"
    assert kept[:1] == [1]
    assert {3, "3"} & set(kept) or len(skipped) > 1


def test_an_open_quote_does_not_swallow_the_rows_that_follow(tmp_path: Path) -> None:
    """Of 500 rows, ten begin a quote that they do not close: 490 are samples."""
    lines = [f'{n},"open {n}' if n % 50 == 7 else f"{n},text {n}" for n in range(500)]
    (tmp_path / "x.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    told = converted(tmp_path / "x.csv", "--on-error", "skip", "--json")
    assert [row["a"] for row in rows_of(tmp_path / "set")] == [n for n in range(500) if n % 50 != 7]
    assert [p["path"] for p in told.json["skipped"]] == [f"x.csv, line {n + 2}" for n in range(500) if n % 50 == 7]
    assert brand("convert", "csv", tmp_path / "x.csv", tmp_path / "all", "--quote", "none", "-j", 1).code == 0
    assert len(StoredDataSet(tmp_path / "all")) == 500


def test_rows_inside_of_a_quoted_cell_are_told(tmp_path: Path) -> None:
    """Such a table is valid, so it is read; the report says that it may be meant otherwise."""
    (tmp_path / "x.csv").write_text('a,b\n1,"x\n2,y\n3,z"\n4,w\n')
    told = converted(tmp_path / "x.csv")
    assert "1 row has a cell in quotes that holds lines like rows: --quote none" in told.out
    assert "x.csv, line 2" in told.out
    assert [row["b"] for row in rows_of(tmp_path / "set")] == ["x\n2,y\n3,z", "w"]


def test_a_quote_that_never_closes_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is given up after a number of characters."""
    monkeypatch.setattr("brand.chunker.sources.texttable.MOST_CHARACTERS", 200)
    rows = list(table('a,b\n1,"x\n' + "2,y\n" * 1000))
    assert len(rows) == 1001
    assert [line for line, _, fault in rows if fault] == [2]
    assert MOST_CHARACTERS == 64 << 20


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-16", True), ("utf-16-le", False), ("utf-16-be", False), ("utf-32", True), ("utf-16-be", True)],
)
def test_utf_16_names_the_encoding_and_the_command_works(encoding: str, mark: bool, tmp_path: Path) -> None:
    """As Excel writes "Unicode text"."""
    text = "a\tb\r\n1\tÄ\r\n"
    (tmp_path / "x.tsv").write_bytes((("\ufeff" if mark and encoding[-1] == "e" else "") + text).encode(encoding))
    told = converted(tmp_path / "x.tsv")
    assert (told.code, "x.tsv: it is text in UTF-" in told.err) == (1, True), told.err
    follow(told.err, tmp_path)
    told = brand("convert", "csv", tmp_path / "utf8-x.tsv", tmp_path / "set", "-j", 1)
    assert told.code == 0, told.err
    assert rows_of(tmp_path / "set") == [{"a": 1, "b": "Ä"}]


def follow(message: str, folder: Path) -> None:
    """Run the command that a message tells."""
    command = message.split("Convert it first: ")[1].split(";")[0].strip()
    subprocess.run(command, shell=True, cwd=folder, check=True)


@pytest.mark.parametrize("packed", [False, True])
def test_latin1_names_the_line_and_the_command_works(packed: bool, tmp_path: Path) -> None:
    """Also for a compressed file."""
    data = "a,b\n1,Ärger\n".encode("latin1")
    name = "x.csv.gz" if packed else "x.csv"
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    follow(converted(tmp_path / name).err, tmp_path)
    told = brand("convert", "csv", tmp_path / "utf8-x.csv", tmp_path / "set", "-j", 1)
    assert told.code == 0, told.err
    assert rows_of(tmp_path / "set") == [{"a": 1, "b": "Ärger"}]


def test_old_macs_and_wrong_names_are_told(tmp_path: Path) -> None:
    """With commands that work."""
    (tmp_path / "x.csv").write_bytes(b"a,b\r1,x\r")
    told = converted(tmp_path / "x.csv")
    assert "its lines end with CR" in told.err
    follow(told.err, tmp_path)
    assert converted(tmp_path / "unix-x.csv").code == 0
    (tmp_path / "z.csv").write_bytes(gzip.compress(b"a,b\n1,x\n"))
    told = converted(tmp_path / "z.csv")
    assert "its contents are compressed (gz)" in told.err
    subprocess.run(told.err.split("Rename it: ")[1].strip(), shell=True, cwd=tmp_path, check=True)
    assert brand("convert", "csv", tmp_path / "z.csv.gz", tmp_path / "z", "-j", 1).code == 0


@pytest.mark.parametrize(
    ("cells", "codec", "values"),
    [
        (["1234567890123456789", "1234567890123456788"], "int", [1234567890123456789, 1234567890123456788]),
        (["9223372036854775807", "-9223372036854775808"], "int", [2**63 - 1, -(2**63)]),
        (["9223372036854775808", "1"], "str", ["9223372036854775808", "1"]),
        (["18446744073709551615", "12"], "str", ["18446744073709551615", "12"]),
        (["9" * 5000, "1"], "str", ["9" * 5000, "1"]),
        (["9007199254740993", "1.5"], "str", ["9007199254740993", "1.5"]),
        (["9007199254740992", "1.5"], "float", [9007199254740992.0, 1.5]),
        (["01234", "1"], "str", ["01234", "1"]),
        (["+1", "1"], "str", ["+1", "1"]),
        (["1_000", "1"], "str", ["1_000", "1"]),
        (["1e400", "1"], "str", ["1e400", "1"]),
        (["1e5", "1"], "float", [1e5, 1.0]),
        (["-0", "0.5"], "float", [-0.0, 0.5]),
        (["1.50", "2"], "float", [1.5, 2.0]),
        (["٣", "1"], "str", ["٣", "1"]),
        (["true", "false"], "str", ["true", "false"]),
        (["", "x"], "str", ["", "x"]),
    ],
)
def test_numbers_are_never_rounded(cells: list[str], codec: str, values: list[Any], tmp_path: Path) -> None:
    """Whole numbers of 64 bits are int; what no codec of numbers holds exactly is text."""
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{cell},x\n" for cell in cells))
    told = converted(tmp_path / "x.csv")
    assert told.code == 0, told.err
    assert codecs_of(tmp_path / "set")["a"] == codec
    assert [row["a"] for row in rows_of(tmp_path / "set")] == values


@pytest.mark.parametrize(
    ("first", "late", "cure", "value"),
    [
        ("1", "01234", "a=str", "01234"),
        ("1", "+7", "a=str", "+7"),
        ("1", " 7", "a=str", " 7"),
        ("1", "2.0", "a=str", "2.0"),
        ("1", "9223372036854775808", "a=str", "9223372036854775808"),
        ("1", "NaN", "a=str", "NaN"),
        ("1.5", "01.5", "a=str", "01.5"),
        ("1.5", "9007199254740993", "a=str", "9007199254740993"),
        ("1.5", "1e999", "a=str", "1e999"),
        ("1.5", "1.", "a=str", "1."),
        ("1.5", " 2.5", "a=str", " 2.5"),
    ],
)
def test_a_late_cell_of_another_kind_is_refused_and_the_hint_helps(
    first: str, late: str, cure: str, value: str, tmp_path: Path
) -> None:
    """Behind the rows that decide the codec nothing is converted that the user has not asked for."""
    (tmp_path / "x.csv").write_text("a,b\n" + f"{first},x\n" * 1000 + f"{late},y\n")
    told = converted(tmp_path / "x.csv")
    assert told.code == 1
    assert (
        f"x.csv: line 1002: field 'a': expected {'float' if '.' in first else 'int'}, as in the first rows" in told.err
    )
    assert f"--field {cure} stores all as text" in told.err
    assert converted(tmp_path / "x.csv", "--field", cure).code == 0
    assert rows_of(tmp_path / "set")[-1]["a"] == value


def test_a_chosen_codec_converts_what_the_page_says(tmp_path: Path) -> None:
    """`--field a=int` takes 01234, and ` 7 `."""
    (tmp_path / "x.csv").write_text("a,b\n01234,x\n 7 ,y\n")
    assert converted(tmp_path / "x.csv", "--field", "a=int").code == 0
    assert [row["a"] for row in rows_of(tmp_path / "set")] == [1234, 7]


def test_missing_cells_do_not_decide(tmp_path: Path) -> None:
    """A column that begins with empty cells has the codec of its values; a missing number needs a value."""
    (tmp_path / "x.csv").write_text("a,b\n" + ",x\n" * 20 + "5,\n")
    told = converted(tmp_path / "x.csv")
    assert "line 2, field 'a': expected int, found NoneType" in told.err
    assert converted(tmp_path / "x.csv", "--null", "a=-1").code == 0
    assert [row["a"] for row in rows_of(tmp_path / "set")] == [-1] * 20 + [5]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--separator", "ab"), "--separator 'ab': give one character, or tab, or space"),
        (("--escape", "ab"), "--escape 'ab': give one character"),
        (("--escape", ",", "--separator", ","), "name one character twice"),
        (("--quote", "triple"), "'triple' is not one of 'none', 'double', 'single'"),
    ],
)
def test_a_wrong_form_is_refused(more: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,x\n")
    told = converted(tmp_path / "x.csv", *more)
    assert (told.code, says in told.err) == (2, True), told.err


def test_columns_of_other_scripts_are_renamed(tmp_path: Path) -> None:
    """Two names without a Latin letter would be one field: the message says how each gets a name, and it works."""
    (tmp_path / "x.csv").write_text("标题,正文,label\n一,二,3\n", encoding="utf-8")
    told = converted(tmp_path / "x.csv")
    assert "columns '标题' and '正文' would both be field '__'" in told.err
    assert "--field NEW='正文'" in told.err or "--field NEW=正文" in told.err
    told = converted(tmp_path / "x.csv", "--field", "title=标题", "--field", "body=正文", "--field", "label=str")
    assert told.code == 0, told.err
    assert rows_of(tmp_path / "set") == [{"title": "一", "body": "二", "label": "3"}]
    assert "column '标题' is field 'title'" in told.out


def mapping(told: dict[str, str]) -> FieldMapping:
    """The options `--field` of a user."""
    codecs, renames = fields_told(told)
    return FieldMapping(codecs=codecs, renames=renames)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"picture": "image:image"}, {"picture": "image", "int": "int"}),
        ({"picture": "image:str", "n": "int:float"}, {"picture": "str", "n": "float"}),
        ({"image": "bytes"}, {"image": "bytes", "int": "int"}),
        ({"int": "float"}, {"image": "str", "int": "float"}),
    ],
)
def test_a_column_with_the_name_of_a_codec_is_renamed(told: dict[str, str], expected: dict[str, str]) -> None:
    """The value of `--field` is a codec if it is the name of one; `NEW=COLUMN:CODEC` always renames."""
    fields = choose([("image", "str"), ("int", "int")], mapping(told))
    assert dict(fields.schema.fields) == expected


def test_a_rename_that_reads_as_a_codec_says_how_it_is_written() -> None:
    """And that helps."""
    with pytest.raises(UsageError, match=r"no column 'picture'.*--field picture=image:image renames column 'image'"):
        choose([("image", "str")], mapping({"picture": "image"}))
    fields = choose([("image", "str")], mapping({"picture": "image:image"}))
    assert fields.pairs == (("image", "picture", "image"),)


def test_a_table_without_a_header_is_told(tmp_path: Path) -> None:
    """Its first row would be lost without a word."""
    (tmp_path / "x.csv").write_text("5.1,3.5,setosa\n4.9,3.0,setosa\n")
    told = converted(tmp_path / "x.csv")
    assert "The first line of x.csv is read as the names of the columns, and '5.1' looks like a value" in told.out
    (tmp_path / "y.csv").write_text("length,width,kind\n4.9,3.0,setosa\n")
    told = brand("convert", "csv", tmp_path / "y.csv", tmp_path / "two", "-j", 1)
    assert "is read as the names" not in told.out


def test_a_cell_that_is_no_json_is_refused(tmp_path: Path) -> None:
    """In a column that the user declares as JSON, as Python's own notation of a dict is."""
    (tmp_path / "x.csv").write_text('a,b\n1,"{""k"": 1}"\n2,"{\'k\': 1}"\n3,\n')
    told = converted(tmp_path / "x.csv", "--field", "b=json")
    assert "x.csv: line 3: field 'b': it is no JSON: \"{'k': 1}\". --field b=str" in told.err
    assert converted(tmp_path / "x.csv", "--field", "b=json", "--on-error", "skip").code == 0
    assert [row["b"] for row in rows_of(tmp_path / "set")] == [{"k": 1}, None]


def test_wide_tables_become_arrays(tmp_path: Path) -> None:
    """The message names the option, and it works: the values are those that pandas reads."""
    made = np.random.default_rng(3).integers(0, 255, (20, 100))
    frame = pd.DataFrame(made, columns=[f"pixel{n}" for n in range(100)])
    frame.insert(0, "label", range(20))
    frame.to_csv(tmp_path / "x.csv", index=False)
    told = converted(tmp_path / "x.csv")
    assert "the source has 101 columns, and a sample has at most 64 fields" in told.err
    assert "--pack-columns vector='pixel*'" in told.err
    told = converted(tmp_path / "x.csv", "--pack-columns", "vector=pixel*")
    assert told.code == 0, told.err
    rows = rows_of(tmp_path / "set")
    assert [row["label"] for row in rows] == list(range(20))
    assert np.array_equal(np.stack([row["vector"] for row in rows]), made)
    assert rows[0]["vector"].dtype == np.int64
    assert "100 columns from 'pixel0' to 'pixel99' are field 'vector', an array of int64" in told.out


@pytest.mark.parametrize(
    ("more", "values", "says"),
    [
        (("v=a,b",), [[1.0, 2.5], [3.0, 4.0]], ""),
        (("v=b,a",), [[2.5, 1.0], [4.0, 3.0]], ""),
        (("v=a,c",), None, "column 'c' is str, and an array holds numbers"),
        (("v=a,z",), None, "the source has no column 'z'"),
        (("v=a,d",), None, "field 'v': column 'd' is missing. --null v=VALUE replaces it"),
    ],
)
def test_packed_columns(more: tuple[str, ...], values: Any, says: str, tmp_path: Path) -> None:
    """Whole and other numbers together are floats, in the order of the option; a missing one is no 0."""
    (tmp_path / "x.csv").write_text("a,b,c,d\n1,2.5,x,5\n3,4,y,\n")
    told = converted(tmp_path / "x.csv", "--pack-columns", *more, "--columns", "c")
    assert says in told.err
    if values is None:
        assert told.code != 0
        return
    rows = rows_of(tmp_path / "set")
    assert [row["v"].tolist() for row in rows] == values
    assert [row["c"] for row in rows] == ["x", "y"]


def test_a_missing_number_of_an_array_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,d\n1,5\n3,\n")
    told = converted(tmp_path / "x.csv", "--pack-columns", "v=a,d", "--null", "v=-1")
    assert told.code == 0, told.err
    assert [row["v"].tolist() for row in rows_of(tmp_path / "set")] == [[1, 5], [3, -1]]


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=8)


@examples(60)
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=12), st.sampled_from(",;|"))
def test_rows_are_those_of_the_csv_module(rows: list[tuple[str, str, str]], separator: str) -> None:
    """Whatever characters, quotes and breaks its writer was given."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator)
    writer.writerow(["a", "b", "c"])
    writer.writerows(rows)
    found = list(table(file.getvalue(), Dialect(separator)))
    assert all(fault is None for _, _, fault in found)
    assert [tuple(cells) for _, cells, _ in found] == rows


@examples(60)
@given(st.text(st.sampled_from('a1,"\n\\'), max_size=60))
def test_any_text_ends_and_no_line_is_lost(text: str) -> None:
    """Each line is part of a row that is read, or of a bad row, or empty."""
    try:
        found = table(f"a,b\n{text}\n")
    except (SourceError, UsageError):
        return
    lines = [line for line, _, _ in found]
    assert lines == sorted(set(lines))
    whole = list(csv.reader(io.StringIO(f"a,b\n{text}\n"), strict=False))
    if '"' not in text:
        assert len(lines) == len([row for row in whole[1:] if row])


def about_columns(told: Outcome) -> list[str]:
    """The notes of a report on columns."""
    return [note for note in told.json["notes"] if note.startswith("column ")]


@pytest.mark.parametrize(
    ("cells", "says", "cure", "values"),
    [
        (
            ["007", "10"],
            "column 'a' is text, because of '007': --field a=int makes numbers of its cells",
            "int",
            [7, 10],
        ),
        (["+1", "-2"], "column 'a' is text, because of '+1': --field a=int", "int", [1, -2]),
        ([" 1", "2 "], "column 'a' is text, because of ' 1': --field a=int", "int", [1, 2]),
        ([".5", "5."], "column 'a' is text, because of '.5': --field a=float", "float", [0.5, 5.0]),
        (["1e400", "1"], "column 'a' is text, because of '1e400': --field a=float", "float", [float("inf"), 1.0]),
        (["12345678901234567890", "1"], "column 'a' is text, because of '12345678901234567890'", "", []),
        (['"1,234"', "5"], "column 'a' is text, because of '1,234'", "", []),
        (["Infinity", "1.5"], "column 'a' is text, because of 'Infinity'", "", []),
        (["1", "NA", "3"], "column 'a' is text, because of 'NA'", "", []),
        (["True", "False"], "column 'a' is text: 'True' is no number here", "", []),
        (["true", "", "false"], "column 'a' is text: 'true' is no number here", "", []),
        (["x", "N/A", "5"], "column 'a' has text such as 'N/A', which is not a missing value here", "", []),
    ],
)
def test_text_that_pandas_takes_otherwise_is_said(
    tmp_path: Path, cells: list[str], says: str, cure: str, values: list[float]
) -> None:
    """The report says so, the hint makes the numbers that pandas reads, and a declared text is not told about."""
    source = tmp_path / "x.csv"
    source.write_text("n,a\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
    told = converted(source, "--json")
    assert told.code == 0, told.err
    (note,) = about_columns(told)
    assert note.startswith(says)
    assert ("--field" in note) == bool(cure)
    as_text = brand("convert", "csv", source, tmp_path / "text", "--field", "a=str", "--json")
    assert about_columns(as_text) == []
    if cure:
        assert brand("convert", "csv", source, tmp_path / "cured", "--field", f"a={cure}").code == 0
        assert [row["a"] for row in rows_of(tmp_path / "cured")] == values == pd.read_csv(source)["a"].tolist()


@pytest.mark.parametrize(
    "cells", [["1", "2"], ["a", "b"], ["1.5", "nan"], ["1", "x"], ["2024-01-01", "2024"], ["0x1F", "7"]]
)
def test_columns_that_pandas_takes_alike_are_not_told_about(tmp_path: Path, cells: list[str]) -> None:
    """Numbers, text, and mixtures that stay text."""
    (tmp_path / "x.csv").write_text("n,a\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
    assert about_columns(converted(tmp_path / "x.csv", "--json")) == []


def test_empty_cells_of_text_are_counted(tmp_path: Path) -> None:
    """Over all files, with the first of them; pandas reads them as missing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.csv").write_text("a,b,c\nx,1,\n,2,\ny,3,z\n")
    (tmp_path / "in/2.csv").write_text("a,b,c\n,4,w\n")
    told = converted(tmp_path / "in", "--json")
    facts = {fact["field"]: fact for fact in told.json["noticed"]}
    assert {name: fact["count"] for name, fact in facts.items()} == {"a": 2, "c": 2}
    assert facts["a"]["text"] == "2 cells are empty, and are empty texts"
    assert facts["a"]["example"] == "1.csv, line 3"
