"""A conversion holds some blocks of megabytes, or a few samples, whatever the number of samples and wherever from.

The peak of a fresh process is measured, from the imports on, with one process. The limit is wide: 64 samples of 4 MiB
are 256 MiB, and a conversion that collected them by number would hold twice that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import Options
from brand.chunker.importers import open_shards
from brand.chunker.importers.arrow import row_bytes
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.lists import first_text
from brand.chunker.plan.plan import MOST_BYTES, USUAL_SAMPLES, Layout, chunk_samples
from brand.chunker.sources.blocks import BLOCK_BYTES, MOST_SAMPLES, bytes_of, cut, encoded
from brand.chunker.work.store_work import open_store_work
from brand.errors import SchemaError, UsageError
from brand.formats.header import Schema
from brand.formats.record import encode_records
from brand.formats.values import decode_ndarray

LIMIT = 200 << 20
"""Two runs of 32 MiB that are sorted and written, some blocks, and as much again."""

HEAD = """
import io, json, os, resource, struct, sys, tarfile
from pathlib import Path
import numpy as np
import brand
from brand.chunker import Options, convert_audio, convert_from, convert_images
from brand.collect.append import append_samples
from brand.collect.changes import NamedSamples, delete
from brand.collect import compact

N, SIZE, here = 64, 4 << 20, Path(sys.argv[1])
one = Options(jobs=1)


def sample(i):
    return np.full(SIZE, i, np.uint8)


def volumes():
    for i in range(N):
        yield {"x": sample(i).view(np.int16)}


class Items:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return {"x": sample(i)}


def peak():
    facts = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in facts if line.startswith("VmHWM"))


if not (here / "first").exists():
    brand.pack([{"x": b"1"}], here / "first", {"x": "bytes"}, jobs=1)
"""

CASES = {
    "a generator of bytes": (
        "",
        "",
        "brand.pack(({'x': sample(i).tobytes()} for i in range(N)), here / 'out', {'x': 'bytes'}, jobs=1)",
    ),
    "a generator of arrays": ("", "", "brand.pack(volumes(), here / 'out', {'x': 'ndarray'}, jobs=1)"),
    "a generator of views of one memory": (
        "",
        "all = np.zeros(SIZE + N, np.uint8) + np.uint8(7)",
        "brand.pack(({'x': all[i : i + SIZE]} for i in range(N)), here / 'out', {'x': 'ndarray'}, jobs=1)",
    ),
    "a generator of JSON": (
        "",
        "",
        "brand.pack(({'x': {'a': {'b': chr(65 + i % 26) * SIZE}}} for i in range(N)), here / 'out',"
        " {'x': 'json'}, jobs=1)",
    ),
    "small samples, then large ones": (
        "",
        "",
        "brand.pack(({'x': sample(i - 2000).tobytes() if i >= 2000 else b'small'} for i in range(2000 + N)),"
        " here / 'out', {'x': 'bytes'}, jobs=1)",
    ),
    "images of Pillow": (
        "",
        "from PIL import Image",
        "brand.pack(({'x': Image.fromarray(sample(i).reshape(1024, 4096))} for i in range(N)), here / 'out',"
        " {'x': 'image'}, jobs=1)",
    ),
    "an object with items": ("", "", "brand.pack(Items(), here / 'out', {'x': 'ndarray'}, jobs=1)"),
    "a list": (
        "",
        "samples = [{'x': sample(i).tobytes()} for i in range(N)]",
        "brand.pack(samples, here / 'out', {'x': 'bytes'}, jobs=1)",
    ),
    "a table of pandas": (
        "",
        "import pandas; table = pandas.DataFrame({'x': [sample(i).tobytes() for i in range(N)], 'i': range(N)})",
        "brand.pack(table, here / 'out', jobs=1)",
    ),
    "a table of pandas with columns of Arrow": (
        "",
        "import pandas, pyarrow as pa; table = pandas.DataFrame({'x': pandas.Series([sample(i).tobytes() for i in"
        " range(N)], dtype=pandas.ArrowDtype(pa.binary()))})",
        "brand.pack(table, here / 'out', jobs=1)",
    ),
    "a table of Arrow": (
        "",
        "import pyarrow as pa; table = pa.table({'x': pa.array((sample(i).tobytes() for i in range(N)), pa.binary())})",
        "brand.pack(table, here / 'out', jobs=1)",
    ),
    "a folder of images": (
        "from PIL import Image\n"
        "(here / 'src').mkdir()\n"
        "for i in range(N): Image.fromarray(sample(i).reshape(1024, 4096)).save(here / f'src/{i}.bmp')",
        "",
        "convert_images(here / 'src', here / 'out', one)",
    ),
    "tar files": (
        "with tarfile.open(here / 'a.tar', 'w') as tar:\n"
        "    for i in range(N):\n"
        "        info = tarfile.TarInfo(f'{i}.bin'); info.size = SIZE; tar.addfile(info, io.BytesIO(sample(i)))",
        "",
        "convert_from('webdataset', here / 'a.tar', here / 'out', one)",
    ),
    "one row group of Parquet": (
        "import pyarrow as pa, pyarrow.parquet as pq\n"
        "table = pa.table({'x': pa.array((sample(i).tobytes() for i in range(N)), pa.binary())})\n"
        "pq.write_table(table, here / 'a.parquet', row_group_size=N, write_batch_size=1)",
        "",
        "convert_from('parquet', here / 'a.parquet', here / 'out', one)",
    ),
    "one page of Parquet": (
        "import pyarrow as pa, pyarrow.parquet as pq\n"
        "table = pa.table({'x': pa.array((np.random.default_rng(i).bytes(SIZE) for i in range(N)), pa.binary())})\n"
        "pq.write_table(table, here / 'a.parquet', row_group_size=N)",
        "",
        "convert_from('parquet', here / 'a.parquet', here / 'out', one)",
    ),
    "a few values in a dictionary of Parquet": (
        "import pyarrow as pa, pyarrow.parquet as pq\n"
        "table = pa.table({'x': pa.array([sample(i % 3).tobytes() for i in range(N)], pa.binary())})\n"
        "pq.write_table(table, here / 'a.parquet', row_group_size=N)",
        "",
        "convert_from('parquet', here / 'a.parquet', here / 'out', one)",
    ),
    "a dictionary of Arrow": (
        "",
        "import pyarrow as pa\n"
        "x = pa.array([sample(i % 3).tobytes() for i in range(N)], pa.binary()).dictionary_encode()\n"
        "table = pa.table({'x': x})",
        "brand.pack(table, here / 'out', jobs=1)",
    ),
    "lines of JSON": (
        "with open(here / 'a.jsonl', 'w') as f:\n"
        "    for i in range(N): f.write(json.dumps({'x': chr(65 + i % 26) * SIZE}) + '\\n')",
        "",
        "convert_from('jsonl', here / 'a.jsonl', here / 'out', one)",
    ),
    "rows of CSV": (
        "with open(here / 'a.csv', 'w') as f:\n"
        "    f.write('x\\n')\n"
        "    for i in range(N): f.write(chr(65 + i % 26) * SIZE + '\\n')",
        "",
        "convert_from('csv', here / 'a.csv', here / 'out', one)",
    ),
    "samples that are appended": ("", "", "append_samples(volumes(), here / 'c', {'x': 'ndarray'}, options=one)"),
    "a segment of one chunk that is compacted": (
        "append_samples(({'x': np.random.default_rng(i).bytes(SIZE)} for i in range(N)), here / 'c', {'x': 'bytes'},\n"
        "    options=Options(jobs=1, chunk_size=N, compression='none'))\n"
        "delete(here / 'c', NamedSamples(indices=[3]))",
        "",
        "compact(here / 'c')",
    ),
}


SMALL = [{"x": b"small"}] * 3000
LARGE = [{"x": bytes(3 << 20)}] * 6
STREAMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "small ones": ("bytes", SMALL),
    "large ones": ("bytes", LARGE),
    "small ones, then large ones": ("bytes", [*SMALL, *LARGE]),
    "large ones, then small ones": ("bytes", [*LARGE, *SMALL]),
    "a large one among small ones": ("bytes", [*SMALL, *LARGE[:1], *SMALL]),
    "empty ones": ("bytes", [{"x": b""}] * 2500),
    "long texts": ("str", [{"x": "é" * (2 << 20)}] * 5),
    "views of memory": ("bytes", [{"x": memoryview(bytes(2 << 20))}] * 5),
    "arrays": ("ndarray", [{"x": np.zeros((700, 1000), np.float32)}] * 5),
    "strided arrays": ("ndarray", [{"x": np.zeros((1400, 2000), np.uint8)[::2, ::2]}] * 9),
    "big-endian arrays": ("ndarray", [{"x": np.ones(1 << 20, ">i4")}] * 4),
    "an array without elements": ("ndarray", [{"x": np.zeros((0, 5))}, {"x": np.zeros(())}]),
    "lists of numbers": ("ndarray", [{"x": [0.5] * 300_000}] * 9),
    "nested lists of numbers": ("ndarray", [{"x": [[1] * 1000] * 300}] * 9),
    "JSON with a long text": ("json", [{"x": {"a": ["b", "c" * (2 << 20)]}}] * 40),
    "small JSON, then large": ("json", [*[{"x": 1}] * 900, *[{"x": {"a": {"b": "c" * (1 << 20)}}}] * 60]),
    "audio": ("audio", [{"x": bytes(5 << 20)}] * 3),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_a_block_ends_when_its_samples_hold_some_megabytes(stream: str) -> None:
    """The records are those of one call for all samples. A block exceeds the limit by one sample, of JSON by 16."""
    codec, samples = STREAMS[stream]
    schema = Schema.parse({"x": codec})
    blocks = list(encoded(iter(samples), schema))
    assert [record for block in blocks for record in block] == list(
        encode_records(schema, samples, range(len(samples)))
    )
    more = 16 if codec == "json" else 1
    for block in blocks:
        assert len(block) <= MOST_SAMPLES
        assert int(block.sizes[:-more].sum()) < (2 if codec == "str" else 1) * BLOCK_BYTES  # by characters


def test_small_samples_are_encoded_together() -> None:
    """A thousand at a time, so that a conversion of small samples is as fast as before."""
    assert [len(block) for block in encoded(SMALL, Schema.parse({"x": "bytes"}))] == [1024, 1024, 952]


def test_an_error_of_the_iterable_itself_is_not_lost() -> None:
    """Also a kind of error that a wrong sample causes: the samples before it are not the whole."""

    def samples() -> Iterator[dict[str, Any]]:
        yield {"x": b"1"}
        raise KeyError("in the user's code")

    with pytest.raises(KeyError, match="user's code"):
        list(encoded(samples(), Schema.parse({"x": "bytes"})))


@pytest.mark.parametrize("wrong", [{"x": 5}, {"y": b""}, {}, None, 7, {"x": None}, {"x": "text"}, ("a", "b")])
def test_a_wrong_sample_is_named_by_its_index(wrong: Any) -> None:
    """Whatever finds it first."""
    with pytest.raises(SchemaError, match="sample 1500"):
        list(encoded([*SMALL[:1500], wrong], Schema.parse({"x": "bytes"})))


def test_numbers_name_the_samples_of_an_object_with_items() -> None:
    """The index is that of the item."""
    with pytest.raises(SchemaError, match="sample 77"):
        list(encoded([{"x": b""}, {"x": 1}], Schema.parse({"x": "bytes"}), [5, 77]))


@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=60), st.integers(1, 20))
def test_cuts_are_whole_and_bounded(sizes: list[int], most: int) -> None:
    """Each item once, in order; no more bytes than a block holds, unless one item does."""
    cuts = cut(np.array(sizes, np.int64), most)
    assert [number for low, high in cuts for number in range(low, high)] == list(range(len(sizes)))
    for low, high in cuts:
        assert high - low <= most
        assert high - low == 1 or sum(sizes[low:high]) <= BLOCK_BYTES


def test_the_bytes_of_values() -> None:
    """Those of contents, whatever they are in; of nested values an estimate within a factor of four."""
    image = pytest.importorskip("PIL.Image").new("RGB", (300, 200))
    exact = [(b"abc", 3), ("abc", 3), (np.zeros((3, 4), np.int16), 24), (np.zeros(1000)[::2], 4000), (image, 240_000)]
    for value, size in exact:
        assert bytes_of(value) == size
    text = "x" * 100_000
    for value, size in [([text] * 50, 50), ({"a": {"b": [text] * 3}}, 3), ([[text]] * 7, 7), ((text, text), 2)]:
        assert size * 25_000 <= bytes_of(value) <= size * 400_000
    assert bytes_of([1.5] * 1000) == 32_000
    assert 0 < bytes_of(None) < 100


def test_the_bytes_of_rows_of_arrow() -> None:
    """Exact for contents, texts, lists of numbers, and files with a path; also for slices, and missing values."""
    pa = pytest.importorskip("pyarrow")
    files = pa.array([{"bytes": b"12345", "path": None}, None, {"bytes": b"", "path": "ab"}])
    batch = pa.record_batch({"x": [b"1", None, b"333"], "t": ["é", "", "ab"], "l": [[1, 2], [], None], "f": files})
    assert row_bytes(batch).tolist() == [1 + 2 + 16 + 5, 0, 3 + 2 + 0 + 2]
    assert row_bytes(batch.slice(2)).tolist() == [7]
    numbers = pa.record_batch({"i": pa.array([1, 2], pa.int64()), "d": pa.array(["a", "a"]).dictionary_encode()})
    assert row_bytes(numbers).tolist() == [9, 9]
    large = pa.record_batch({"d": pa.array([b"x" * 500, b"y", b"x" * 500, None]).dictionary_encode()})
    assert row_bytes(large).tolist() == [500, 1, 500, 500]


def test_arrow_reads_a_saved_batch_as_its_rows_are_read(tmp_path: Path) -> None:
    """`datasets` writes a thousand rows a batch; none is in the memory of Arrow as a whole."""
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"x": pa.array((bytes(2 << 20) for _ in range(40)), pa.binary())})
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    del table
    held = pa.total_allocated_bytes()
    source = open_shards("hf", tmp_path, FieldMapping())
    sizes = []
    for block in source.read(0):
        sizes.append(len(block))
        assert pa.total_allocated_bytes() - held < 16 << 20
    assert sum(sizes) == 40
    assert max(sizes) <= 2


def test_the_first_rows_are_looked_at_one_by_one(tmp_path: Path) -> None:
    """Their codec follows from their first bytes; the eight rows are not in memory together."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"x": pa.array((b"\x89PNG\r\n\x1a\n" + bytes(2 << 20) for _ in range(10)), pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet", write_batch_size=1, use_dictionary=False)
    del table
    pool = pa.default_memory_pool()
    held = pool.bytes_allocated()
    source = open_shards("parquet", tmp_path / "a.parquet", FieldMapping())
    assert source.schema.fields == (("x", "image"),)
    assert pool.bytes_allocated() - held < 1 << 20


def test_a_large_page_that_arrow_reads_is_said_and_read_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow writes up to 1,024 values into a page. Each cure in the note makes pages that take little memory."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("brand.chunker.importers.parquet._LARGE_PAGE", 4 << 20)
    noise = np.random.default_rng(0)
    table = pa.table({"x": pa.array((noise.bytes(200_000) for _ in range(60)), pa.binary()), "i": range(60)})
    pq.write_table(table, tmp_path / "one.parquet", compression="lz4")
    source = open_shards("parquet", tmp_path / "one.parquet", FieldMapping())
    assert "1 file with large pages, such as one.parquet with 0.0 GB" in source.notes[-1]
    assert 2 * 12_000_000 <= source.least_held < 2 * 12_100_000
    cures: list[dict[str, Any]] = [
        {"compression": "lz4", "write_batch_size": 16},
        {"compression": "lz4", "row_group_size": 20},
        {"compression": "zstd"},
    ]
    for number, cure in enumerate(cures):
        pq.write_table(table, tmp_path / f"{number}.parquet", **cure)
        source = open_shards("parquet", tmp_path / f"{number}.parquet", FieldMapping())
        assert source.least_held == 0
        assert not source.notes


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("jsonl", ['{"x": "%s", "n": 1}', '{"x": "%s"}', '{"n": "text"}']),
        ("json", ['[{"x": "%s", "n": 1},', '{"x": "%s"},', '{"n": "text"}]']),
        ("csv", ["x,n", "%s,1", "%s,2", "a,text"]),
    ],
)
def test_columns_are_inferred_from_some_megabytes_of_rows(
    kind: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand rows of megabytes would be the whole source. The row that is not looked at differs from the others."""
    path = tmp_path / f"a.{kind}"
    path.write_text("\n".join(line.replace("%s", "y" * 1000) for line in lines) + "\n")
    format_name = kind.replace("jsonl", "json").replace("json", "jsonl")
    with pytest.raises(UsageError) if kind != "csv" else nullcontext():
        assert dict(open_shards(format_name, path, FieldMapping()).schema.fields)["n"] == "str"
    monkeypatch.setattr("brand.chunker.importers.natural.BYTES_LOOKED_AT", 2000)
    assert dict(open_shards(format_name, path, FieldMapping()).schema.fields)["n"] == "int"


def test_a_text_that_is_longer_than_a_path_is_not_taken_for_one() -> None:
    """Python keeps each component of a path: a text of megabytes has a million."""
    assert first_text("a/b.png") == first_text(["a/b.png"]) == "a/b.png"
    assert first_text("a/" * 2048) == "a/" * 2048
    assert first_text("a/" * 2049) == first_text(["a/" * 2049]) == ""


@pytest.mark.parametrize("stretch", [1, 7, 40, 1000, 4000])
def test_each_line_is_read_once_to_cut_a_file(stretch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if lines are longer than a stretch; the cuts are those of all multiples of a stretch."""
    monkeypatch.setattr("brand.chunker.importers.jsonfiles.STRETCH_BYTES", stretch)
    sizes = [10, 500, 3, 2500, 1, 1, 900]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"x": "{"y" * size}"}}\n' for size in sizes))
    begins = np.cumsum([0, *(size + 10 for size in sizes)]).tolist()
    cuts = {0} | {next(begin for begin in begins if begin >= at) for at in range(stretch, begins[-1], stretch)}
    shards = open_shards("jsonl", path, FieldMapping()).shards
    expected = np.diff([*sorted(cuts - {begins[-1]}), begins[-1]]).tolist()
    assert [shard.bytes for shard in shards] == expected


@pytest.mark.parametrize("megabytes", [1, 4, 5, 20, 147, 255, 256, 257, 5000])
def test_a_mean_chunk_holds_at_most_256_mebibytes(megabytes: int) -> None:
    """Or one sample if that is larger; and as many samples as fit."""
    samples, mean = 1000, megabytes << 20
    size = chunk_samples(samples, samples * mean, Layout())
    assert size == max(1, min(USUAL_SAMPLES, MOST_BYTES // mean))


def test_chunk_size_and_chunk_bytes_are_what_the_user_says() -> None:
    """The limit is one of the default."""
    assert chunk_samples(1000, 1000 * (20 << 20), Layout(chunk_size=64)) == 64
    assert chunk_samples(1000, 1000 * (20 << 20), Layout(chunk_bytes=1 << 30)) == 50


def test_processes_hold_a_gibibyte_of_samples_unless_the_user_gives_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small samples take all cores, samples of a gibibyte one."""
    monkeypatch.setattr("brand.chunker.plan.plan.default_jobs", lambda: 16)
    assert [Options().processes_for(held) for held in (0, 1000, 64 << 20, 100 << 20, 1 << 30, 1 << 40)] == [
        16, 16, 16, 10, 1, 1,
    ]  # fmt: skip
    assert Options(jobs=5).processes_for(1 << 40) == 5


def test_few_large_chunks_are_uploaded_at_the_same_time(tmp_path: Path) -> None:
    """They are in memory as they are sent; those of the usual size do not limit the number."""
    with open_store_work((tmp_path / "bucket").as_uri(), 4) as work:
        assert [work.publishers(4, size << 20) for size in (4, 32, 64, 256)] == [8, 8, 8, 4]
        assert work.publishers(32, 4 << 20) == 32


def rise(case: str, folder: Path) -> int:
    """Convert in a fresh process, and return by how many bytes the resident memory rises at its peak."""
    files, objects, call = CASES[case]
    measured = f"Path('/proc/self/clear_refs').write_text('5')\nheld = peak()\n{call}\nprint('rise', peak() - held)"
    for code in (files, f"{objects}\n{measured}"):
        command = [sys.executable, "-c", f"{HEAD}\n{code}", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_large_samples_are_converted_in_little_memory(case: str, tmp_path: Path) -> None:
    """The peak rises by less than the limit."""
    assert rise(case, tmp_path) < LIMIT


def _filled_in_turn(memories: int) -> Iterator[dict[str, Any]]:
    """Samples 0 to 2,999, in a few arrays that are filled in turn."""
    arrays = np.zeros((memories, 3), np.int16)
    for number in range(3000):
        arrays[number % memories] = number
        yield {"x": arrays[number % memories]}


@pytest.mark.parametrize("memories", [2, 3, 1000, 1023])
def test_a_generator_may_fill_several_memories_in_turn(memories: int) -> None:
    """As many as a block has samples."""
    schema = Schema.parse({"x": "ndarray"})
    stored = [record for block in encoded(_filled_in_turn(memories), schema) for record in block]
    assert [decode_ndarray(record[4:])[0] for record in stored] == list(range(3000))


@pytest.mark.parametrize("first", [1, 5, 1023, 1024, 1025, 2000])
def test_a_generator_may_change_from_constants_to_a_list_that_it_fills(first: int) -> None:
    """And back, at any sample."""

    def samples() -> Iterator[dict[str, Any]]:
        listed = [0]
        for number in range(2400):
            listed[0] = number
            yield {"n": number, "x": str(number) if number < first or number >= 2200 else listed}

    schema = Schema.parse({"n": "int", "x": "json"})
    stored = [record for block in encoded(samples(), schema) for record in block]
    assert stored == [record for sample in samples() for record in encode_records(schema, [dict(sample)], [0])]


def test_a_dict_of_constants_that_is_filled_late_is_noticed() -> None:
    """Also if all samples of the first block are equal."""
    sample = {"n": 0}

    def samples() -> Iterator[dict[str, int]]:
        for number in range(3000):
            sample["n"] = max(0, number - 1500)
            yield sample

    stored = [record for block in encoded(samples(), Schema.parse({"n": "int"})) for record in block]
    assert len(set(stored)) == 1500


def _filled_again(kind: str) -> Iterator[dict[str, Any]]:
    """Samples 0 to 2,000, in one memory."""
    array, sample, view, listed = np.zeros(3, np.int16), dict[str, Any](), bytearray(3), [0]
    for number in range(2000):
        array[:], view[:], listed[0] = number, number.to_bytes(3), number
        if kind == "one dict":
            sample["x"] = number
            yield sample
        elif kind == "one dict of new arrays":
            sample["x"] = array.copy()
            yield sample
        else:
            yield {"x": {
                "one array": array,
                "views of one array": array[:],
                "one bytearray": view,
                "views of one bytearray": memoryview(view),
                "one list": listed,
            }[kind]}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("one dict", "int"),
        ("one dict of new arrays", "ndarray"),
        ("one array", "ndarray"),
        ("views of one array", "ndarray"),
        ("one bytearray", "bytes"),
        ("views of one bytearray", "bytes"),
        ("one list", "json"),
        ("one list", "list[int]"),
    ],
)
def test_a_generator_may_fill_one_memory_again_and_again(kind: str, codec: str) -> None:
    """Each sample is stored as it was when it was given."""
    schema = Schema.parse({"x": codec})
    stored = [record for block in encoded(_filled_again(kind), schema) for record in block]
    expected = []
    for sample in _filled_again(kind):
        expected += list(encode_records(schema, [sample], [0]))
    assert stored == expected
    assert len(set(stored)) == 2000


def test_samples_with_memory_of_their_own_are_encoded_together() -> None:
    """Also if they are views of one memory, share a text, or are one array."""
    memory = np.zeros(5000, np.int16)
    schema = Schema.parse({"x": "ndarray", "t": "str", "n": "int"})
    views = ({"x": memory[i : i + 9], "t": "text", "n": 7} for i in range(2000))
    assert [len(block) for block in encoded(views, schema)] == [1024, 976]
    one = ({"x": memory, "t": "text", "n": i} for i in range(2000))
    assert [len(block) // 100 for block in encoded(one, schema)] == [4, 4, 4, 4, 3]
