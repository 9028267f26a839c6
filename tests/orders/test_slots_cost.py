"""The bytes that `slots` reads grow with the samples per chunk, and users are told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import brand
from brand import BrandDataset, BrandSampler
from brand.orders import Slots
from brand.orders.base.mapping import Mapping
from brand.orders.policies.slot_policy import LARGEST_FACTOR, SlotPolicy
from brand.orders.policies.slots import plan_slots


@pytest.mark.parametrize("chunk_size", [16, 64, 256, 1024])
@pytest.mark.parametrize("n", [4, 16])
def test_the_bytes_read_grow_with_the_root_of_the_chunk_size(chunk_size: int, n: int) -> None:
    samples = chunk_size * n * 8
    reads = plan_slots(Mapping(samples, chunk_size, n), "fill_rate", 1, 0).reads
    assert reads is not None
    read = int(reads["count"].sum())
    assert 0.6 < read / samples / chunk_size**0.5 < LARGEST_FACTOR


def test_a_policy_warns_of_large_chunks_alone() -> None:
    assert SlotPolicy(4).caution(64) == SlotPolicy(1).caution(16_384) == ""
    assert "may read 179 times the bytes" in SlotPolicy(4).caution(16_384)


def test_the_log_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the way out: smaller chunks, or the default order. Both silence it."""
    rows = [{"n": n} for n in range(4000)]
    for name, chunk_size in (("large", 500), ("small", 64)):
        brand.pack(rows, tmp_path / name, {"n": "int"}, chunk_size=chunk_size, jobs=1)
    with caplog.at_level(logging.WARNING):
        BrandSampler(BrandDataset(tmp_path / "small", memory=0.2, order=Slots()))
        BrandSampler(BrandDataset(tmp_path / "large", memory=0.2))
        assert "slots" not in caplog.text
        len(BrandSampler(BrandDataset(tmp_path / "large", memory=0.2, order="slots")))
    assert "Convert with --chunk-size 64" in caplog.text
