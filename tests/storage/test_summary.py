"""A data set in numbers, from its index alone."""

from __future__ import annotations

import json
from pathlib import Path

from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.summary import summarise
from tests.golden.test_golden import GOLDEN
from tests.storage.support import SAMPLES


def test_sizes_are_counted(plain_set: Path) -> None:
    """Samples, chunks, bytes and the histogram of sizes add up."""
    data_set = StoredDataSet(plain_set)
    found = summarise(data_set)
    sizes = [24 + len(sample["text"]) + len(sample["key"]) for sample in SAMPLES]
    assert (found.samples, found.chunks, found.chunk_size) == (10, 3, 4)
    assert (found.raw_bytes, found.stored_bytes, found.largest_sample) == (sum(sizes), sum(sizes), max(sizes))
    assert sum(found.size_histogram.values()) == 10
    for floor, count in found.size_histogram.items():
        assert count == sum(floor <= size < 2 * floor for size in sizes)
    assert found.disk_bytes == sum(p.stat().st_size for p in plain_set.rglob("*") if p.is_file()) - (
        plain_set / "brand.json"
    ).stat().st_size  # fmt: skip
    assert found.class_counts is None


def test_classes_are_counted() -> None:
    """In the order of their labels."""
    found = summarise(StoredDataSet(GOLDEN / "classes"))
    assert found.class_counts == {"no": 4, "yes": 3, "ø \"'\\ \n": 3}


def test_companions_and_source_are_told() -> None:
    """And all of it is plain JSON."""
    found = summarise(StoredDataSet(GOLDEN / "clips"))
    assert found.companions.keys() == {"extras.zip"}
    assert found.source == {"kind": "audio", "file_field": "audio"}
    assert json.loads(json.dumps(found.to_json()))["class_counts"] == {"ada": 2, "grace": 2}
