"""`expand=`: each element of a list is a sample, once an epoch, with its own image, wherever a run stops."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import brand
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage, LengthBatchSampler, Mixture
from brand.collect import NamedSamples, append_samples, delete
from brand.errors import FormatError, SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from tests.storage.support import chunk as chunk_path
from tests.tools.damage import flip_bit
from tests.torch.support import TORCHDATA, stateful_loader
from tests.torch.test_lists import png
from tests.torch.training import two_ranks

SCHEMA = {
    "image": "image",
    "label": "int",
    "captions": "list[str]",
    "boxes": "list[ndarray]",
    "tokens": "list[int]",
    "scores": "list[float]",
    "pages": "list[image]",
    "key": "str",
}
COUNTS = [5, 0, 3, 1, 5, 2, 7, 0, 4, 5, 1, 1, 6, 5, 3]
PAIRS = sum(COUNTS)


def samples(counts: Iterable[int] = COUNTS, first: int = 0) -> list[dict[str, Any]]:
    """Images whose shade is their number, with as many captions as the counts say."""
    return [
        {
            "image": png(4, 4, number),
            "label": number,
            "captions": [f"{number}/{at}" for at in range(count)],
            "boxes": [np.full((2, 4), 10 * number + at, np.float32) for at in range(count)],
            "tokens": [1000 * number + at for at in range(count)],
            "scores": [number + at / 8 for at in range(count)],
            "pages": [png(4, 4, 1)] * (number % 2),
            "key": f"image {number}",
        }
        for number, count in enumerate(counts, first)
    ]


def model(counts: Iterable[int] = COUNTS) -> list[tuple[str, int, str]]:
    """Every caption with the label and the key of its image, in their order: the slow obvious model."""
    return [(caption, sample["label"], sample["key"]) for sample in samples(counts) for caption in sample["captions"]]


FIELDS = ("captions", "label", "key", "index", "image")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen images in four chunks."""
    target = tmp_path_factory.mktemp("captions") / "captions.brand"
    brand.pack(samples(), target, SCHEMA, chunk_size=4)
    return target


def opened(path: Path, **more: Any) -> BrandDataset:
    """The pairs of a data set, with images as arrays."""
    return BrandDataset(path, **{"expand": "captions", "fields": FIELDS, "decode": {"image": DecodeImage()}} | more)


def arrived(batches: Iterable[Any]) -> list[tuple[str, int, str]]:
    """The pairs of batches; each has the pixels and the index of its own."""
    found, known = [], model()
    for captions, labels, keys, indices, images in batches:
        values = zip(captions, labels.tolist(), keys, indices.tolist(), images, strict=True)
        for caption, label, key, index, image in values:
            assert image[0, 0].tolist() == [label, 2 * label, 3]
            assert known[index] == (caption, label, key)
            found.append((caption, label, key))
    return found


def loaders(data: BrandDataset, **more: Any) -> Iterator[Any]:
    """Every way to make batches."""
    yield BrandLoader(data, 4, sampler=BrandSampler(data, **more))
    for count in (0, 1, 2):
        yield DataLoader(data, 4, sampler=BrandSampler(data, **more), num_workers=count)


def test_every_pair_once_an_epoch_in_random_order(path: Path) -> None:
    """In threads and worker processes, for several epochs; each epoch has its own order, the same in each loader."""
    data = opened(path)
    orders = []
    for loader in loaders(data, seed=3):
        assert len(loader) == -(-PAIRS // 4)
        epochs = [arrived(loader) for _ in range(3)]
        assert all(sorted(epoch) == sorted(model()) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
        orders.append(epochs)
    assert all(order == orders[0] for order in orders)
    assert arrived(BrandLoader(data, 4, sampler=BrandSampler(data, seed=4))) != orders[0][0]


@pytest.mark.slow
def test_workers_that_are_spawned(path: Path) -> None:
    """The data set is pickled; they stay for all epochs."""
    data = opened(path)
    spawned: Any = {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = DataLoader(data, 4, sampler=BrandSampler(data, seed=3), **spawned)
    assert [sorted(arrived(loader)) for _ in range(3)] == [sorted(model())] * 3


def test_pairs_of_an_image_are_spread_over_the_epoch(tmp_path: Path) -> None:
    """A pair's distance to the last pair of its image is that of a random order, roughly."""
    brand.pack(
        ({"captions": [f"{at}/{n}" for n in range(5)]} for at in range(400)),
        tmp_path / "set",
        {"captions": "list[str]"},
        chunk_size=40,
    )
    data = BrandDataset(tmp_path / "set", expand="captions", fields=("captions",))
    images = [int(text.split("/")[0]) for (texts,) in BrandLoader(data, 50) for text in texts]
    places = {image: [at for at, other in enumerate(images) if other == image] for image in range(400)}
    gaps = np.concatenate([np.diff(at) for at in places.values()])
    assert {len(at) for at in places.values()} == {5}
    assert 250 < gaps.mean() < 420  # 333 for a random order
    together = np.mean([len(set(images[at : at + 50])) for at in range(0, 2000, 50)])
    assert together > 45  # batches of 50 pairs are of 47 images if pairs are drawn at random


def test_random_access_is_the_model(path: Path) -> None:
    """`ds[i]` for every index, from both ends; `shuffle=False` is their order."""
    data = BrandDataset(path, expand="captions", decode=False)
    found = [data[at] for at in range(len(data))]
    assert [(each["captions"], each["label"], each["key"]) for each in found] == model()
    assert [each["index"] for each in found] == list(range(PAIRS))
    assert data[-1]["captions"] == model()[-1][0]
    with pytest.raises(IndexError, match=f"{PAIRS} is out of range"):
        data[PAIRS]
    assert arrived(BrandLoader(opened(path), 5, sampler=BrandSampler(opened(path), shuffle=False))) == model()


@pytest.mark.parametrize("field", ["captions", "boxes", "tokens", "scores"])
def test_lists_of_every_kind(path: Path, field: str) -> None:
    """Texts, arrays and numbers; numbers become a tensor."""
    data = BrandDataset(path, expand=field, fields=(field, "index"))
    wanted = [value for sample in samples() for value in sample[field]]
    assert len(data) == len(wanted)
    seen = dict[int, Any]()
    for values, indices in BrandLoader(data, 4):
        assert field == "captions" or isinstance(values, torch.Tensor)
        seen |= dict(zip(indices.tolist(), values, strict=True))
    assert all(np.array_equal(seen[at], wanted[at]) for at in range(len(wanted)))
    assert data.schema[field] == SCHEMA[field].removeprefix("list[").removesuffix("]")


def test_columns_have_a_value_for_each_pair(path: Path) -> None:
    """So they fit `subset=`."""
    data = opened(path)
    labels = [label for _, label, _ in model()]
    assert data.column("label").tolist() == data.targets.tolist() == labels
    assert data.present().tolist() == list(range(PAIRS))
    for subset in (data.column("label") >= 8, np.flatnonzero(data.column("label") >= 8)[::-1]):
        sampler = BrandSampler(data, subset=subset)
        wanted = [pair for pair in model() if pair[1] >= 8]
        assert len(sampler) == len(wanted)
        assert [sorted(arrived(BrandLoader(data, 4, sampler=sampler))) for _ in range(2)] == [sorted(wanted)] * 2
    second = np.array([caption.endswith("/1") for caption, _, _ in model()])
    found = arrived(BrandLoader(data, 4, sampler=BrandSampler(data, subset=second)))
    assert sorted(found) == sorted(pair for pair in model() if pair[0].endswith("/1"))
    in_order = BrandSampler(data, subset=second, shuffle=False)
    assert arrived(BrandLoader(data, 4, sampler=in_order)) == [p for p in model() if p[0].endswith("/1")]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_run_continues_exactly(path: Path, shuffle: bool) -> None:
    """From every batch of two epochs, in each kind of loader, after a way through JSON."""
    data = opened(path)
    whole = BrandLoader(data, 4, sampler=BrandSampler(data, seed=1, shuffle=shuffle))
    expected, states = [], [whole.state_dict()]
    for _ in range(2):
        for batch in whole:
            expected.append(arrived([batch]))
            states.append(json.loads(json.dumps(whole.state_dict())))
    for at, state in list(enumerate(states[:-1]))[::3]:
        again = BrandLoader(data, 4, sampler=BrandSampler(data, seed=9, shuffle=shuffle))
        again.load_state_dict(state)
        assert [arrived([batch]) for batch in again] == expected[at : (at // len(whole) + 1) * len(whole)]


def test_workers_that_began_before_a_state_was_loaded(path: Path) -> None:
    """They do not know the sampler's orders, and ask the server: the elements are still those of the pairs."""
    data = opened(path)
    sampler = BrandSampler(data, seed=1)
    loader = DataLoader(data, 4, sampler=sampler, num_workers=2, persistent_workers=True)
    assert sorted(arrived(loader)) == sorted(model())
    other = BrandSampler(data, seed=77)
    taken = arrived(islice(BrandLoader(data, 4, sampler=other), 5))
    sampler.load_state_dict(other.state_dict(samples=20))
    assert sorted(taken + arrived(loader)) == sorted(model())
    assert sorted(arrived(loader)) == sorted(model())


RANK = """
import json, sys
from brand import BrandDataset, BrandLoader, BrandSampler
data = BrandDataset(sys.argv[1], expand="captions", fields=("captions",))
loader = BrandLoader(data, 4, sampler=BrandSampler(data, drop_last=True))
if len(sys.argv) > 2:
    loader.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([[text for (texts,) in loader for text in texts] for _ in range(2)]))
"""


@pytest.mark.slow
def test_two_ranks_divide_the_pairs(path: Path) -> None:
    """Each pair once on one of them; they continue from the state of one rank."""
    for state in (None, "state"):
        data = opened(path)
        loader = BrandLoader(data, 4, sampler=BrandSampler(data))
        begun = [] if state is None else [caption for caption, _, _ in arrived(islice(loader, 3))]
        given = [] if state is None else [json.dumps(loader.state_dict())]
        told = two_ranks(RANK, path, *given)
        assert [status for status, _, _ in told] == [0, 0], told
        ranks = [json.loads(out) for _, out, _ in told]
        for epoch in range(2):
            seen = (begun if epoch == 0 else []) + ranks[0][epoch] + ranks[1][epoch]
            assert len(set(seen)) == len(seen)
            assert len(seen) >= PAIRS - 1
            assert set(seen) <= {caption for caption, _, _ in model()}


def test_a_transform_gets_one_element(path: Path) -> None:
    """Its random numbers differ between the pairs of an image."""
    data = BrandDataset(
        path,
        expand="captions",
        fields=("captions", "label"),
        transform={"captions": lambda text: f"{text} {torch.randint(1 << 60, ()).item()}"},
    )
    texts = [text.split() for texts, _ in BrandLoader(data, 4) for text in texts]
    assert sorted(text for text, _ in texts) == sorted(caption for caption, _, _ in model())
    assert len({number for _, number in texts}) == PAIRS


def test_samples_without_an_element_are_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, when the data set is opened."""
    data = opened(path)
    assert [r.getMessage() for r in caplog.records] == [
        f"2 of 15 samples of {path} have nothing in 'captions', and are in no pair"
    ]
    assert len(pickle.loads(pickle.dumps(data))) == PAIRS
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("field", "error", "message"),
    [
        ("text", SchemaError, "no field 'text'; fields of lists: captions, boxes"),
        ("label", SchemaError, r"field 'label' \(int\) holds no lists; fields of lists: captions"),
        ("pages", SchemaError, "a list of image files is not expanded"),
    ],
)
def test_fields_that_cannot_be_expanded(path: Path, field: str, error: type[Exception], message: str) -> None:
    """The message names those that can."""
    with pytest.raises(error, match=message):
        BrandDataset(path, expand=field)


def test_lists_that_are_too_long_or_all_empty(tmp_path: Path) -> None:
    """The sample is named, and what to do."""
    for name, count, message in (
        ("long", 65, "sample 1 has 65 elements, and at most 64"),
        ("none", 0, "no sample has"),
    ):
        brand.pack([{"n": [1] * bool(count)}, {"n": [1] * count}], tmp_path / name, {"n": "list[int]"})
        with pytest.raises(UsageError, match=message):
            BrandDataset(tmp_path / name, expand="n")


def test_uses_that_are_refused(path: Path) -> None:
    """Batch samplers, a data set twice, states of other samples, parts that are not there."""
    data, plain = opened(path), BrandDataset(path, fields=FIELDS)
    with pytest.raises(UsageError, match="LengthBatchSampler plans batches of stored samples"):
        LengthBatchSampler(data, "label", batch_size=4)
    with pytest.raises(UsageError, match=r"more than once, and with expand=.*a loader of its own"):
        Mixture({data: 1, opened(path): 1})
    state = BrandSampler(plain).state_dict()
    for sampler in (BrandSampler(data), BrandSampler(data, shuffle=False)):
        with pytest.raises(UsageError, match="not of a data set with expand='captions'"):
            sampler.load_state_dict(state)
        with pytest.raises(UsageError, match="Mixture"):
            BrandSampler(plain).load_state_dict(BrandSampler(data).state_dict())
    with pytest.raises(UsageError, match="give the sampler the same shuffle= and subset="):
        BrandSampler(data).load_state_dict(BrandSampler(data, subset=[1, 2, 3]).state_dict())
    for subset, message in (
        ([True] * 15, f"a bool for each of the {PAIRS} pairs"),
        ([PAIRS], f"pair {PAIRS} of {PAIRS}"),
        ([-1], "pair -1"),
        ([1, 1], "twice"),
        ([], "no pair"),
    ):
        with pytest.raises(UsageError, match=message):
            BrandSampler(data, subset=np.array(subset))


def test_a_damaged_sample_is_replaced_by_one_with_as_many_elements(path: Path, tmp_path: Path) -> None:
    """With `on_error="skip"`: other pairs come twice, and each with the caption of its own image."""
    copy = shutil.copytree(path, tmp_path / "damaged")
    stored = StoredDataSet(copy)
    place = int(stored.places(np.array([4]))[0])
    flip_bit(chunk_path(copy, place // 4), 8 * int(stored.rows(place, place + 1)[0]["offset"]))
    with pytest.raises(FormatError, match="sample 4"):
        list(BrandLoader(opened(copy), 4))
    found = arrived(BrandLoader(opened(copy, on_error="skip", order=brand.orders.Stripes(buffer=1.0)), 4))
    assert len(found) == PAIRS
    assert 4 not in {label for _, label, _ in found}


def test_a_collection_that_grows(tmp_path: Path) -> None:
    """The pairs of deleted images are gone, those of new ones are behind the others; a state moves to a new version."""
    target = tmp_path / "captions.brand"
    append_samples(samples([2, 3, 1]), target, SCHEMA)
    append_samples(samples([4, 0], first=3), target, SCHEMA)
    delete(target, NamedSamples(indices=[1]))
    data = BrandDataset(target, expand="captions", fields=("captions", "label"))
    left = [f"0/{at}" for at in range(2)] + ["2/0"] + [f"3/{at}" for at in range(4)]
    assert [data[at][0] for at in range(len(data))] == left
    assert sorted(text for texts, _ in BrandLoader(data, 2) for text in texts) == sorted(left)
    assert data.targets.tolist() == [0, 0, 2, 3, 3, 3, 3]
    old = BrandDataset(f"{target}@1", expand="captions", fields=("captions", "label"))
    moved = brand.migrate_state(BrandSampler(old).state_dict(), sampler := BrandSampler(data))
    sampler.load_state_dict(moved)
    assert sorted(text for texts, _ in BrandLoader(data, 2, sampler=sampler) for text in texts) == sorted(left)


@pytest.mark.parametrize("order", ["stripes", "slots", "uniform"])
@pytest.mark.parametrize("memory", [0.1, 1.0])
def test_every_order_and_any_memory(path: Path, order: Any, memory: float) -> None:
    """Two epochs of each."""
    loader = BrandLoader(opened(path, order=order, memory=memory), 4)
    assert [sorted(arrived(loader)) for _ in range(2)] == [sorted(model())] * 2


@pytest.mark.parametrize("count", [0, 2])
def test_without_a_data_server(path: Path, count: int) -> None:
    """The same pairs in the same order."""
    orders = []
    for server in (None, "none"):
        data = opened(path, server=server, order=brand.orders.Stripes(length=2, buffer=0.5))
        loader = DataLoader(data, 4, sampler=BrandSampler(data), num_workers=count)
        orders.append([arrived(loader) for _ in range(3)])
        assert all(sorted(epoch) == sorted(model()) for epoch in orders[-1])
    assert orders[0] == orders[1]


def test_orders_that_jobs_share_are_refused(path: Path) -> None:
    """With an order that works."""
    with pytest.raises(UsageError, match=r"order='shared' shares reads with other jobs.*give order='stripes'"):
        BrandLoader(opened(path, order="shared"), 4)


def test_two_samplers_at_a_time(path: Path) -> None:
    """A loader for training and one for validation, of one data set, in turn."""
    data = opened(path)
    label = data.column("label")
    train = BrandLoader(data, 2, sampler=BrandSampler(data, subset=label % 3 > 0))
    other = iter(BrandLoader(data, 2, sampler=BrandSampler(data, subset=label % 3 == 0)))
    seen = []
    for batch in train:
        seen += arrived([batch]) + arrived(islice(other, 1))
    assert sorted(seen + arrived(other)) == sorted(model())


@TORCHDATA
def test_a_stateful_loader_continues(path: Path) -> None:
    """That of torchdata, with a worker."""
    data = opened(path)
    loader = stateful_loader(data, 4, sampler=BrandSampler(data), num_workers=1)
    batches = iter(loader)
    begun = arrived(islice(batches, 5))
    state = loader.state_dict()
    rest = arrived(batches)
    again = stateful_loader(data, 4, sampler=BrandSampler(data), num_workers=1)
    again.load_state_dict(state)
    assert arrived(again) == rest
    assert sorted(begun + rest) == sorted(model())


@pytest.mark.parametrize("counts", [[1] * 30, [3], [64, 0, 1, 2], [1] * 20 + [30], [0, 0, 2]])
def test_lists_of_any_lengths(tmp_path: Path, counts: list[int]) -> None:
    """All of one element, one sample, the longest possible, one that is longer than all others."""
    brand.pack(samples(counts), tmp_path / "set", SCHEMA, chunk_size=4)
    data = BrandDataset(tmp_path / "set", expand="captions", fields=("captions",))
    wanted = sorted(caption for caption, _, _ in model(counts))
    assert [sorted(text for (texts,) in BrandLoader(data, 4) for text in texts) for _ in range(2)] == [wanted] * 2
