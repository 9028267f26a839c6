"""Batches of prepared samples as one array: what single samples would make, to the bit, in any shapes and parts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import default_collate

from brand import BrandLoader, DecodeImage, pack
from brand.formats.contents import StoredSamples
from brand.node.client.decoded import DecodedField, DecodeSpecs
from brand.node.client.memories import Buffers, Pages
from brand.node.setup.decoding import Prepared
from brand.node.wire.decoding import HEADER, PAGE, pack_values
from brand.node.wire.messages import Chains
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.torch import BrandDataset
from brand.torch.fetch.fetched import FromServer, FromStorage, UndecodedSamples
from brand.torch.loader.batches import assemble
from brand.torch.loader.tensors import TensorForm
from tests.rounds import examples
from tests.torch.support import equal, served

COUNT = 12
NUMBER = 7
"""Of the want."""
HOW = DecodeImage()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small pictures, of two shapes, with a number and a text."""
    samples = []
    for n in range(COUNT):
        file = io.BytesIO()
        Image.fromarray(np.full((3 + n % 2, 2, 3), n, np.uint8)).save(file, "PNG")
        samples.append({"number": n, "image": file.getvalue(), "text": f"no. {n}"})
    path = tmp_path_factory.mktemp("sets") / "set"
    pack(samples, path, {"number": "int", "image": "image", "text": "str"}, chunk_size=4, jobs=1)
    return path


def value(number: int, shape: list[int], *, floats: bool) -> NDArray[Any]:
    """A value of its own."""
    random = np.random.default_rng(number)
    return random.integers(0, 255, shape).astype("<f4" if floats else "u1")


def came(values: dict[int, NDArray[Any]], broken: set[int], seed: int) -> DecodedField:
    """What a client takes from a second memory with these values, by position, of which some are not whole."""
    random, chains = np.random.default_rng(seed), []
    for at, each in values.items():
        header, data = pack_values(NUMBER, at, each)
        whole = np.frombuffer(header + data.tobytes(), np.uint8).copy()
        if at in broken:
            whole[random.integers(HEADER.itemsize if len(data) else 0, len(whole))] ^= 1
        chains.append(np.concatenate([whole, np.zeros(-len(whole) % PAGE, np.uint8)]).reshape(-1, PAGE))
    counts = np.array([len(chain) for chain in chains], np.uint32)
    places = random.permutation(int(counts.sum()) + 3)[: int(counts.sum())].astype(np.int32)
    pages = random.integers(0, 255, (int(counts.sum()) + 3, PAGE)).astype(np.uint8)
    pages[places] = np.concatenate(chains)
    memory, positions = Pages(pages, Buffers(), Crew(2)), np.array(list(values), np.intp)
    indices = positions.astype(np.uint64)
    return DecodeSpecs({"image": HOW}).values(memory, (NUMBER,), Chains(counts, places), indices, positions)["image"]


@st.composite
def shapes(draw: st.DrawFn) -> list[list[int]]:
    """Shapes of all samples: one for all, or any of two."""
    of = st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda shape: np.prod(shape) < 20_000)
    one, other = draw(of), draw(of)
    if draw(st.booleans()):
        other = one
    return [one if first else other for first in draw(st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))]


@pytest.mark.slow
@given(
    of=shapes(),
    floats=st.booleans(),
    prepared=st.sets(st.integers(0, COUNT - 1), min_size=1) | st.just(set(range(COUNT))),
    broken=st.sets(st.integers(0, COUNT - 1), max_size=2) | st.just(set()),
    cut=st.integers(0, COUNT),
    span=st.tuples(st.integers(0, COUNT - 1), st.integers(1, COUNT)),
    seed=st.integers(0, 1 << 32),
)
@examples(60)
def test_a_batch_in_one_array_is_that_of_single_samples(
    pictures: Path,
    of: list[list[int]],
    floats: bool,
    prepared: set[int],
    broken: set[int],
    cut: int,
    span: tuple[int, int],
    seed: int,
) -> None:
    """Any shapes, some samples not prepared or not whole, a draw in two parts: the same batch, where there is one.

    There is one where the parts of the draw that the batch touches are all prepared, whole and of one shape.
    """
    data = StoredDataSet(pictures)
    decoding = BrandDataset(pictures, decode={"image": HOW})._source._fetcher.decoding
    values = {at: value(at, of[at], floats=floats) for at in sorted(prepared)}
    parts = [{at: values[at] for at in values if low <= at < high} for low, high in ((0, cut), (cut, COUNT))]
    made = [came(part, broken, seed) for part in parts if part]
    bounds = [(low, high) for low, high in ((0, cut), (cut, COUNT)) if low < high]

    places = np.arange(COUNT)
    indices, rows = data.indices(places), data.rows_at(places)
    pieces = [bytes(piece or b"") for piece in data.stored_bytes(places)]
    starts = np.cumsum([0, *map(len, pieces)])[:-1]
    stored = StoredSamples(np.frombuffer(b"".join(pieces), np.uint8), starts, rows)
    fetched = UndecodedSamples(
        decoding,
        indices,
        [FromServer(stored.part(np.arange(low, high)), np.arange(low, high)) for low, high in bounds],
        FromStorage([], np.arange(0)),
        {"image": made},
        (),
    )
    first, end = span[0], min(COUNT, sum(span))
    samples = fetched.samples(first, end)
    for at, sample in zip(range(first, end), samples, strict=True):
        expected = values[at] if at in values and at not in broken else HOW(data.samples(indices[[at]])[0]["image"])
        assert (sample["image"].dtype, sample["image"].shape) == (expected.dtype, expected.shape)
        assert sample["image"].tobytes() == expected.tobytes()
        assert sample["number"] == sample["index"] == indices[at]

    touched = [set(range(low, high)) & prepared for low, high in bounds if low < end and first < high]
    whole = set(range(first, end)) <= prepared and not any(part & broken for part in touched)
    alike = len({tuple(of[at]) for part in touched for at in part}) == 1
    assert fetched.gathers(first, end) >= (whole and alike)
    if fetched.gathers(first, end):
        assert set(range(first, end)) <= prepared - broken
        batch = assemble(TensorForm(pin_memory=False), fetched.gathered(first, end), None, (), 0, end - first)
        assert equal(batch, default_collate(samples))


@pytest.mark.slow
@pytest.mark.parametrize("fields", [None, ("image", "text"), ("index", "number", "image"), ("image",)])
@pytest.mark.parametrize(("how", "size"), [(HOW, 1), (DecodeImage(size=(4, 2)), 5)])
def test_a_batch_that_is_kept_does_not_change(
    pictures: Path, how: DecodeImage, size: int, fields: tuple[str, ...] | None
) -> None:
    """Of whatever fields, and while others are drawn into the same memory."""
    expected = BrandDataset(pictures, decode={"image": how})
    with served(pictures, memory=1.0, prepared=Prepared("1MB", 1), decode={"image": how}, fields=fields) as data_set:
        for _ in range(2):
            kept = [(batch, default_collate([batch])) for batch in BrandLoader(data_set, size)]
            assert sum(len(batch["image"] if fields is None else batch[0]) for batch, _ in kept) == COUNT
            for batch, before in kept:
                assert equal(default_collate([batch]), before)
                pictured = batch["image"] if fields is None else batch[fields.index("image")]
                assert pictured.dtype == torch.uint8
                for row in pictured.numpy():
                    assert np.array_equal(row, expected[int(row.flat[0])]["image"])
        assert data_set.stats()["decoding"]["fetched_encoded"] == 0
