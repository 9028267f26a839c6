"""States that version 0.2 saved load, and the rest of their epoch is the one that 0.2 delivered.

`states-0.2.json` has, for each order, the state of a loader after seven batches, and the batches that followed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.orders import Stripes, baselines

SAVED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "states-0.2.json").read_text())
ORDERS: dict[str, Any] = {
    "stripes": "stripes",
    "slots": "slots",
    "uniform": "uniform",
    "pool": baselines.Pool(2),
    "minio": "uniform",  # the order of this name is gone: it was a uniform shuffle
    "stripes_mixing": Stripes(4, buffer=0.5),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 numbered samples in chunks of 16, as version 0.2 packed them."""
    target = tmp_path_factory.mktemp("states") / "set.brand"
    rows = ({"key": f"{i:04}", "n": i, "length": i % 17 + 1} for i in range(400))
    brand.pack(rows, target, schema={"key": "str", "n": "int", "length": "int"}, chunk_size=16)
    return target


def rest(loader: brand.BrandLoader, name: str) -> list[list[int]]:
    """Load a saved state and return the batches that follow."""
    loader.load_state_dict(SAVED[name]["state"])
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("name", ORDERS)
def test_a_state_of_an_order_goes_on_as_before(numbers: Path, name: str) -> None:
    """Also states that name the order, the subset and the data set by the words of then."""
    data = brand.BrandDataset(numbers, fields=("n",), memory=0.25, order=ORDERS[name])
    assert rest(brand.BrandLoader(data, 16, sampler=brand.BrandSampler(data, seed=5)), name) == SAVED[name]["after"]


def test_a_state_of_batches_by_length_goes_on_as_before(numbers: Path) -> None:
    """It was a state of `BatchPlan`."""
    data = brand.BrandDataset(numbers, fields=("n",), memory=0.25)
    batches = brand.LengthBatchSampler(data, data.column("length"), batch_size=16, seed=5)
    assert rest(brand.BrandLoader(data, batch_sampler=batches), "lengths") == SAVED["lengths"]["after"]
