"""Types of tables: each value is stored to its last digit, equal by every route, with pandas and without it."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from brand import pack
from brand.chunker.importers.natural import codec_of_bytes, common_codec, fits_of_cells, fitted
from brand.chunker.importers.times import duration_text
from brand.errors import SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.chunker.test_text_tables import codecs_of, rows_of
from tests.rounds import examples
from tests.support import brand

PHOTOS = Path(__file__).parents[2] / "examples/data/photos"
JPEG = (PHOTOS / "markers/left01.jpg").read_bytes()
NS = 1_709_208_000_123_456_789
"""2024-02-29T12:00:00.123456789, in nanoseconds."""
DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(2024, 2, 29, 12)

TYPES: dict[str, tuple[Any, str, list[Any]]] = {
    "timestamp[ns]": (
        pa.array([NS, None, 1_000_000_000, -1], "timestamp[ns]"),
        "str",
        ["2024-02-29T12:00:00.123456789", None, "1970-01-01T00:00:01", "1969-12-31T23:59:59.999999999"],
    ),
    "timestamp[ns, zone]": (
        pa.array([NS, None, 0, 0], pa.timestamp("ns", "Europe/Berlin")),
        "str",
        ["2024-02-29T13:00:00.123456789+01:00", None, "1970-01-01T01:00:00+01:00", "1970-01-01T01:00:00+01:00"],
    ),
    "timestamp[us]": (
        pa.array([NOON, None, NOON, NOON], "timestamp[us]"),
        "str",
        ["2024-02-29T12:00:00", None, "2024-02-29T12:00:00", "2024-02-29T12:00:00"],
    ),
    "timestamp[s] of a far year": (
        pa.array([700_000_000_000, None, 0, 0], "timestamp[s]"),
        "str",
        ["24152-02-12T20:26:40", None, "1970-01-01T00:00:00", "1970-01-01T00:00:00"],
    ),
    "time64[ns]": (
        pa.array([43_200_123_456_789, None, 1, 1000], "time64[ns]"),
        "str",
        ["12:00:00.123456789", None, "00:00:00.000000001", "00:00:00.000001"],
    ),
    "time32[ms]": (
        pa.array([1500, None, 0, 0], "time32[ms]"),
        "str",
        ["00:00:01.500000", None, "00:00:00", "00:00:00"],
    ),
    "date32": (pa.array([DAY, None, DAY, DAY], "date32"), "str", ["2024-02-29", None, "2024-02-29", "2024-02-29"]),
    "duration[ns]": (
        pa.array([1, None, 93_784_500_000_000, -1_500_000_000], "duration[ns]"),
        "str",
        ["P0DT0H0M0.000000001S", None, "P1DT2H3M4.5S", "P-1DT23H59M58.5S"],
    ),
    "duration[s]": (
        pa.array([90, None, 0, 0], "duration[s]"),
        "str",
        ["P0DT0H1M30S", None, "P0DT0H0M0S", "P0DT0H0M0S"],
    ),
    "decimal": (
        pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("-0.05"), decimal.Decimal("123456789012345.67")]),
        "str",
        ["1.20", None, "-0.05", "123456789012345.67"],
    ),
    "uint64": (pa.array([2**64 - 1, None, 1, 5], "uint64"), "str", [str(2**64 - 1), None, "1", "5"]),
    "uint64 that int64 holds": (pa.array([2**63 - 1, None, 1, 5], "uint64"), "int", [2**63 - 1, None, 1, 5]),
    "dictionary of texts": (pa.array(["x", None, "y", "x"]).dictionary_encode(), "str", ["x", None, "y", "x"]),
    "dictionary of numbers": (pa.array([7, None, 2**60 + 1, 7]).dictionary_encode(), "int", [7, None, 2**60 + 1, 7]),
    "dictionary of dates": (
        pa.array([DAY, None, DAY, DAY], "date32").dictionary_encode(),
        "str",
        ["2024-02-29", None, "2024-02-29", "2024-02-29"],
    ),
    "struct of times": (
        pa.array(
            [{"at": NS, "day": DAY, "took": 1, "price": decimal.Decimal("1.20")}, None, {"at": None}, {}],
            pa.struct(
                [("at", pa.timestamp("ns")), ("day", "date32"), ("took", "duration[s]"), ("price", pa.decimal128(5, 2))]
            ),
        ),
        "json",
        [
            {"at": "2024-02-29T12:00:00.123456789", "day": "2024-02-29", "took": "P0DT0H0M1S", "price": "1.20"},
            None,
            {"at": None, "day": None, "took": None, "price": None},
            {"at": None, "day": None, "took": None, "price": None},
        ],
    ),
    "list of times": (
        pa.array([[NS, None], None, [], [0]], pa.list_(pa.timestamp("ns"))),
        "json",
        [["2024-02-29T12:00:00.123456789", None], None, [], ["1970-01-01T00:00:00"]],
    ),
    "list of structs": (
        pa.array([[{"d": DAY}], None, [], [None, {"d": None}]], pa.list_(pa.struct([("d", pa.date32())]))),
        "json",
        [[{"d": "2024-02-29"}], None, [], [None, {"d": None}]],
    ),
}
"""Type -> four values, the second of them null; the codec; what is stored."""


@pytest.mark.parametrize("kind", TYPES)
def test_types_by_all_routes(kind: str, tmp_path: Path) -> None:
    """Parquet, and a table in memory; a slice and several chunks are equal. A null is refused, with a cure."""
    array, codec, expected = TYPES[kind]
    table = pa.table({"x": array, "n": [0, 1, 2, 3]})
    whole = table.take([0, 2, 3])
    parquet.write_table(whole, tmp_path / "x.parquet")
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "parquet", "-j", 1)
    assert told.code == 0, told.err
    pack(whole, tmp_path / "table", jobs=1)
    pack(pa.concat_tables([table, table]).slice(2, 3), tmp_path / "slice", {"x": codec}) if codec == "json" else None
    wanted = [expected[0], *expected[2:]]
    for target in ("parquet", "table"):
        assert codecs_of(tmp_path / target)["x"] == codec
        assert [row["x"] for row in rows_of(tmp_path / target)] == wanted
    if codec == "json":
        assert [row["x"] for row in rows_of(tmp_path / "slice")] == [expected[2], expected[3], expected[0]]
        return
    parquet.write_table(table, tmp_path / "null.parquet")
    assert "--null x=VALUE" in brand("convert", "parquet", tmp_path / "null.parquet", tmp_path / "null").err
    told = brand("convert", "parquet", tmp_path / "null.parquet", tmp_path / "null", "--null", "x=5", "-j", 1)
    assert told.code == 0, told.err
    assert [str(row["x"]) for row in rows_of(tmp_path / "null")] == [str("5" if v is None else v) for v in expected]


def test_the_same_without_pandas(tmp_path: Path) -> None:
    """In a process that cannot import it: equal bytes."""
    names = [kind for kind in TYPES if TYPES[kind][1] != "null"]
    columns = {f"c{n}": TYPES[kind][0].take(pa.array([0, 2, 3])) for n, kind in enumerate(names)}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    code = (
        "import sys\n"
        "class NoPandas:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'pandas': raise ImportError('there is none')\n"
        "sys.meta_path.insert(0, NoPandas())\n"
        "from brand.cli.main import main\n"
        "sys.argv = ['brand', 'convert', 'parquet', sys.argv[1], sys.argv[2], '-j', '1']; main()"
    )
    told = [sys.executable, "-c", code, str(tmp_path / "x.parquet"), str(tmp_path / "without")]
    run = subprocess.run(told, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "with", "-j", 1).code == 0
    assert rows_of(tmp_path / "with") == rows_of(tmp_path / "without")


def test_times_of_pandas_are_those_of_arrow(tmp_path: Path) -> None:
    """A DataFrame gives the texts that its Arrow table gives."""
    frame = pd.DataFrame(
        {
            "at": pd.to_datetime([NS, 0, -1]),
            "zone": pd.to_datetime([NS, 0, -1], utc=True).tz_convert("Europe/Berlin"),
            "took": pd.to_timedelta([1, 93_784_500_000_000, -1_500_000_000]),
            "kind": pd.Categorical(["x", "y", "x"]),
            "big": np.array([2**64 - 1, 1, 2], np.uint64),
            "small": np.array([2**63 - 1, 1, 2], np.uint64),
            "id": [1234567890123456789, 1234567890123456788, 3],
            "day": [DAY, DAY, DAY],
            "price": [decimal.Decimal("1.20")] * 3,
        }
    )
    pack(frame, tmp_path / "pandas", jobs=1)
    pack(pa.Table.from_pandas(frame), tmp_path / "arrow", jobs=1)
    assert rows_of(tmp_path / "pandas") == rows_of(tmp_path / "arrow")
    assert codecs_of(tmp_path / "pandas") == codecs_of(tmp_path / "arrow")
    assert rows_of(tmp_path / "pandas")[0]["big"] == str(2**64 - 1)


CELLS = [
    *("0", "-0", "7", "-7", "007", "5.", ".5", "-.5", "-0.5", "00.5", "1.50", "1e5", "1e-05", "1E+3", "+5", " 5", "5 "),
    *("1\n", "1_0", "1,2", "", "-", "--1", "1-2", "1.2.3", "nan", "inf", "-inf", "NaN", "\u0663", "9007199254740991"),
    *("9007199254740992", "9007199254740993", "-9223372036854775808", "9223372036854775807", "9223372036854775808"),
    *("9" * 15, "9" * 17, "9" * 400, "9" * 400 + ".0", "9" * 5000, "0.1", "1" * 30 + ".5", "x"),
]


@examples(300)
@given(
    cells=st.lists(st.sampled_from(CELLS), min_size=1, max_size=4),
    codec=st.sampled_from(["int", "float"]),
)
def test_cells_of_a_column_are_what_each_cell_is_alone(cells: list[str], codec: str) -> None:
    """Many cells are converted together; the result, also which cells do not fit, is that of one by one."""
    fit = fits_of_cells({"x": codec})["x"]
    alone = [fit(cell) for cell in cells]
    together = fitted(cells, fit)
    assert repr(together.tolist() if isinstance(together, np.ndarray) else together) == repr(alone)


@examples(100)
@given(st.integers(-(2**62), 2**62))
def test_durations_are_those_of_pandas(count: int) -> None:
    assert duration_text(count, 10**9) == pd.Timedelta(count, "ns").isoformat()


@examples(60)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5), st.sampled_from([None, "UTC", "Asia/Kolkata"]))
def test_timestamps_are_those_of_pandas(counts: list[int], zone: str | None) -> None:
    from brand.chunker.importers.arrow import python_values

    array = pa.array(counts, pa.timestamp("ns", zone))
    assert python_values(array) == [pd.Timestamp(count, unit="ns", tz=zone).isoformat() for count in counts]


def test_a_duration_as_float_is_seconds(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"took": pa.array([1500, 250], "duration[ms]")}), tmp_path / "x.parquet")
    assert brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--field", "took=float").code == 0
    assert [row["took"] for row in rows_of(tmp_path / "set")] == [1.5, 0.25]


@pytest.mark.parametrize(
    ("first", "codec"),
    [
        ([JPEG] * 8, "image"),
        ([None, *[JPEG] * 7], "image"),
        ([None] * 8, "image"),
        ([None] * 500, "image"),
        ([b"", *[JPEG] * 7], "image"),
        ([b"odd", *[JPEG] * 7], "image"),
        ([*[JPEG] * 5, b"a", b"b", b"c"], "image"),
        ([JPEG, *[b"other"] * 7], "bytes"),
        ([*[JPEG] * 4, *[b"other"] * 4], "bytes"),
        ([b"other"] * 8, "bytes"),
    ],
)
@pytest.mark.parametrize("layout", ["binary", "file", "pandas"])
def test_missing_and_odd_files_do_not_decide(first: list[Any], codec: str, layout: str, tmp_path: Path) -> None:
    """Most of the first files that are there do; one that is none is then refused by row, and can be left out."""
    values = [*first, *[JPEG] * 4]
    if layout == "pandas":
        frame = pd.DataFrame({"photo": pd.Series(values, dtype=object)})
        if any(value is None for value in values) or (codec == "image" and set(first) != {JPEG}):
            return
        pack(frame, tmp_path / "set", jobs=1)
        assert codecs_of(tmp_path / "set")["photo"] == codec
        return
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [value if value is None else {"bytes": value, "path": "x.jpg"} for value in values]
    array = pa.array(values, "binary") if layout == "binary" else pa.array(rows, kind)
    parquet.write_table(pa.table({"photo": array, "n": range(len(values))}), tmp_path / "x.parquet")
    more = ("--on-error", "skip", "--json")
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", *more, "-j", 1)
    assert told.code == 0, told.err
    assert codecs_of(tmp_path / "set")["photo"] == codec
    if codec == "image":
        kept = [n for n, value in enumerate(values) if value in (JPEG, b"")]
        assert [row["n"] for row in rows_of(tmp_path / "set") if row["photo"]] == [n for n in kept if values[n]]


def test_kinds_of_files() -> None:
    """Missing and empty ones do not count."""
    assert codec_of_bytes([]) == "bytes"
    assert codec_of_bytes([None, b""]) == "bytes"
    assert codec_of_bytes([None, b"", JPEG]) == "image"
    assert codec_of_bytes([JPEG, b"fLaC"]) == "bytes"
    assert common_codec(["image", "null", "image", "bytes"]) == "image"
    assert common_codec(["image", "bytes"]) == "bytes"
    assert common_codec(["?UUID"]) is None


def test_lists_beside_a_null_keep_their_dtype(tmp_path: Path) -> None:
    """A null in a batch leaves the arrays of the other rows as they are."""
    values = [[1, 2], None, [], [3]]
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.float32()), pa.list_(pa.uint8())):
        target = tmp_path / str(kind).replace("<", "-").replace(">", "-")
        parquet.write_table(pa.table({"v": pa.array(values, kind)}), f"{target}.parquet")
        told = brand("convert", "parquet", f"{target}.parquet", target, "--on-error", "skip", "-j", 1)
        assert told.code == 0, told.err
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        assert [(row["v"].dtype, row["v"].tolist()) for row in rows_of(target)] == [
            (dtype, [1, 2]),
            (dtype, []),
            (dtype, [3]),
        ]


@pytest.mark.parametrize("kind", ["uint8", "float32", "int64", "bool"])
def test_packed_columns_keep_their_dtype(kind: str, tmp_path: Path) -> None:
    """Of Parquet: the common one of the columns."""
    made = {f"p{n}": pa.array([n % 2, 1, 0], pa.int64()).cast(kind) for n in range(70)}
    parquet.write_table(pa.table(made | {"label": [1, 2, 3]}), tmp_path / "x.parquet")
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "-j", 1)
    assert "--pack-columns vector='p*'" in told.err
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--pack-columns", "v=p*", "-j", 1)
    assert told.code == 0, told.err
    rows = rows_of(tmp_path / "set")
    assert rows[0]["v"].dtype == np.dtype(kind)
    assert rows[0]["v"].tolist() == [n % 2 for n in range(70)]
    assert [row["label"] for row in rows] == [1, 2, 3]


def test_whole_numbers_that_a_float_cannot_hold_are_not_packed_with_floats(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [2**53 + 1, 1], "b": [0.5, 1.5]}), tmp_path / "x.parquet")
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--pack-columns", "v=a,b", "-j", 1)
    assert told.code != 0
    assert "9007199254740993" in told.err
    told = brand(
        "convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--pack-columns", "v=a,b", "--on-error", "skip"
    )
    assert [row["v"].tolist() for row in rows_of(tmp_path / "set")] == [[1.0, 1.5]]


def test_a_wide_frame_says_how_it_is_packed(tmp_path: Path) -> None:
    """And that works."""
    table = pd.DataFrame(np.arange(140).reshape(2, 70), columns=[f"p{n}" for n in range(70)])
    with pytest.raises(UsageError, match=r"For pack: \(\{'vector': row\} for row in table.to_numpy\(\)\)"):
        pack(table, tmp_path / "set")
    pack(({"vector": row} for row in table.to_numpy()), tmp_path / "set", {"vector": "ndarray"})
    assert rows_of(tmp_path / "set")[1]["vector"].tolist() == list(range(70, 140))


@pytest.mark.parametrize(
    ("late", "says"),
    [("x", "expected int, as in the first rows, found str"), (0.5, "found float"), (2**63, "does not fit 64 bits")],
)
def test_a_late_value_of_a_frame_is_refused_by_row(late: Any, says: str, tmp_path: Path) -> None:
    """And a schema helps."""
    frame = pd.DataFrame({"a": pd.Series([1] * 1000 + [late], dtype=object)})
    with pytest.raises(SchemaError, match=rf"row 1000, field 'a': .*{says}.*name the field's codec in a schema"):
        pack(frame, tmp_path / "set")
    pack(frame, tmp_path / "set", {"a": "str"})
    assert rows_of(tmp_path / "set")[-1] == {"a": str(late)}


def test_objects_of_a_class_without_codec_are_named(tmp_path: Path) -> None:
    import uuid

    with pytest.raises(SchemaError, match="column 'a' holds values of the class UUID, which no codec stores"):
        pack(pd.DataFrame({"a": [uuid.uuid4()]}), tmp_path / "set")


def test_a_column_that_is_text_for_one_number_is_said(tmp_path: Path) -> None:
    """A column of uint64 with a number that int64 does not hold, from Parquet and by `pack`; not if it is asked for."""
    table = pa.table({"big": pa.array([1, 2**64 - 1], "uint64"), "small": pa.array([1, 2], "uint64")})
    parquet.write_table(table, tmp_path / "x.parquet")
    said = "column 'big' is text, because it has a number above 9,223,372,036,854,775,807"
    told = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "set", "--json").json["notes"]
    assert [note for note in told if "text" in note] == [said]
    assert said in pack(table, tmp_path / "packed").notes
    chosen = brand("convert", "parquet", tmp_path / "x.parquet", tmp_path / "two", "--field", "big=str", "--json")
    assert said not in chosen.json["notes"]


def test_a_bfloat16_tensor_is_refused_with_both_cures(tmp_path: Path) -> None:
    """Each cure keeps every bit."""
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, -0.0, 3e38], dtype=torch.bfloat16)
    with pytest.raises(SchemaError, match=r"give tensor\.float\(\), or tensor\.view\(torch\.uint16\)"):
        pack([{"x": tensor}], tmp_path / "set", {"x": "ndarray"})
    pack([{"x": tensor.float()}, {"x": tensor.view(torch.uint16)}], tmp_path / "set", {"x": "ndarray"})
    stored = StoredDataSet(tmp_path / "set")
    assert torch.from_numpy(stored.sample(0)["x"].copy()).to(torch.bfloat16).tolist() == tensor.tolist()
    assert torch.from_numpy(stored.sample(1)["x"].copy()).view(torch.bfloat16).tolist() == tensor.tolist()
