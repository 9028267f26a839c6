"""Data sets that other tools wrote with their own writers come back sample for sample, byte for byte, in order."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import json
import lzma
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from brand.chunker import Options, convert_from
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.parquet import _cuts
from brand.storage.dataset.dataset import StoredDataSet
from tests.rounds import examples
from tests.support import brand, brand_process, tree_digest

SOURCES = Path(__file__).parent / "sources"
SAMPLES: list[dict[str, Any]] = json.loads((SOURCES / "samples.json").read_text(encoding="utf-8"))
EVERYWHERE = ("key", "image", "label", "text", "score")
FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    "webdataset": ("webdataset", {"score": "score_txt", "vector": "vector_npy", "facts": "json"}),
    "mds": ("mds", {}),
    "mds-zstd": ("mds", {}),
    "litdata": ("litdata", {}),
    "litdata-zstd": ("litdata", {}),
    "litdata-rows": ("litdata", {}),
    "parquet": ("parquet", {}),
    "hf": ("hf", {}),
}
"""Folder below `sources` -> format, and the fields that have another name than in samples.json."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def convert(kind: str, src: Path | str, target: Path, choice: FieldMapping | None = None, **more: Any) -> StoredDataSet:
    """Convert in one process, in small chunks."""
    convert_from(kind, src, target, Options(chunk_size=5, jobs=more.pop("jobs", 1), **more), choice=choice)
    return StoredDataSet(target)


def plain(value: Any) -> Any:
    """A value as samples.json has it."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_value_is_there_in_the_order_of_the_source(name: str, tmp_path: Path) -> None:
    """Pictures are the same bytes, arrays have the same dtype and shape, and index i is sample i."""
    kind, names = FORMATS[name]
    stored = convert(kind, SOURCES / name, tmp_path / "set")
    assert len(stored) == len(SAMPLES)
    fields = stored.header.schema.names
    for index, expected in enumerate(SAMPLES):
        found = stored.sample(index)
        for field, value in expected.items():
            if names.get(field, field) in fields:
                told = plain(found[names.get(field, field)])
                assert (float(told) if field == "score" else told) == value, (index, field)
    assert {names.get(field, field) for field in EVERYWHERE} <= set(fields)
    assert stored.header.source["kind"] == kind
    assert stored.header.schema.codec("image") == "image"
    if name != "litdata-rows":
        vector = stored.sample(3)[names.get("vector", "vector")]
        assert (vector.dtype, vector.shape) == (np.float32, (2, 3))


def test_other_numbers_keep_their_values(tmp_path: Path) -> None:
    """int8 of MDS; bool and tensors of LitData."""
    mds, litdata = (convert(kind, SOURCES / kind, tmp_path / kind) for kind in ("mds", "litdata"))
    for index, sample in enumerate(SAMPLES):
        assert mds.sample(index)["small"] == -sample["label"]
        assert litdata.sample(index)["even"] == (sample["label"] % 2 == 0)
        assert litdata.sample(index)["tensor"].tolist() == sample["vector"]
        assert litdata.sample(index)["tokens"].tolist() == sample["tokens"]


@pytest.mark.parametrize("kind", ["parquet", "hf"])
def test_the_names_of_a_class_label_become_the_classes(kind: str, tmp_path: Path) -> None:
    """As Hugging Face's features tell them."""
    stored = convert(kind, SOURCES / kind, tmp_path / "set")
    assert stored.header.classes == ("top", "trouser", "pullover", "dress", "coat")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["webdataset", "mds", "litdata", "parquet", "hf", "jsonl", "csv"])
def test_the_bytes_do_not_depend_on_the_processes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, two and three, where each shard is a stretch of its own."""
    monkeypatch.setattr("brand.chunker.sources.shards.LEAST_BYTES", 1)
    src = SOURCES / name
    if name in ("jsonl", "csv"):
        src = tmp_path / "source"
        write_texts(src, name)
    digests = []
    for jobs in (1, 2, 3):
        convert(name, src, tmp_path / str(jobs), jobs=jobs)
        digests.append(tree_digest(tmp_path / str(jobs)))
    assert digests[0] == digests[1] == digests[2]


def write_texts(folder: Path, kind: str, rows: list[dict[str, Any]] | None = None, files: int = 3) -> None:
    """Rows as JSON lines or CSV, in some files."""
    folder.mkdir()
    rows = (
        [{"key": s["key"], "label": s["label"], "text": s["text"], "score": s["score"]} for s in SAMPLES]
        if rows is None
        else rows
    )
    for number in range(files):
        with (folder / f"{number}.{kind}").open("w", encoding="utf-8", newline="") as file:
            some = rows[number * len(rows) // files : (number + 1) * len(rows) // files]
            if kind == "jsonl":
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in some)
            else:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(some)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_texts_come_back_with_their_types(kind: str, tmp_path: Path) -> None:
    """Whole numbers, other numbers, texts with quotes and line breaks; 007 is a text."""
    rows = [
        {"key": "a", "n": 1, "x": 1.5, "zip": "007", "text": 'with "quotes", a comma\nand a break'},
        {"key": "b", "n": -20, "x": 2.0, "zip": "123", "text": "Äpfel und 梨"},
        {"key": "c", "n": 0, "x": 0.25, "zip": "9", "text": ""},
    ]
    write_texts(tmp_path / "source", kind, rows)
    stored = convert(kind, tmp_path / "source", tmp_path / "set")
    assert [stored.sample(i) for i in range(3)] == rows
    assert dict(stored.header.schema.fields) == {"key": "str", "n": "int", "x": "float", "zip": "str", "text": "str"}


def test_nested_values_of_json_lines_are_json_and_others_on_demand_arrays(tmp_path: Path) -> None:
    """`--field NAME=ndarray` makes arrays of lists."""
    rows: list[dict[str, Any]] = [{"ids": [1, 2, 3], "facts": {"a": None}}, {"ids": [4], "facts": []}]
    write_texts(tmp_path / "source", "jsonl", rows, files=1)
    stored = convert("jsonl", tmp_path / "source", tmp_path / "a")
    assert [stored.sample(i) for i in range(2)] == rows
    stored = convert("jsonl", tmp_path / "source", tmp_path / "b", FieldMapping(codecs={"ids": "ndarray"}))
    assert stored.sample(0)["ids"].dtype == np.int64
    assert [stored.sample(i)["ids"].tolist() for i in range(2)] == [[1, 2, 3], [4]]


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_are_read(ending: str, tmp_path: Path) -> None:
    """Tar files and JSON lines, also where a file consists of several frames."""
    pack = PACKERS[ending]
    (tmp_path / "tars").mkdir()
    for path in (SOURCES / "webdataset").iterdir():
        (tmp_path / "tars" / f"{path.name}.{ending}").write_bytes(pack(path.read_bytes()))
    assert tree_digest_of("webdataset", tmp_path / "tars", tmp_path) == tree_digest_of(
        "webdataset", SOURCES / "webdataset", tmp_path
    )
    lines = [json.dumps({"n": n}).encode() + b"\n" for n in range(20)]
    (tmp_path / f"x.jsonl.{ending}").write_bytes(pack(b"".join(lines[:7])) + pack(b"".join(lines[7:])))
    stored = convert("jsonl", tmp_path / f"x.jsonl.{ending}", tmp_path / "lines")
    assert [stored.sample(i)["n"] for i in range(20)] == list(range(20))


def tree_digest_of(kind: str, src: Path, folder: Path) -> list[str]:
    """Digests of the records, in order."""
    stored = convert(kind, src, folder / f"of-{src.name}")
    return [json.dumps({n: plain(v) for n, v in stored.sample(i).items()}) for i in range(len(stored))]


def test_a_file_and_a_pattern_name_sources_too(tmp_path: Path) -> None:
    """With stars, or braces as webdataset writes them."""
    tars = SOURCES / "webdataset"
    assert len(convert("webdataset", tars / "part-001.tar", tmp_path / "one")) == 5
    assert len(convert("webdataset", f"{tars}/part-00[01].tar", tmp_path / "two")) == 10
    assert len(convert("webdataset", f"{tars}/part-{{000..002}}.tar", tmp_path / "all")) == 12
    told = brand("convert", "webdataset", f"{tars}/part-{{001..003}}.tar", tmp_path / "x")
    assert told.code == 1
    assert "part-003.tar: there is no such file" in told.err


@pytest.mark.parametrize("kind", ["mds", "parquet", "webdataset"])
def test_columns_choose_the_fields(kind: str, tmp_path: Path) -> None:
    """In the source's order, with other codecs where they are named."""
    told = brand(
        "convert", kind, SOURCES / kind, tmp_path / "set", "--columns", "image,label", "--field", "image=bytes", "-j", 1
    )
    assert told.code == 0, told.err
    assert dict(StoredDataSet(tmp_path / "set").header.schema.fields) == {"image": "bytes", "label": "int"}


def test_a_large_file_is_cut_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is in one stretch, wherever the cuts fall; messages count lines from the front of the file."""
    rows = [{"n": n, "text": "x" * (n % 37)} for n in range(300)]
    write_texts(tmp_path / "source", "jsonl", rows, files=1)
    for stretch in (1, 40, 1000):
        monkeypatch.setattr("brand.chunker.importers.jsonfiles.STRETCH_BYTES", stretch)
        stored = convert("jsonl", tmp_path / "source", tmp_path / str(stretch))
        assert [stored.sample(i) for i in range(300)] == rows
    with (tmp_path / "source" / "0.jsonl").open("a") as file:
        file.write('{"n": "none", "text": ""}\n')
    monkeypatch.setattr("brand.chunker.importers.jsonfiles.ROWS_LOOKED_AT", 100)
    told = brand("convert", "jsonl", tmp_path / "source", tmp_path / "bad", "-j", 1)
    assert "0.jsonl: line 301: field 'n': expected int, as in the first rows, found str ('none')" in told.err


def test_small_row_groups_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch has as many row groups as fit into its bytes, and each row group is in one stretch."""
    table = pyarrow.table({"text": [f"{n:09}" for n in range(1000)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=10, use_dictionary=False, compression="none")
    metadata = parquet.read_metadata(tmp_path / "rows.parquet")
    sizes = [metadata.row_group(n).total_byte_size for n in range(100)]
    monkeypatch.setattr("brand.chunker.importers.parquet.STRETCH_BYTES", 8 * max(sizes))
    cuts = _cuts(metadata)
    assert [n for groups, _, _ in cuts for n in groups] == list(range(100))
    assert [(rows, size) for _, rows, size in cuts] == [
        (10 * len(groups), sum(sizes[n] for n in groups)) for groups, _, _ in cuts
    ]
    assert {len(groups) for groups, _, _ in cuts[:-1]} == {8}


@pytest.mark.slow
def test_a_file_url_is_the_folder(tmp_path: Path) -> None:
    """With the same bytes."""
    convert("parquet", SOURCES / "parquet", tmp_path / "folder")
    told = brand("convert", "parquet", SOURCES / "parquet", f"file://{tmp_path}/set", "--chunk-size", 5, "-j", 1)
    assert told.code == 0, told.err
    assert tree_digest(tmp_path / "set") == tree_digest(tmp_path / "folder")


@pytest.mark.parametrize("kind", ["parquet", "hf"])
def test_without_pyarrow_the_message_says_how_to_install_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other formats need no library."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = brand("convert", kind, SOURCES / kind, tmp_path / "set")
    assert told.code == 1
    assert "pip install 'brand-data[parquet]'" in told.err
    for other in ("webdataset", "mds", "litdata"):
        assert brand("convert", other, SOURCES / other, tmp_path / other, "-j", 1).code == 0


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_taken_from_its_cache(tmp_path: Path) -> None:
    """huggingface_hub downloads what is not there; without a network, one that is not there is refused."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "cache" / "datasets--owner--name"
    shutil.copytree(SOURCES / "parquet", cached / "snapshots" / commit / "data")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    files = {
        "": 12,
        "/data": 12,
        "/data/train-00000-of-00002.parquet": 6,
        "/data/train-{00000..00001}-of-00002.parquet": 12,
    }
    for folder, count in files.items():
        target = tmp_path / f"set{len(folder)}"
        told = brand_process("convert", "hf", f"hf://datasets/owner/name{folder}", target, "-j", 1, env=environment)
        assert told.code == 0, told.err
        assert [StoredDataSet(target).sample(i)["key"] for i in range(count)] == [s["key"] for s in SAMPLES[:count]]
    told = brand_process("convert", "hf", "hf://datasets/owner/other", tmp_path / "x", env=environment)
    assert told.code == 2
    assert "hf://datasets/owner/other: it is not on the Hub, or the Hub does not answer" in told.err


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "t": TEXT,
            "n": st.integers(-(1 << 62), 1 << 62),
            "x": st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda x: x + 0.5),
        }
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@examples(40)
@given(ROWS, st.sampled_from(["jsonl", "csv"]), st.integers(1, 3), st.integers(1, 200))
def test_any_texts_and_numbers_come_back(rows: list[dict[str, Any]], kind: str, files: int, stretch: int) -> None:
    """Whatever characters, quotes and breaks; in one file or several, cut anywhere. A text of digits only stays one."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("brand.chunker.importers.jsonfiles.STRETCH_BYTES", stretch)
        patch.setattr("brand.chunker.sources.shards.LEAST_BYTES", 1)
        source, target = Path(folder, "source"), Path(folder, "set")
        write_texts(source, kind, rows, files)
        codecs = {"t": "str", "n": "int", "x": "float"}
        stored = convert(kind, source, target, FieldMapping(codecs=codecs))
        assert [stored.sample(i) for i in range(len(rows))] == rows
