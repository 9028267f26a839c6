"""`Reader.scan`: all samples in the order of the chunks, in large reads, with the memory of a few of them."""

from __future__ import annotations

import operator
import shutil
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brand
from brand.collect import NamedSamples, delete, overlay
from brand.errors import ChecksumError, DeletedError, SchemaError, UsageError
from brand.storage.dataset import scan
from brand.storage.dataset.dataset import StoredDataSet
from tests.collect.support import grow
from tests.shop import Shop, shop
from tests.storage.support import NOTES, SAMPLES, chunk
from tests.support import LIMIT_S


def in_order(folder: Path, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples in the order of the chunks, with their indices."""
    order = StoredDataSet(folder).indices(np.arange(len(samples))).tolist()
    return [samples[index] | {"index": index} for index in order]


def threads() -> list[threading.Thread]:
    """The threads of scans."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("brand-scan")]


@pytest.mark.parametrize("at_a_time", [1, 50, scan.READ_BYTES])
def test_all_samples_are_those_of_random_access(
    plain_set: Path, dense_set: Path, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored raw or compressed, whatever the size of the reads."""
    monkeypatch.setattr(scan, "READ_BYTES", at_a_time)
    for folder, samples in ((plain_set, SAMPLES), (dense_set, NOTES)):
        assert list(brand.open(folder).scan()) == in_order(folder, samples)


def test_some_fields_of_some_samples(plain_set: Path) -> None:
    """In the order of `fields`; a subset is a mask, indices or an expression."""
    reader, expected = brand.open(plain_set), in_order(plain_set, SAMPLES)
    found = list(reader.scan(("key", "index")))
    assert found == [{"key": each["key"], "index": each["index"]} for each in expected]
    assert [*found[0]] == ["key", "index"]
    assert list(reader.scan(["index"])) == [{"index": each["index"]} for each in expected]
    few = [each for each in expected if each["label"] == 1]
    for subset in (reader.column("label") == 1, [each["index"] for each in few], "label == 1"):
        assert list(reader.scan(subset=subset)) == few


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"fields": ("text", "labels")}, SchemaError, "no field 'labels'; this data set has index, key, label, ratio"),
        ({"subset": [0, 3, 0]}, UsageError, "sample 0 twice"),
        ({"subset": [10]}, UsageError, "samples 0 to 9"),
        ({"subset": "label == 7"}, UsageError, "no sample"),
        ({"subset": [True]}, UsageError, r"a mask of shape \(1,\)"),
    ],
)
def test_a_wrong_argument_is_refused_at_the_call(
    plain_set: Path, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Not at the first sample."""
    with pytest.raises(error, match=text):
        brand.open(plain_set).scan(**arguments)


def test_a_collection(tmp_path: Path) -> None:
    """Segments follow each other; deleted samples and holes are left out, and overlays are fields."""
    folder = tmp_path / "grown.brand"
    for first in (0, 30):
        grow(folder, first, 30)
    delete(folder, NamedSamples(indices=(3, 40)))
    overlay(folder, "weight", np.arange(60) / 2)
    reader = brand.open(folder)
    found = list(reader.scan())
    assert sorted(each["index"] for each in found) == reader.present().tolist()
    assert found == [reader.sample(each["index"]) | {"index": each["index"]} for each in found]
    assert [each["index"] < 30 for each in found] == [True] * 29 + [False] * 29
    few = reader.scan(("index", "weight"), "weight > 19")
    assert sorted(map(operator.itemgetter("index"), few)) == [39, *range(41, 60)]
    with pytest.raises(DeletedError):
        reader.scan(subset=[3])


def test_a_store_gets_few_requests(plain_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each chunk, and one for its front."""
    with shop("s3", tmp_path, monkeypatch) as opened:
        check_requests(opened, plain_set)


def check_requests(opened: Shop, folder: Path) -> None:
    """The samples are right, and no chunk is asked for twice as often as it has a front and samples."""
    shutil.copytree(folder, opened.folder())
    reader = brand.open(opened.url())
    opened.store.requests.clear()
    assert list(reader.scan()) == in_order(folder, SAMPLES)
    assert len(opened.asked()) <= 2 * 3


def test_memory_is_that_of_a_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen megabytes, in reads of 64 KiB, pass through less than a quarter of that."""
    folder = tmp_path / "large.brand"
    rng = np.random.default_rng(0)
    samples = ({"data": rng.bytes(16 << 10)} for _ in range(1 << 10))
    brand.pack(samples, folder, {"data": "bytes"}, chunk_size=64, jobs=1)
    monkeypatch.setattr(scan, "READ_BYTES", 64 << 10)
    reader, total = brand.open(folder), 0
    list(reader.scan(subset=[0]))
    tracemalloc.start()
    try:
        for sample in reader.scan():
            total += len(sample["data"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 16 << 20
    assert peak < 4 << 20


def test_progress_counts_what_was_delivered(plain_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of all, and stored bytes."""
    monkeypatch.setattr(scan, "READ_BYTES", 1)
    steps: list[tuple[int, int, int]] = []
    for number, _ in enumerate(brand.open(plain_set).scan(on_progress=lambda *step: steps.append(step))):
        assert len(steps) == number
    assert [(done, of) for done, of, _ in steps] == [(number, 10) for number in range(1, 11)]
    assert steps[-1][2] == StoredDataSet(plain_set).manifest.stored_bytes


def test_a_loop_that_is_left_leaves_no_thread(dense_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that ends, or one whose samples are damaged."""
    monkeypatch.setattr(scan, "READ_BYTES", 1)
    for taken in (0, 1, 200):
        samples = brand.open(dense_set).scan()
        for _ in zip(range(taken), samples, strict=False):
            pass
        samples.close()  # type: ignore[attr-defined]
        for thread in threads():
            thread.join(LIMIT_S)
        assert threads() == []


def test_a_damaged_sample_is_an_error(plain: Path) -> None:
    """The samples before it were delivered."""
    file = chunk(plain, 1)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found: list[dict[str, Any]] = []
    with pytest.raises(ChecksumError):
        found.extend(brand.open(plain).scan())
    assert found == in_order(plain, SAMPLES)[: len(found)]


def test_a_reader_itself_is_not_iterated_over(plain_set: Path, tmp_path: Path) -> None:
    """A loop might expect the order of the indices. The hint works."""
    reader = brand.open(plain_set)
    with pytest.raises(TypeError, match=r"reader\.scan\(\) yields all samples in the order in which they are stored"):
        list(reader)
    brand.pack(reader.scan(), tmp_path / "copy", reader.schema, jobs=1)
    assert len(brand.open(tmp_path / "copy")) == len(SAMPLES)
