"""States that version 0.2 saved load, and the rest of their epoch is the one that 0.2 delivered.

`states-0.2.json` has, for each order, the state of a loader after seven batches, and the batches that followed. Where
an order has another version now, the state is refused inside an epoch, and continues with the next one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.errors import UsageError
from brand.orders import Stripes, baselines

SAVED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "states-0.2.json").read_text())
ORDERS: dict[str, Any] = {
    "slots": "slots",
    "pool": baselines.Pool(2),
}
OTHERS: dict[str, Any] = {
    "stripes": "stripes",
    "stripes_mixing": Stripes(4, buffer=0.5),
    "uniform": "uniform",
    "minio": "uniform",  # the order of this name is gone: it was a uniform shuffle
}
"""Orders whose epochs are other ones now."""
REFUSED = r"another release of Brand, in which epoch 1 has another order: .* set_epoch\(1\)"

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


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_order_is_refused_inside_an_epoch(numbers: Path, name: str) -> None:
    """Its message is followed; and at the beginning of an epoch, or behind its last sample, the state continues."""
    data = brand.BrandDataset(numbers, fields=("n",), memory=0.25, order=OTHERS[name])
    sampler = brand.BrandSampler(data, seed=5)
    loader = brand.BrandLoader(data, 16, sampler=sampler)
    with pytest.raises(UsageError, match=REFUSED):
        rest(loader, name)
    loader.set_epoch(1)
    anew = [batch[0].tolist() for batch in loader]
    for epoch, position in ((1, 0), (0, 400)):
        loader.load_state_dict(SAVED[name]["state"] | {"epoch": epoch, "position": position})
        assert [batch[0].tolist() for batch in loader] == anew
    assert sorted(n for batch in anew for n in batch) == list(range(400))
    assert loader.state_dict()["order"]["version"] > 1


def test_a_state_of_batches_by_length_is_refused_inside_an_epoch(numbers: Path) -> None:
    """It was a state of `BatchPlan`. At the beginning of an epoch it continues."""
    data = brand.BrandDataset(numbers, fields=("n",), memory=0.25)
    batches = brand.LengthBatchSampler(data, data.column("length"), batch_size=16, seed=5)
    loader = brand.BrandLoader(data, batch_sampler=batches)
    with pytest.raises(UsageError, match=REFUSED):
        rest(loader, "lengths")
    loader.load_state_dict(SAVED["lengths"]["state"] | {"batch": 0})
    assert sorted(n for batch in loader for n in batch[0].tolist()) == list(range(400))


def test_states_of_pairs_and_mixtures_are_refused(tmp_path: Path) -> None:
    """Of pairs inside an epoch; of a mixture after its first sample, because members end their epochs at any time."""
    rows = ({"n": n, "texts": [f"{n}", f"{-n}"][: 1 + n % 2]} for n in range(400))
    brand.pack(rows, tmp_path / "set.brand", schema={"n": "int", "texts": "list[str]"}, chunk_size=16)
    pairs = brand.BrandDataset(tmp_path / "set.brand", fields=("n",), expand="texts")
    brand.pack(({"n": n} for n in range(50)), tmp_path / "other.brand", schema={"n": "int"}, chunk_size=16)
    other = brand.BrandDataset(tmp_path / "other.brand", fields=("n",), order="uniform")
    for data, continues in ((pairs, 1), (brand.Mixture({pairs: 1.0, other: 1.0}, samples=100), 0)):
        loader = brand.BrandLoader(data, 16, sampler=brand.BrandSampler(data, seed=5))
        state = of_another_version(loader.state_dict())
        assert state != loader.state_dict()
        loader.load_state_dict(state | {"epoch": continues})
        for epoch, position in ((continues, 16), (continues + 1, 16), *([] if continues else [(1, 0)])):
            with pytest.raises(UsageError, match=f"another release of Brand, in which epoch {epoch} has another order"):
                loader.load_state_dict(state | {"epoch": epoch, "position": position})


def of_another_version(state: dict[str, Any]) -> dict[str, Any]:
    """A state with orders of version 1, at any depth."""
    return json.loads(re.sub(r', "version": \d(?=})', "", json.dumps(state)))  # type: ignore[no-any-return]
