"""Rows in another order by way of a file: equal to sorting in memory, in memory and pieces that do not grow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import TruncatedError
from brand.formats import buckets as buckets_module
from brand.formats import index as index_module
from brand.formats.buckets import BucketFile
from brand.formats.constants import ROW
from brand.formats.header import Header, Schema
from brand.formats.index import IndexBuilder

DTYPE = np.dtype([("value", "<u8"), ("small", "u1")])


def rows_of(values: list[int]) -> np.ndarray[Any, Any]:
    """One row a value."""
    rows = np.zeros(len(values), DTYPE)
    rows["value"], rows["small"] = values, np.array(values, np.int64) % 256
    return rows


@given(st.lists(st.lists(st.integers(0, 299), max_size=9), max_size=9), st.integers(1, 300), st.integers(1, 100))
def test_a_bucket_has_its_rows_in_the_order_in_which_they_were_added(
    batches: list[list[int]], buckets: int, run: int
) -> None:
    """For any number of buckets and any size of runs, as a list for each bucket has them."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(buckets_module, "RUN_BYTES", run)
        file, model = BucketFile(Path(folder, "rows"), DTYPE, buckets), [list[int]() for _ in range(buckets)]
        for batch in batches:
            file.add(np.array(batch, np.int64) % buckets, rows_of(batch))
            for value in batch:
                model[value % buckets].append(value)
        for bucket, expected in enumerate(model):
            assert np.array_equal(file.read(bucket), rows_of(expected))
        file.remove()
        assert not any(Path(folder).iterdir())


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    """Not rows of any bytes."""
    file = BucketFile(tmp_path / "rows", DTYPE, 2)
    file.add(np.array([0, 1]), rows_of([4, 5]))
    assert file.read(1)["value"].tolist() == [5]
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(TruncatedError, match="cut short"):
        file.read(1)


def written_bytes() -> int:
    """How many bytes this process has passed to calls that write."""
    return int(Path("/proc/self/io").read_text().partition("wchar:")[2].split()[0])


def mapped_files(folder: Path) -> int:
    """How many files below a folder this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f" {folder}")


@pytest.mark.parametrize("chunks", [8, 64])
def test_an_index_takes_the_same_writes_for_a_sample_and_no_mapping(
    chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row once, places and columns once on the way and once in order, however many chunks there are."""
    monkeypatch.setattr(buckets_module, "RUN_BYTES", 64_000)
    monkeypatch.setattr(index_module, "BUCKET_BYTES", 64_000)
    size = 1000
    header = Header(chunks * size, size, Schema.parse({"label": "int"}), None, "none", 0, {})
    order = np.random.default_rng(chunks).permutation(chunks * size)
    builder, before = IndexBuilder(tmp_path, header, tmp_path), written_bytes()
    for number in range(chunks):
        rows = np.zeros(size, ROW)
        rows["index"] = order[number * size : (number + 1) * size]
        columns = rows["index"].astype("<i8").view([("label", "<i8")])
        builder.add(number, rows, 0, columns, {})
        assert mapped_files(tmp_path) == 0
    builder.finish()
    # 32 for the row; index, place and column on the way; a place of 4 and a column of 8.
    a_sample = (written_bytes() - before) / len(order)
    assert a_sample == pytest.approx(32 + 24 + 12, abs=1)
    assert np.load(tmp_path / "index/place.npy").tolist() == np.argsort(order).tolist()
    assert np.load(tmp_path / "columns/label.npy").tolist() == list(range(len(order)))
