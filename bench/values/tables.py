"""Tables: does Brand yield the values of pandas and pyarrow, from CSV and from Parquet of every type?"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pandas
import pyarrow
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

import brand
from bench.values.compare import WHOLE, Case, Sample

PANDAS: Final = "pandas"
ARROW: Final = "pyarrow"


def cases(root: Path) -> Iterator[Case]:
    """Yield the cases; their sources are made below `root`."""
    yield from _csv(root / "csv")
    yield from _types(root / "types")
    yield from _partitions(root / "partitions")
    yield from _frames(root / "frames")
    yield from _arrays()


def _value(value: Any) -> Any:
    """Return a value of pandas as a Python value; nan for missing ones."""
    if value is None or value is pandas.NA or value is pandas.NaT:
        return math.nan
    return value.item() if isinstance(value, np.generic) else value


def _read_csv(path: Path, **options: Any) -> Callable[[], Sequence[Sample]]:
    def read() -> list[Sample]:
        rows = pandas.read_csv(path, **options).to_dict("records")
        return [{str(name): _value(value) for name, value in row.items()} for row in rows]

    return read


def _csv(root: Path) -> Iterator[Case]:
    root.mkdir()
    texts = ["a", 'say "hi"', "x, y", "two\nlines", "", " padded ", "é日", "\\", "'", "a\tb", "NULL?", "-", "1 2", "#x"]
    for name, how, options in (
        ("quoted where needed", {}, []),
        ("quoted always", {"quoting": csv.QUOTE_ALL}, []),
        ("';'", {"delimiter": ";"}, []),
        ("'|'", {"delimiter": "|"}, []),
        ("':'", {"delimiter": ":"}, ["--separator", ":"]),
        ("tab, quoted", {"delimiter": "\t", "quoting": csv.QUOTE_ALL}, ["--quote", "double"]),
        ("single quotes", {"quotechar": "'", "quoting": csv.QUOTE_ALL}, ["--quote", "single"]),
        (
            "a backslash before quotes",
            {"escapechar": "\\", "doublequote": False, "quoting": csv.QUOTE_ALL},
            ["--escape", "\\"],
        ),
        ("lines end with CR LF", {"lineterminator": "\r\n"}, []),
        ("lines end with LF", {"lineterminator": "\n"}, []),
    ):
        text = io.StringIO(newline="")
        csv.writer(text, **how).writerows([["n", "text"], *([n, each] for n, each in enumerate(texts))])
        path = root / f"{name.replace(' ', '-').translate({ord(c): None for c in chr(39) + ';|:,'})}.csv"
        path.write_text(text.getvalue(), encoding="utf-8", newline="")
        read = {key: how[key] for key in ("delimiter", "quotechar", "escapechar", "doublequote") if key in how}
        yield Case(PANDAS, f"CSV, {name}", _read_csv(path, keep_default_na=False, **read), ["csv", str(path), *options])
    columns: dict[str, tuple[Sequence[str], str]] = {
        "whole numbers": (["0", "-1", "9007199254740993", "9223372036854775807"], ""),
        "leading zeros": (["007", "010", "100"], "column 'x'"),
        "20 digits": (["12345678901234567890", "1"], "column 'x'"),
        "40 digits": (["1234567890123456789012345678901234567890", "1"], "column 'x'"),
        "signs": (["+1", "-2", "3"], "column 'x'"),
        "spaces around numbers": ([" 1", "2 ", "3"], "column 'x'"),
        "thousands": (["1,234", "5,678"], "column 'x'"),
        "floats": (["0.1", "1e5", "-2.5E-3", "1.0", "3.141592653589793"], ""),
        "floats and whole numbers": (["1", "2.5", "3"], ""),
        ".5 and 5.": ([".5", "5.", "1.5"], "column 'x'"),
        "-0.0": (["-0.0", "0.0"], ""),
        "1e400": (["1e400", "1.5"], "column 'x'"),
        "nan, inf": (["nan", "inf", "-inf", "1.5"], ""),
        "Infinity": (["Infinity", "1.5"], "column 'x'"),
        "hexadecimal": (["0x1F", "0x2"], ""),
        "underscores": (["1_000", "2_000"], ""),
        "True and False": (["True", "False", "True"], "column 'x'"),
        "true and false": (["true", "false"], "column 'x'"),
        "yes and no": (["yes", "no"], ""),
        "dates": (["2024-02-29", "2024-03-01"], ""),
        "times": (["2024-02-29 12:00:00", "2024-03-01T00:00:00Z"], ""),
        "numbers and NA": (["1", "NA", "3"], "column 'x'"),
        "numbers, -": (["1", "-", "3"], ""),
        "texts and NA": (["a", "NA", "null", "None", "N/A", "nan"], "column 'x'"),
        "empty texts": (["a", "", "b"], "empty text"),
        "missing numbers": (["1", "", "3"], "--null"),
        "missing floats": (["1.5", "", "3"], "--null"),
        "numbers, then a text": (["1", "2", "x"], ""),
        "numbers in quotes": (['"1"', '"2"'], ""),
        "all empty": (["", ""], "empty text"),
    }
    for name, (cells, said) in columns.items():
        path = root / f"{name.replace(' ', '-').replace(',', '')}.csv"
        quoted = [f'"{cell}"' if "," in cell else cell for cell in cells]
        path.write_text("".join(f"{line}\n" for line in ["n,x", *(f"{n},{cell}" for n, cell in enumerate(quoted))]))
        thousands = {"thousands": ","} if name == "thousands" else {}
        yield Case(
            PANDAS,
            f"CSV, {name}",
            _read_csv(path, **thousands),
            ["csv", str(path)],
            said={"x": said, WHOLE: said} if said else {},
        )
    encodings = {"utf-8-sig": "", "latin-1": "iconv", "utf-16": "iconv", "cp1252": "iconv"}
    for encoding, said in encodings.items():
        path = root / f"{encoding}.csv"
        path.write_bytes("n,x\n1,é\n2,ü\n".encode(encoding))
        yield Case(
            PANDAS,
            f"CSV, {encoding}",
            _read_csv(path, encoding=encoding),
            ["csv", str(path)],
            said={WHOLE: said} if said else {},
        )
    short = root / "short.csv"
    short.write_text("n,x\n1,a\n2\n3,c\n")
    yield Case(PANDAS, "CSV, a row without its last cell", _read_csv(short), ["csv", str(short)], said={WHOLE: "cell"})
    long = root / "long.csv"
    long.write_text("n,x\n1,a\n2,b,c\n3,c\n")
    yield Case(PANDAS, "CSV, a row with another cell", lambda: [{}] * 3, ["csv", str(long)], said={WHOLE: "cell"})
    blank = root / "blank.csv"
    blank.write_text("n,x\n1,a\n\n2,b\n\n")
    yield Case(PANDAS, "CSV, empty lines", _read_csv(blank), ["csv", str(blank)])
    comment = root / "comment.csv"
    comment.write_text("# made by hand\nn,x\n1,a\n")
    yield Case(
        PANDAS,
        "CSV, a comment before the header",
        _read_csv(comment, comment="#"),
        ["csv", str(comment)],
        said={WHOLE: "cell"},
    )
    index = root / "index.csv"
    pandas.DataFrame({"x": ["a", "b"]}).to_csv(index)
    yield Case(
        PANDAS, "CSV with an index of pandas", lambda: [{"x": "a"}, {"x": "b"}], ["csv", str(index), "--columns", "x"]
    )
    many = root / "many.csv"
    many.write_text("".join(["n,x\n", *(f"{n},{n}\n" for n in range(3000)), "3000,0042\n"]))
    yield Case(
        PANDAS, "CSV, a leading zero in row 3,001", _read_csv(many), ["csv", str(many)], said={WHOLE: "line 3002"}
    )
    zipped = root / "zipped.csv.gz"
    pandas.DataFrame({"n": range(50), "x": [n / 7 for n in range(50)]}).to_csv(zipped, index=False)
    yield Case(PANDAS, "CSV, gzip, float64 written by pandas", _read_csv(zipped), ["csv", str(zipped)])


def _moments() -> list[datetime.datetime]:
    return [
        datetime.datetime(2024, 2, 29, 12, 30, 1, 250000),
        datetime.datetime(1, 1, 1),
        datetime.datetime(9999, 12, 31),
    ]


def _types(root: Path) -> Iterator[Case]:
    root.mkdir()
    a, day = pyarrow, datetime.date(2024, 2, 29)
    ints = {
        f"{sign}int{bits}": [0, 1, (1 << (bits - (not sign))) - 1] for sign in ("", "u") for bits in (8, 16, 32, 64)
    }
    floats = [0.5, -0.0, float("inf"), float("nan"), 2.0**-10]
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    arrays: dict[str, Any] = {
        **{name: a.array(values, getattr(a, name)()) for name, values in ints.items()},
        "bool": a.array([True, False]),
        "float16": a.array(np.array(floats, np.float16)),
        "float32": a.array(floats, a.float32()),
        "float64": a.array([*floats, 1 / 3]),
        "string": a.array(["", "é", "a\0b"]),
        "large_string": a.array(["", "é"], a.large_string()),
        "string_view": a.array(["", "é"], a.string_view()),
        "binary": a.array([b"", b"\0\xff", b"abc"]),
        "large_binary": a.array([b"", b"\0\xff"], a.large_binary()),
        "binary[3]": a.array([b"abc", b"\0\0\0"], a.binary(3)),
        "decimal128(9, 2)": a.array([decimal.Decimal("1.50"), decimal.Decimal("-0.01")], a.decimal128(9, 2)),
        "decimal128(38, 0)": a.array([decimal.Decimal(10**37), decimal.Decimal(0)], a.decimal128(38, 0)),
        "decimal256(50, 10)": a.array([decimal.Decimal(1) / 8], a.decimal256(50, 10)),
        "date32": a.array([day, datetime.date(1969, 1, 1)]),
        "date64": a.array([day], a.date64()),
        "time32[ms]": a.array([datetime.time(1, 2, 3, 4000)], a.time32("ms")),
        "time64[us]": a.array([datetime.time(1, 2, 3, 4), datetime.time(0)], a.time64("us")),
        "timestamp[s]": a.array([_moments()[0].replace(microsecond=0)], a.timestamp("s")),
        "timestamp[us]": a.array(_moments(), a.timestamp("us")),
        "timestamp[us, UTC]": a.array(
            [m.replace(tzinfo=datetime.UTC) for m in _moments()[:1]], a.timestamp("us", "UTC")
        ),
        "timestamp[us, +01:00]": a.array(
            [m.replace(tzinfo=berlin) for m in _moments()[:1]], a.timestamp("us", "+01:00")
        ),
        "dictionary of strings": a.array(["b", "a", "b"]).dictionary_encode(),
        "dictionary of int64": a.array([7, 5, 7]).dictionary_encode(),
        "list<int64>": a.array([[1, 2], [], [3]]),
        "list<float32>": a.array([[0.5], []], a.list_(a.float32())),
        "list<string>": a.array([["a", ""], []]),
        "large_list<int32>": a.array([[1], []], a.large_list(a.int32())),
        "fixed_size_list<float64>[2]": a.array([[1.0, 2.0], [0.0, -0.0]], a.list_(a.float64(), 2)),
        "list<list<int64>>": a.array([[[1], []], []]),
        "list<bool>": a.array([[True, False], []]),
        "list<struct>": a.array([[{"a": 1, "b": "x"}], []]),
        "struct": a.array(
            [{"a": 1, "b": None, "c": {"d": [0.5]}}, {"a": None, "b": "x", "c": {"d": []}}],
            a.struct([("a", a.int64()), ("b", a.string()), ("c", a.struct([("d", a.list_(a.float64()))]))]),
        ),
        "struct with a date": a.array([{"d": day}, {"d": None}]),
        "list<int64> with a null": a.array([[1, None]]),
        "list<float64> with a null": a.array([[0.5, None]]),
        "list<string> with a null": a.array([["a", None]]),
    }
    for name, array in arrays.items():
        said = {
            "list<int64> with a null": "NoneType",
            "list<float64> with a null": "NoneType",
            "list<string> with a null": "NoneType",
            "uint64": "column 'x' is text",
        }.get(name, "")
        yield _parquet(root, name, array, said={"x": said, WHOLE: said} if said else {})
    spelled: dict[str, tuple[Any, list[Any], str]] = {
        "time64[ns]": (
            a.array([1, 3_600_000_000_001], a.time64("ns")),
            ["00:00:00.000000001", "01:00:00.000000001"],
            "",
        ),
        "timestamp[ns]": (
            a.array([1_709_208_000_123_456_789], a.timestamp("ns")),
            ["2024-02-29T12:00:00.123456789"],
            "",
        ),
        "duration[s]": (
            a.array([90_061, 0], a.duration("s")),
            [pandas.Timedelta(90_061, "s").isoformat(), pandas.Timedelta(0).isoformat()],
            "",
        ),
        "duration[ns]": (a.array([1_000_000_001], a.duration("ns")), [pandas.Timedelta(1_000_000_001).isoformat()], ""),
        "map<string, int64>": (
            a.array([[("a", 1), ("b", 2)], []], a.map_(a.string(), a.int64())),
            [[["a", 1], ["b", 2]], []],
            "",
        ),
    }
    for name, (array, values, said) in spelled.items():
        yield _parquet(
            root,
            f"{name}, in ISO 8601" if name != "map<string, int64>" else f"{name}, as pairs",
            array,
            values,
            {"x": said},
        )
    yield _parquet(root, "null", a.array([None, None]), said={WHOLE: "missing|null"})
    yield _parquet(root, "int64 with a null", a.array([1, None]), said={WHOLE: "--null"})
    yield _parquet(root, "string with a null", a.array(["a", None]), said={WHOLE: "--null"})
    yield _parquet(root, "struct with nulls", a.array([{"a": 1}, None]), said={WHOLE: "--null|json"})
    yield _parquet(root, "bool with a null", a.array([True, None]), said={WHOLE: "--null"})
    wide = a.array([2**64 - 1, 5], a.uint64())
    yield _parquet(root, "uint64 above int64", wide, [str(2**64 - 1), "5"], {})


def _parquet(
    root: Path, name: str, array: Any, values: Sequence[Any] | None = None, said: dict[str, str] | None = None
) -> Case:
    path = root / f"{''.join(each if each.isalnum() else '-' for each in name)}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": array, "n": list(range(len(array)))}), path)

    def read() -> list[Sample]:
        column = pyarrow.parquet.read_table(path).column("x").to_pylist() if values is None else values
        return [{"x": value, "n": n} for n, value in enumerate(column)]

    return Case(ARROW, f"Parquet, {name}", read, ["parquet", str(path)], said=said or {})


def _partitions(root: Path) -> Iterator[Case]:
    table = pyarrow.table(
        {"n": list(range(12)), "lang": ["de", "en", "é f"] * 4, "year": [2023, 2024] * 6, "s": ["x"] * 12}
    )
    hive = root / "hive"
    pyarrow.dataset.write_dataset(
        table, hive, format="parquet", partitioning=["lang", "year"], partitioning_flavor="hive"
    )
    read = pyarrow.dataset.dataset(hive, partitioning="hive").to_table
    yield Case(ARROW, "partitions, Hive", lambda: read().to_pylist(), ["parquet", str(hive)], by="n")
    panda = root / "pandas"
    pandas.DataFrame({"n": range(6), "k": [1, 2, 3] * 2, "s": list("abcdef")}).to_parquet(panda, partition_cols=["k"])
    frame = lambda: pandas.read_parquet(panda).astype({"k": "int64"}).to_dict("records")  # noqa: E731
    yield Case(PANDAS, "partitions of to_parquet", frame, ["parquet", str(panda)], by="n")
    zeros = root / "zeros"
    padded = pyarrow.table({"n": [1, 2, 3], "month": ["01", "02", "12"]})
    pyarrow.dataset.write_dataset(padded, zeros, format="parquet", partitioning=["month"], partitioning_flavor="hive")
    read_zeros = pyarrow.dataset.dataset(zeros, partitioning="hive").to_table
    yield Case(
        ARROW,
        "partitions, month=01",
        lambda: read_zeros().to_pylist(),
        ["parquet", str(zeros)],
        by="n",
        said={"month": "month"},
    )
    missing = root / "missing"
    gaps = pyarrow.table({"n": [1, 2, 3], "lang": ["de", None, "en"]})
    pyarrow.dataset.write_dataset(gaps, missing, format="parquet", partitioning=["lang"], partitioning_flavor="hive")
    read_gaps = pyarrow.dataset.dataset(missing, partitioning="hive").to_table
    yield Case(
        ARROW,
        "partitions with a missing value",
        lambda: read_gaps().to_pylist(),
        ["parquet", str(missing)],
        by="n",
        said={WHOLE: "--null"},
    )
    filled = lambda: [{**row, "lang": row["lang"] or "?"} for row in read_gaps().to_pylist()]  # noqa: E731
    yield Case(
        ARROW, "partitions with a missing value, --null", filled, ["parquet", str(missing), "--null", "lang=?"], by="n"
    )
    listed = root / "listed"
    pyarrow.dataset.write_dataset(table, listed, format="parquet", partitioning=["lang"])
    read_listed = pyarrow.dataset.dataset(listed, partitioning=["lang"]).to_table
    yield Case(
        ARROW,
        "partitions by folder names alone",
        lambda: read_listed().to_pylist(),
        ["parquet", str(listed)],
        by="n",
        said={WHOLE: "split|configuration", "lang": "folder"},
    )
    groups = root / "groups.parquet"
    pyarrow.parquet.write_table(
        table, groups, row_group_size=5, compression="zstd", use_dictionary=True, data_page_version="2.0"
    )
    yield Case(ARROW, "row groups, zstd, dictionary pages", lambda: table.to_pylist(), ["parquet", str(groups)])


def _frames(root: Path) -> Iterator[Case]:
    root.mkdir()
    frame = pandas.DataFrame(
        {
            "n": np.arange(4, dtype=np.int16),
            "x": [0.5, 1.5, float("nan"), -0.0],
            "s": ["a", "", "é", "d"],
            "flag": [True, False, True, False],
            "kind": pandas.Categorical(["b", "a", "b", "c"]),
            "when": pandas.to_datetime(["2024-02-29T12:00:00"] * 4),
            "whole": pandas.array([1, 2, 3, 4], "Int64"),
        },
        index=[9, 8, 7, 6],
    )
    said = {"x": "nan"}
    records = lambda: [{name: _value(value) for name, value in row.items()} for row in frame.to_dict("records")]  # noqa: E731
    yield Case(PANDAS, "pack(DataFrame)", records, pack=lambda target: brand.pack(frame, target), said=said)
    path = root / "frame.parquet"
    frame.to_parquet(path)
    yield Case(PANDAS, "DataFrame.to_parquet", records, ["parquet", str(path)], said={WHOLE: "--null"})
    whole = frame.drop(columns="x")
    path = root / "whole.parquet"
    whole.to_parquet(path)
    plain = lambda: [{name: _value(value) for name, value in row.items()} for row in whole.to_dict("records")]  # noqa: E731
    yield Case(PANDAS, "DataFrame.to_parquet with its index", plain, ["parquet", str(path)])


def _row(array: Any) -> list[Sample]:
    return [{"x": array}]


def _packed(array: Any, target: str) -> Any:
    return brand.pack([{"x": array}], target, {"x": "ndarray"})


def _arrays() -> Iterator[Case]:
    kinds = [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
    arrays: list[Any] = [np.arange(6).reshape(2, 3).astype(kind) for kind in kinds]
    arrays += [
        np.array(3.5),
        np.zeros((0, 3), np.float32),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6)[::-2],
    ]
    rows = [{"x": each} for each in arrays]
    yield Case(
        "numpy",
        "pack of arrays",
        lambda: [{"x": np.ascontiguousarray(a) if a.ndim else a} for a in arrays],
        pack=lambda t: brand.pack(rows, t, {"x": "ndarray"}),
    )
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"):
        array = np.arange(6, dtype=np.float32).astype(getattr(ml_dtypes, name))
        yield Case(
            "ml_dtypes",
            f"pack of {name}",
            partial(_row, array),
            pack=partial(_packed, array),
            said={WHOLE: name},
        )
    import torch

    tensor = torch.arange(6, dtype=torch.bfloat16)
    yield Case(
        "torch",
        "pack of a bfloat16 tensor",
        lambda: [{}],
        pack=lambda t: brand.pack([{"x": tensor}], t, {"x": "ndarray"}),
        said={WHOLE: r"NumPy has no bfloat16; give tensor\.float\(\)"},
    )
    moments = np.array(["2024-02-29", "NaT"], "datetime64[ns]")
    yield Case(
        "numpy",
        "pack of datetime64",
        lambda: [{"x": moments}],
        pack=lambda t: brand.pack([{"x": moments}], t, {"x": "ndarray"}),
        said={WHOLE: "datetime64"},
    )
