"""`subset=` as a text: the samples, states and order of the mask that it stands for, in each kind of data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brand
from brand import BrandDataset, BrandSampler, LengthBatchSampler
from brand.chunker import Options
from brand.collect import NamedSamples, append_samples, delete, overlay
from brand.errors import UsageError

SCHEMA = {"label": "int", "seconds": "float", "captions": "list[str]"}
TEXT = 'label in ["b", "c"] and seconds < 12'


def samples(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"label": number % 4 - 1, "seconds": float(number % 7 * 3), "captions": ["x"] * (number % 3)}
        for number in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty samples of three classes, of which a quarter has none."""
    target = tmp_path_factory.mktemp("sets") / "expressions.brand"
    brand.pack(samples(0, 40), target, SCHEMA, chunk_size=8, classes=("a", "b", "c"), jobs=1)
    return target


def mask_of(data: BrandDataset) -> Any:
    return (data.column("label") >= 1) & (data.column("seconds") < 12)


def test_a_text_is_the_subset_of_its_mask(path: Path) -> None:
    """With any sampler, in the order of the mask; a state fits each text that chooses these samples, and no other."""
    data = BrandDataset(path)
    mask = mask_of(data)
    assert 5 < mask.sum() < 15
    sampler = BrandSampler(data, subset=TEXT)
    assert sampler.order == BrandSampler(data, subset=mask).order
    assert list(BrandSampler(data, subset=TEXT, shuffle=False)) == np.flatnonzero(mask).tolist()
    lengths = [LengthBatchSampler(data, "seconds", batch_size=4, subset=each) for each in (TEXT, mask)]
    assert lengths[0].order == lengths[1].order
    state = sampler.state_dict()
    BrandSampler(data, subset="not (seconds >= 12 or label in [-1, 0])").load_state_dict(state)
    with pytest.raises(UsageError, match=r"the state is of subset .* give the same subset= as before"):
        BrandSampler(data, subset='label == "b" and seconds < 12').load_state_dict(state)


def test_an_expression_over_pairs_chooses_pairs(path: Path) -> None:
    """`index` is the number of the pair, and a list is no column."""
    data = BrandDataset(path, expand="captions")
    mask = mask_of(data) & (np.arange(len(data)) > 5)
    found = BrandSampler(data, subset=f"index > 5 and {TEXT}", shuffle=False)
    assert list(found) == np.flatnonzero(mask).tolist()
    with pytest.raises(UsageError, match=r"'captions' \(list\[str\]\) is not stored as a column"):
        BrandSampler(data, subset="captions == 1")


def test_deleted_samples_and_missing_values_of_a_collection(path: Path, tmp_path: Path) -> None:
    """A deleted sample is never chosen; a sample that was appended after an overlay has no value in it."""
    home = tmp_path / "all"
    append_samples(samples(0, 30), home, SCHEMA, options=Options(chunk_size=8))
    overlay(home, "quality", np.arange(30))
    append_samples(samples(30, 10), home)
    delete(home, NamedSamples(indices=(3, 35)))
    data = BrandDataset(home)

    def found(text: str) -> list[int]:
        return list(BrandSampler(data, subset=text, shuffle=False))

    assert found("quality < 5 or index >= 38") == [0, 1, 2, 4, 38, 39]
    assert found("quality is null") == [30, 31, 32, 33, 34, 36, 37, 38, 39]
    assert found("not quality < 27") == [27, 28, 29]
    with pytest.raises(UsageError, match="subset= has no sample"):
        found("index == 35")
