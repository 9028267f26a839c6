"""Which way of reading is chosen, and that samples are the same either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand.node.setup import choose
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import vector_reader
from brand.storage.io.vectored import DirectFiles, LocalFiles
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandSampler


@pytest.mark.parametrize(("free", "way"), [(0, LocalFiles), (-1, DirectFiles)])
def test_the_page_cache_serves_where_it_holds_the_data(
    texts: Path, monkeypatch: pytest.MonkeyPatch, free: int, way: type
) -> None:
    """To the byte: the files and the arena together."""
    data = StoredDataSet(texts)
    files = sum(path.stat().st_size for path in (texts / "chunks").iterdir())
    monkeypatch.setattr(choose, "available_bytes", lambda: files + 1000 + free)
    assert isinstance(vector_reader(data.location, page_cache=choose.use_page_cache(data, 1000)), way)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.1, 0.5, 1.0])
def test_samples_are_the_same_past_the_page_cache(texts: Path, memory: float) -> None:
    """Two epochs, each in the order of its plan and with the bytes of exact reads."""
    exact = BrandDataset(texts, fields=("index", "text"))
    with running_server(texts, memory=memory, page_cache=False) as server:
        data_set = BrandDataset(texts, fields=("index", "text"), server=server.address)
        sampler = BrandSampler(data_set, seed=4)
        for epoch in range(2):
            drawn = data_set.__getitems__(list(sampler))
            plan = sampler.order.plan(epoch).sample_of
            assert [index for index, _ in drawn] == StoredDataSet(texts).indices(plan).tolist()
            assert sorted(drawn) == exact.__getitems__(range(len(exact)))
        assert server.facts()["failed_reads"] == 0
