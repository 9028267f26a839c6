"""A data set opened for reading: the right samples in the order asked for, from any thread, without side effects."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brand
from brand.errors import SchemaError
from brand.formats.constants import ROW
from brand.formats.record import RecordDecoder
from brand.storage.dataset import catalogue
from brand.storage.dataset.dataset import CoveringRanges, StoredDataSet, cut_ranges
from tests.formats.strategies import data_sets, same
from tests.independent_reader import Reader
from tests.storage.support import NOTES, SAMPLES, SCHEMA


@st.composite
def layouts(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Chunks and rows of samples asked for, in any order, some of them twice."""
    rows = []
    for number in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(64, 99)) + (2**40 if draw(st.booleans()) else 0)
        for size in draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)):
            rows.append((number, offset, size))
            offset += size
    asked = draw(st.lists(st.sampled_from(rows), min_size=1, max_size=20))
    table = np.zeros(len(asked), ROW)
    table["offset"], table["size"] = [row[1] for row in asked], [row[2] for row in asked]
    return np.array([row[0] for row in asked]), table


def model_bytes(chunks: Any, rows: Any) -> list[set[tuple[int, int]]]:
    """For each sample asked for, the bytes that it is made of: (chunk, position)."""
    return [
        {(chunk, at) for at in range(row["offset"], row["offset"] + row["size"])}
        for chunk, row in zip(chunks.tolist(), rows, strict=True)
    ]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 64, 130])
@pytest.mark.parametrize("rows", [7, 1 << 16])
def test_the_places_of_a_subset(dense_set: Path, count: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of each of a few samples is looked up. The places of many are found in the whole index."""
    monkeypatch.setattr(catalogue, "ROWS_AT_ONCE", rows)
    data, chosen = StoredDataSet(dense_set), np.random.default_rng(count).permutation(130)[:count]
    assert np.flatnonzero(data.places_of(chosen)).tolist() == sorted(data.places(chosen).tolist())


@pytest.mark.slow
@given(layouts())
def test_ranges_are_those_of_the_model(layout: tuple[Any, Any]) -> None:
    """Every byte asked for is read once, no other byte is, and ranges that touch are one."""
    chunks, rows = layout
    cut: CoveringRanges = cut_ranges(chunks, rows)
    read = [(c, at) for c, o, s in zip(cut.chunks, cut.offsets, cut.sizes, strict=True) for at in range(o, o + s)]
    wanted = model_bytes(chunks, rows)
    assert len(read) == len(set(read))
    assert set(read) == set.union(*wanted)
    heads = {(c, o) for c, o in zip(cut.chunks, cut.offsets, strict=True)}
    tails = {(c, o + s) for c, o, s in zip(cut.chunks, cut.offsets, cut.sizes, strict=True)}
    assert not heads & tails
    for position, sample in enumerate(wanted):
        block = cut.range_of[position]
        start = cut.offsets[block] + cut.starts[position]
        size = int(rows["size"][position])
        assert {(cut.chunks[block], at) for at in range(start, start + size)} == sample
        assert start + size <= cut.offsets[block] + cut.sizes[block]


@pytest.mark.slow
def test_every_sample_is_what_was_packed(plain_set: Path, dense_set: Path) -> None:
    """By its index, raw or compressed."""
    assert [StoredDataSet(plain_set).sample(i) for i in range(10)] == SAMPLES
    assert [StoredDataSet(dense_set).sample(i) for i in range(130)] == NOTES


@pytest.mark.slow
@given(indices=st.lists(st.integers(0, 9), max_size=30))
def test_samples_come_in_the_order_asked_for(plain_set: Path, indices: list[int]) -> None:
    """Any order, any repetition, also none at all."""
    data_set = StoredDataSet(plain_set)
    found = data_set.samples(np.array(indices, np.int64), RecordDecoder(data_set.header.schema))
    assert found == [SAMPLES[i] for i in indices]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_indices_may_have_any_whole_dtype(dense_set: Path, dtype: Any) -> None:
    """Also unsigned ones."""
    data_set = StoredDataSet(dense_set)
    indices = np.array([129, 0, 64], dtype)
    assert data_set.samples(indices, RecordDecoder(data_set.header.schema)) == [NOTES[i] for i in (129, 0, 64)]


@pytest.mark.parametrize("index", [-1, 10, 2**63])
def test_an_index_out_of_range_is_an_index_error(plain_set: Path, index: int) -> None:
    """It says how many there are."""
    with pytest.raises(IndexError, match="0 to 9"):
        StoredDataSet(plain_set).sample(index)


def test_the_batch_is_not_changed_by_the_next_read(plain_set: Path) -> None:
    """Memory is used again inside; values are the caller's own."""
    data_set = StoredDataSet(plain_set)
    decode = RecordDecoder(data_set.header.schema)
    first = data_set.samples(np.arange(5), decode)
    data_set.samples(np.arange(5, 10), decode)
    assert first == SAMPLES[:5]


def test_a_data_set_can_be_pickled(plain_set: Path) -> None:
    """Its path goes, its files are opened anew."""
    data_set = StoredDataSet(plain_set)
    data_set.sample(0)
    assert len(pickle.dumps(data_set)) < 1000
    assert pickle.loads(pickle.dumps(data_set)).sample(3) == SAMPLES[3]


def test_threads_may_share_a_data_set(dense_set: Path) -> None:
    """Eight threads read all samples of one object, each finds all right."""
    data_set, wrong = StoredDataSet(dense_set), []

    def read(shift: int) -> None:
        decode = RecordDecoder(data_set.header.schema)
        for start in range(0, 130, 13):
            indices = (np.arange(start, start + 13) * 7 + shift) % 130
            if data_set.samples(indices, decode) != [NOTES[i] for i in indices.tolist()]:
                wrong.append(shift)

    threads = [threading.Thread(target=read, args=(shift,)) for shift in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_columns_are_the_numbers_by_index(plain_set: Path) -> None:
    """Memory-mapped, in index order."""
    data_set = StoredDataSet(plain_set)
    assert data_set.column("label").tolist() == [sample["label"] for sample in SAMPLES]
    assert data_set.column("ratio").tolist() == [sample["ratio"] for sample in SAMPLES]


@pytest.mark.parametrize(("name", "message"), [("text", "columns: label, ratio"), ("nope", "no field 'nope'")])
def test_other_fields_are_no_columns(plain_set: Path, name: str, message: str) -> None:
    """The error says what there is."""
    with pytest.raises(SchemaError, match=message):
        StoredDataSet(plain_set).column(name)


def test_the_chunk_of_a_sample_holds_it(plain_set: Path) -> None:
    """`chunk_of`, `open_chunk` and `rows` agree."""
    data_set = StoredDataSet(plain_set)
    for index in range(10):
        assert index in data_set.open_chunk(data_set.chunk_of(index)).rows["index"]
    assert sorted(data_set.rows(0, 10)["index"].tolist()) == list(range(10))


def test_the_independent_reader_reads_the_same(plain_set: Path, dense_set: Path) -> None:
    """A reader that was written from the specification alone."""
    plain, dense = Reader(plain_set), Reader(dense_set)
    assert [plain.sample(i) for i in range(10)] == SAMPLES
    assert [dense.sample(i) for i in range(130)] == NOTES


@pytest.mark.slow
@given(
    made=data_sets(most=7), seed=st.integers(0, 5), chunk_size=st.integers(1, 8), mode=st.sampled_from(["none", "zstd"])
)
def test_any_data_set_comes_back(
    made: Any, seed: int, chunk_size: int, mode: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random schemas and values, packed and read by both readers."""
    schema, samples = made
    target = tmp_path_factory.mktemp("any") / "set"
    brand.pack(samples, target, dict(schema.fields), seed=seed, chunk_size=chunk_size, compression=mode, jobs=1)
    data_set, reader = StoredDataSet(target), Reader(target)
    assert len(data_set) == len(samples)
    for index, sample in enumerate(samples):
        found, other = data_set.sample(index), reader.sample(index)
        for name, codec in schema.fields:
            assert same(codec, found[name], sample[name])
            assert same(codec, other[name], sample[name])


def test_more_than_the_kept_scratch_memory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch larger than what a thread keeps is read all the same."""
    monkeypatch.setattr("brand.storage.dataset.dataset.SCRATCH_BYTES", 64)
    brand.pack(SAMPLES, tmp_path / "set", SCHEMA, chunk_size=4, compression="none", jobs=1)
    data_set = StoredDataSet(tmp_path / "set")
    for _ in range(2):
        assert data_set.samples(np.arange(10), RecordDecoder(data_set.header.schema)) == SAMPLES
        assert data_set.sample(1) == SAMPLES[1]
