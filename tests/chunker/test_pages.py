"""Large pages of Parquet are read value by value: the values are those that Arrow reads, or the file is refused."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brand
from brand.chunker import Options, convert_from
from brand.chunker.importers import pages, parquet
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.files import find_files
from brand.chunker.sources.shards import Block
from brand.errors import SourceError
from tests.rounds import examples

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COMPRESSIONS = ("none", "snappy", "zstd", "gzip")
KINDS = ("binary", "large_binary", "string", "large_string", "file")


@pytest.fixture(autouse=True)
def small_pages_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a kilobyte are large ones here."""
    monkeypatch.setattr(parquet, "_LARGE_PAGE", 1000)


def value(number: int, noise: np.random.Generator) -> bytes:
    """A value that compresses well, somewhat, or not; some are short."""
    size = int(noise.integers(0, 300_000))
    if number % 4 == 0:
        return b"abc" * (size // 3)
    if number % 4 == 1:
        return (noise.bytes(50) * (size // 50 + 1))[:size]
    return noise.bytes(size if number % 4 == 2 else number)


def column(kind: str, *, nulls: bool) -> Any:
    """Twenty values."""
    noise = np.random.default_rng(len(kind) + nulls)
    values: list[Any] = [None if nulls and number % 3 == 1 else value(number, noise) for number in range(20)]
    if "string" in kind:
        values = [None if data is None else "é" * (len(data) // 5) for data in values]
    if kind == "file":
        files = [None if data is None and number % 2 else data for number, data in enumerate(values)]
        made = [
            None if data is None and number % 2 else {"bytes": data, "path": str(number)}
            for number, data in enumerate(files)
        ]
        return pa.array(made, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return pa.array(values, getattr(pa, kind)())


def read(path: Path, rows: int, names: list[str]) -> tuple[Any, bool]:
    """The table that batches of so many rows make, and whether a column was read value by value."""
    (file,) = find_files(path, [".parquet"], "file", None, tables=True)
    with pq.ParquetFile(path) as opened:
        groups = range(opened.metadata.num_row_groups)
        large = any(parquet._large_columns(file, opened, group)[0] for group in groups)
        batches = list(parquet._batches(file, opened, groups, names, rows))
    assert all(batch.num_rows <= rows for batch in batches)
    return pa.Table.from_batches([batch.select(names) for batch in batches]), large


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_values_are_those_of_arrow(kind: str, compression: str, tmp_path: Path) -> None:
    """With and without a dictionary and missing values, in pages of both versions, in batches of any size."""
    path = tmp_path / "a.parquet"
    for number, (dictionary, version, batch, nulls) in enumerate(
        itertools.product((True, False), ("1.0", "2.0"), (1024, 7), (False, True))
    ):
        table = pa.table({"a": column(kind, nulls=nulls), "i": range(20)})
        pq.write_table(
            table,
            path,
            compression=compression,
            use_dictionary=dictionary,
            data_page_version=version,
            write_batch_size=batch,
            row_group_size=9,
        )
        found, large = read(path, (1, 4, 100)[number % 3], ["a", "i"])
        assert large
        assert found.equals(table)
        assert read(path, 3, ["a"])[0].equals(table.select(["a"]))


@pytest.mark.parametrize("nullable", [True, False])
def test_a_struct_whose_parts_may_be_missing_or_not(nullable: bool, tmp_path: Path) -> None:
    """The levels of a value depend on its parents."""
    kind = pa.struct([pa.field("path", pa.string()), pa.field("bytes", pa.binary(), nullable=True)])
    values = [{"bytes": b"x" * 900, "path": None}, {"bytes": None, "path": "p"}, {"bytes": b"y" * 900, "path": "q"}]
    table = pa.table([pa.array(values, kind)], pa.schema([pa.field("a", kind, nullable=nullable)]))
    pq.write_table(table, tmp_path / "a.parquet")
    found, large = read(tmp_path / "a.parquet", 2, ["a"])
    assert large
    assert found.column("a").to_pylist() == values


def test_columns_without_missing_values_have_no_levels(tmp_path: Path) -> None:
    """A required column."""
    schema = pa.schema([pa.field("a", pa.binary(), nullable=False)])
    table = pa.table([pa.array([b"x" * 900, b"", b"z" * 700])], schema)
    pq.write_table(table, tmp_path / "a.parquet")
    found, large = read(tmp_path / "a.parquet", 2, ["a"])
    assert large
    assert found.column("a").to_pylist() == table.column("a").to_pylist()


@pytest.mark.parametrize(
    ("values", "is_read_here"),
    [
        ([b"a" * 999, b"a" * 999, b"b" * 999, b"b" * 999, b"c"], True),
        ([b"a" * 999, b"b" * 999, b"a" * 999], False),
        ([b"a" * 999] * 2000, True),
        ([b"a" * 999, None, b"a" * 999, b"b" * 9, None], True),
    ],
)
def test_repeated_values(values: list[bytes | None], is_read_here: bool, tmp_path: Path) -> None:
    """Those that follow each other are read once; Arrow reads dictionaries that are not used in order."""
    table = pa.table({"a": pa.array(values, pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    found, large = read(tmp_path / "a.parquet", 2, ["a"])
    assert large == is_read_here
    assert found.equals(table)


@pytest.mark.parametrize("compression", ["lz4", "brotli"])
def test_arrow_reads_what_is_not_read_here(compression: str, tmp_path: Path) -> None:
    """Other compressions, lists, numbers, other types; a column of such pages is noted."""
    files = [{"bytes": b"x" * 999, "path": "a"}]
    table = pa.table({"a": [b"x" * 5000] * 3, "l": [files] * 3, "n": [list(range(5000))] * 3})
    pq.write_table(table, tmp_path / "a.parquet", compression=compression)
    assert read(tmp_path / "a.parquet", 2, ["a", "l", "n"]) == (table, False)
    (file,) = find_files(tmp_path / "a.parquet", [".parquet"], "file", None, tables=True)
    with pq.ParquetFile(tmp_path / "a.parquet") as opened:
        assert "a" in parquet._large_columns(file, opened, 0)[1]


def test_a_conversion_of_large_pages(tmp_path: Path) -> None:
    """Several row groups, a partition, a column that is left out, and types that only Arrow makes."""
    noise = np.random.default_rng(0)
    values = [noise.bytes(40_000) for _ in range(30)]
    table = pa.table({"x": values, "i": range(30), "t": [f"text {i}" for i in range(30)], "y": values})
    (tmp_path / "src" / "part=7").mkdir(parents=True)
    pq.write_table(table, tmp_path / "src" / "part=7" / "a.parquet", row_group_size=11)
    convert_from("parquet", tmp_path / "src", tmp_path / "out", Options(jobs=1))
    reader = brand.open(tmp_path / "out")
    assert [reader.sample(number) for number in range(30)] == [
        {**row, "part": 7, "index": number} if "index" in reader.sample(0) else {**row, "part": 7}
        for number, row in enumerate(table.to_pylist())
    ]


NESTED = [["x" * 900] * 3] * 4
PICTURE = b"\x89PNG\r\n\x1a\n" + b"x" * 900
BEYOND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a dictionary": ({"x": pa.array([b"a" * 900, b"b" * 900, b"a" * 900])}, {}),
    "lists": ({"x": pa.array(NESTED)}, {"use_dictionary": False}),
    "lists of lists": ({"x": pa.array([NESTED] * 2)}, {"use_dictionary": False}),
    "lists of files": ({"x": pa.array([[{"bytes": PICTURE, "path": "a.png"}] * 3] * 4)}, {"use_dictionary": False}),
    "delta": (
        {"x": pa.array([b"a" * 900, b"b" * 900])},
        {"use_dictionary": False, "column_encoding": {"x": "DELTA_BYTE_ARRAY"}},
    ),
    "delta of lengths": (
        {"x": pa.array([b"a" * 900, b"b" * 900])},
        {"use_dictionary": False, "column_encoding": {"x": "DELTA_LENGTH_BYTE_ARRAY"}},
    ),
    "brotli": ({"x": pa.array([b"a" * 900, b"b" * 900])}, {"compression": "brotli", "use_dictionary": False}),
    "lists of numbers": ({"x": pa.array([[*range(300)]] * 2)}, {"use_dictionary": False}),
    "a later page": (
        {"x": pa.array([["x"]] * 3000 + [["y" * 30_000]])}, {"use_dictionary": False, "data_page_size": 10}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BEYOND)
def test_a_page_beyond_the_memory_is_refused_before_it_is_read(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its column and the memory that it takes; without that column, or with more memory, the file is read."""
    columns, options = BEYOND[case]
    table = pa.table({**columns, "n": [True] * len(columns["x"])})
    pq.write_table(table, tmp_path / "a.parquet", **options)
    monkeypatch.setattr(parquet, "available_bytes", lambda: 1000)
    read_before = pa.total_allocated_bytes()
    with pytest.raises(SourceError, match=r"a\.parquet: the column x\S* has a page of .* GB of memory, and") as caught:
        convert_from("parquet", tmp_path / "a.parquet", tmp_path / "out", Options(jobs=1))
    assert pa.total_allocated_bytes() - read_before < 900
    assert "write_batch_size=16" in str(caught.value)
    assert "--columns leaves the column out" in str(caught.value)
    some = convert_from(
        "parquet", tmp_path / "a.parquet", tmp_path / "n", Options(jobs=1), choice=FieldMapping(columns=("n",))
    )
    assert some.samples == len(table)
    monkeypatch.setattr(parquet, "available_bytes", lambda: 1 << 30)
    report = convert_from("parquet", tmp_path / "a.parquet", tmp_path / "x", Options(jobs=1))
    assert any("Arrow reads such a page as a whole" in note for note in report.notes)


@pytest.mark.parametrize("case", ["a dictionary", "lists", "brotli"])
def test_the_advice_for_a_page_beyond_the_memory_helps(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small batches, small row groups, or another compression."""
    columns, options = BEYOND[case]
    cures: list[dict[str, Any]] = [{"row_group_size": 1}, {"write_batch_size": 1, "data_page_size": 1}]
    monkeypatch.setattr(parquet, "available_bytes", lambda: 1000)
    monkeypatch.setattr(parquet, "_LARGE_PAGE", 2750 if case == "lists" else 950)
    cures += [{"compression": "zstd"}] if case == "brotli" else []
    for number, cure in enumerate(cures):
        if case == "a dictionary" and "write_batch_size" in cure:
            continue  # the page of the dictionary has all values
        pq.write_table(pa.table(columns), tmp_path / "a.parquet", **{**options, **cure})
        report = convert_from("parquet", tmp_path / "a.parquet", tmp_path / f"{number}", Options(jobs=1))
        assert report.samples == len(columns["x"])


def test_values_that_share_their_beginnings_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """A file of some kilobytes holds values of many megabytes, encoded by what differs from the one before."""
    texts = ["x" * 200_000 + str(number) for number in range(200)]
    encoding = {"use_dictionary": False, "column_encoding": {"t": "DELTA_BYTE_ARRAY"}}
    pq.write_table(pa.table({"t": texts, "n": range(200)}), tmp_path / "a.parquet", **encoding)
    assert (tmp_path / "a.parquet").stat().st_size < 210_000
    pool, before = pa.default_memory_pool(), pa.default_memory_pool().bytes_allocated()
    (source,) = [parquet.Parquet(tmp_path / "a.parquet", FieldMapping())]
    rows = held = 0
    for block in source.read(0):
        assert isinstance(block, Block)
        held = max(held, pool.bytes_allocated() - before)
        rows += len(block)
    assert rows == 200
    assert held < 15_000_000


@examples(200)
@given(st.lists(st.tuples(st.binary(max_size=70), st.integers(1, 3000)), max_size=30), st.integers(1, 100_000))
def test_snappy_is_decompressed_as_arrow_does_it(parts: list[tuple[bytes, int]], step: int) -> None:
    """Literals and copies of any length, read in pieces of any size."""
    data = b"".join(part * times for part, times in parts)
    packed = pa.compress(data, "snappy", asbytes=True)
    stream = io.BufferedReader(pages._Snappy(io.BytesIO(packed)))
    pieces = list(iter(lambda: stream.read(step), b""))
    assert b"".join(pieces) == data


def damaged(data: bytes) -> Iterator[bytes]:
    """The data with a byte changed, or cut."""
    for at in range(0, len(data), 7):
        yield data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        yield data[:at]


def test_damaged_snappy_streams_are_errors_or_other_bytes() -> None:
    """Never another kind of error, nor more bytes than the stream says."""
    data = np.random.default_rng(0).bytes(300) + b"abcabc" * 300
    for broken in damaged(pa.compress(data, "snappy", asbytes=True)):
        try:
            found = io.BufferedReader(pages._Snappy(io.BytesIO(broken))).read()
        except (ValueError, EOFError):
            continue
        assert len(found) <= 1 << 20


def test_a_header_is_read_again_wherever_it_was_cut() -> None:
    """Each prefix says that more is needed; so a header with long statistics is no damaged one."""
    header = bytes([1 << 4 | 5, 0, 1 << 4 | 9, 3 << 4 | 1, 1, 2, 1, 1 << 4 | 12, 1 << 4 | 8, 2, 65, 66, 0, 0])
    assert pages._struct(header, 0) == ({1: 0, 2: [b"\x01", b"\x02", b"\x01"], 3: {1: b"AB"}}, len(header))
    for end in range(len(header)):
        with pytest.raises(EOFError):
            pages._struct(header[:end], 0)


@pytest.mark.parametrize("item", range(1, 13))
def test_a_header_that_claims_a_long_list_takes_no_memory(item: int) -> None:
    """A list of 2^40 items of each type, and no bytes behind it."""
    header = bytes([1 << 4 | 9, 15 << 4 | item, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20])
    with pytest.raises((EOFError, ValueError)):
        pages._page_at(io.BytesIO(header), 0)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damaged_pages_are_errors_that_name_the_file(compression: str, version: str, tmp_path: Path) -> None:
    """Or other values: most pages have no checksum, in Arrow as here."""
    table = pa.table({"a": [b"x" * 900, b"yz" * 300, b"z" * 700], "i": range(3)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression=compression, data_page_version=version, write_statistics=False)
    whole = path.read_bytes()
    with pq.ParquetFile(path) as opened:
        end = opened.metadata.row_group(0).column(0).total_compressed_size + 4
    for at in range(4, end, max(3, end // 150)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with suppress(SourceError):
            source = parquet.Parquet(path, FieldMapping())
            for number in range(len(source.shards)):
                list(source.read(number))
