"""What becomes of draws of damaged samples: an error that names them, or another sample of the group in their place."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from torch.utils.data import DataLoader

from brand import pack
from brand.errors import ChecksumError, DecodeError, MissingFileError, UsageError
from brand.formats.audio import Waveform
from brand.orders import Stripes
from brand.orders.policies.registry import OrderOption
from brand.orders.policies.stripe_policy import StripePolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.storage import Fault, FaultyStorage
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.made_orders import order_of
from tests.storage.support import chunk as chunk_path
from tests.tools.damage import flip_bit
from tests.tools.forge import put_together, sign_index, take_apart
from tests.torch.support import failure_of, make_samples, make_set, planned, records, records_of, served

pytestmark = places.EVERYWHERE

COUNT, CHUNK, BATCH = 75, 8, 7
SAMPLES = records(make_samples(COUNT, 1500))
DAMAGED_PLACES = [3, 4, *range(7, COUNT, CHUNK)]
"""The last of each chunk and so of each group, and two side by side."""
GROUPS = Stripes(length=2, buffer=0.6)
"""Several groups of several chunks each, however the memory is."""


@pytest.fixture
def damaged(small: Path, tmp_path: Path) -> Path:
    """Samples with another first byte. A copy, so that nobody else sees it."""
    target = shutil.copytree(small, tmp_path / "damaged")
    data = StoredDataSet(target)
    for place in DAMAGED_PLACES:
        row = data.rows(place, place + 1)[0]
        assert row["size"]
        flip_bit(chunk_path(target, place // CHUNK), 8 * int(row["offset"]))
    return target


@pytest.fixture
def broken(small: Path) -> list[int]:
    """Their indices."""
    return sorted(StoredDataSet(small).rows(0, COUNT)["index"][DAMAGED_PLACES].tolist())


def loader_of(data_set: BrandDataset, kind: int, **more: Any) -> Any:
    """A `DataLoader` with `kind` workers; below 0 a `BrandLoader` with `-kind` threads."""
    sampler = BrandSampler(data_set, seed=2)
    if kind < 0:
        return BrandLoader(data_set, BATCH, sampler=sampler, num_workers=-kind, **more)
    return DataLoader(data_set, BATCH, sampler=sampler, num_workers=kind, **more)


def check(found: list[int], data_set: BrandDataset, broken: Collection[int], epoch: int = 0) -> None:
    """The plan, with a whole sample of the same group in the place of each broken one."""
    data, order = StoredDataSet(data_set.path), BrandSampler(data_set, seed=2).order
    group_of = dict(enumerate((data.places(np.arange(len(data))) // order.mapping.group_size).tolist()))
    assert order.mapping.groups > 1
    assert len(found) == len(data)
    for index, planned_index in zip(found, planned(data_set.path, order, epoch), strict=True):
        assert index not in broken
        assert index == planned_index or planned_index in broken
        assert group_of[index] == group_of[planned_index]


# -- damaged samples -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order", "memory"), [(0, GROUPS, 0.7), (2, "slots", 1.0), (-1, "slots", 0.7), (-3, GROUPS, 1.0)]
)
def test_another_of_the_group_comes(
    damaged: Path, broken: list[int], kind: int, order: OrderOption, memory: float
) -> None:
    """As many samples as ever, each whole and under its own name; the statistics list what was replaced by what."""
    with served(damaged, memory=memory, order=order, fields=None, on_error="skip") as data_set:
        data, loader = StoredDataSet(damaged), loader_of(data_set, kind)
        for epoch in range(2):
            found = records_of(loader)
            check([record[0] for record in found], data_set, broken, epoch)
            assert found == [SAMPLES[record[0]] for record in found]
        replaced = data_set.stats()["replaced"]
    assert sorted(fact["index"] for fact in replaced) == sorted(2 * broken)
    for fact in replaced:
        assert set(fact) == {"index", "by", "chunk", "reason"}
        assert fact["chunk"] == data.chunk_of(fact["index"])
        assert f"{fact['chunk']:08d}.brand" in fact["reason"]
        assert f"sample {fact['index']}" in fact["reason"]
        assert fact["by"] not in broken


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 samples without keys, in chunks of four, of which the first of each second chunk is damaged."""
    path = tmp_path_factory.mktemp("sets") / "keyless"
    pack([{"data": bytes([n]) * 9} for n in range(40)], path, {"data": "bytes"}, chunk_size=4, jobs=1)
    data = StoredDataSet(path)
    for place in range(0, 40, 8):
        flip_bit(chunk_path(path, place // 4), 8 * int(data.rows(place, place + 1)["offset"][0]))
    return path


@pytest.mark.parametrize("fields", [("index",), ("key",), ("index", "key")])
@pytest.mark.parametrize("kind", [0, -1])
def test_samples_of_which_nothing_stored_is_wanted_are_replaced(
    keyless: Path, kind: int, fields: tuple[str, ...]
) -> None:
    """Index and key say which sample it was, and a damaged one does not count."""
    broken = set(StoredDataSet(keyless).indices(np.arange(0, 40, 8)).tolist())
    with served(keyless, memory=1.0, order=GROUPS, fields=fields, on_error="skip") as data_set:
        batches = list(loader_of(data_set, kind))
        replaced = {fact["index"] for fact in data_set.stats()["replaced"]}
    assert replaced == broken
    columns = [[int(value) for batch in batches for value in batch[number]] for number in range(len(fields))]
    for column in columns:
        assert len(column) == 40
        assert not broken & set(column)
        assert column == columns[0]


@pytest.mark.parametrize("kind", [0, 2, -2])
def test_by_default_the_sample_is_named(damaged: Path, broken: list[int], kind: int) -> None:
    """File, chunk and sample, also out of a worker, and nothing is replaced."""
    with served(damaged, fields=None) as data_set:
        error, data = failure_of(loader_of(data_set, kind)), StoredDataSet(damaged)
        assert isinstance(error, ChecksumError | RuntimeError)
        names = [f"{data.chunk_of(i):08d}.brand, chunk {data.chunk_of(i)}, sample {i}" for i in broken]
        assert any(name in str(error) for name in names)
        assert data_set.stats()["replaced"] == []


@pytest.mark.parametrize("read", ["one", "batch", "BrandLoader"])
def test_exact_reads_are_never_replaced(damaged: Path, broken: list[int], read: str) -> None:
    """Who names a sample gets it, or an error."""
    data_set, named = BrandDataset(damaged, on_error="skip"), broken[1]
    sampler: Any = [0, named]
    ways: dict[str, Callable[[], Any]] = {
        "one": lambda: data_set[named],
        "batch": lambda: data_set.__getitems__([0, named]),
        "BrandLoader": lambda: list(BrandLoader(data_set, 2, sampler=sampler)),
    }
    with pytest.raises(ChecksumError, match=f"sample {named}:"):
        ways[read]()


@places.IN_A_FOLDER  # what is in a store, clients read through the same server
def test_storage_that_changes_bytes_on_their_way_is_no_damage(small: Path, lies_in: str) -> None:
    """What the server read wrongly is read again, exactly, before anything is replaced."""
    wrong = FaultyStorage(Fault(chunk=2, kind="wrong"), Fault(chunk=4, kind="error"), Fault(chunk=5, kind="short"))
    for kind in (0, -2):
        with served(small, fields=None, on_error="skip", storage=wrong) as data_set:
            assert sorted(records_of(loader_of(data_set, kind))) == SAMPLES
            assert data_set.stats()["replaced"] == []


def test_on_error_is_one_of_two(small: Path) -> None:
    """A typing mistake is said when the data set is opened."""
    with pytest.raises(UsageError, match="'ignore'"):
        BrandDataset(small, on_error="ignore")  # type: ignore[arg-type]


def test_a_group_of_which_nothing_is_left(tmp_path: Path) -> None:
    """The error that the sample has; no endless search."""
    path = make_set(tmp_path / "set", make_samples(12, 100), 4)
    for chunk in (path / "chunks").iterdir():
        chunk.unlink()
    for kind in (0, 2, -1):
        with served(path, memory=1.0, on_error="skip") as data_set:
            error = failure_of(loader_of(data_set, kind))
            assert isinstance(error, MissingFileError | RuntimeError)
            assert "chunk is missing" in str(error)
            assert data_set.stats()["replaced"] == []


@pytest.mark.parametrize(("count", "chunk_size", "group", "place"), [(75, 8, 3, 74), (27, 8, 3, 25), (6, 1, 2, 2)])
def test_a_whole_sample_of_a_small_group_is_found(
    tmp_path: Path, count: int, chunk_size: int, group: int, place: int
) -> None:
    """The last group has three samples, or each has two, in chunks of one."""
    path = make_set(tmp_path / "set", make_samples(count, 900), chunk_size)
    data = StoredDataSet(path)
    row = data.rows(place, place + 1)[0]
    flip_bit(chunk_path(path, place // chunk_size), 8 * int(row["offset"]))
    with served(path, memory=1.0, on_error="skip") as data_set:
        order = order_of(path, StripePolicy(group))
        sampler = BrandSampler(data_set)
        sampler.load_state_dict(sampler.state_dict() | {"order": order.to_json()})
        found = [int(index) for batch in BrandLoader(data_set, 4, sampler=sampler) for index in batch[0]]
        assert len(found) == count
        assert int(row["index"]) not in found


# -- missing chunks --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 2, -2])
def test_a_missing_chunk_is_replaced_by_its_group(small: Path, tmp_path: Path, kind: int) -> None:
    """All of its samples, each listed; epochs stay as long as they are."""
    path = shutil.copytree(small, tmp_path / "missing")
    data = StoredDataSet(path)
    chunk_path(path, 3).unlink()
    lost = {index for index in range(COUNT) if data.chunk_of(index) == 3}
    with served(path, memory=0.7, order=GROUPS, fields=None, on_error="skip") as data_set:
        loader = loader_of(data_set, kind)
        for epoch in range(2):
            found = records_of(loader)
            check([record[0] for record in found], data_set, lost, epoch)
            assert found == [SAMPLES[record[0]] for record in found]
        replaced = data_set.stats()["replaced"]
    assert sorted(fact["index"] for fact in replaced) == sorted([*lost, *lost])
    assert {fact["chunk"] for fact in replaced} == {3}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 samples in four chunks, the third of which is missing."""
    path = make_set(tmp_path_factory.mktemp("sets") / "wide", make_samples(400, 20), 100)
    chunk_path(path, 2).unlink()
    return path


def test_a_missing_chunk_of_more_than_64_samples(wide: Path) -> None:
    """There are 300 others in the group."""
    with served(wide, memory=0.7, on_error="skip") as data_set:
        assert BrandSampler(data_set).order.mapping.groups == 1
        assert sum(len(batch[0]) for batch in loader_of(data_set, -1)) == 400


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, -2])
def test_a_missing_chunk_is_a_line_in_the_log_and_a_count(
    wide: Path, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    """100 samples are replaced: the log names the first, and tells how many came after it when the epoch is over."""
    with served(wide, memory=0.6, order=GROUPS, fields=None, on_error="skip") as data_set:
        sampler = BrandSampler(data_set, seed=2)
        make: Any = partial(BrandLoader, num_workers=2) if kind else DataLoader
        loader = make(data_set, BATCH, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            assert len(records_of(loader)) == 400
        replaced = data_set.stats()["replaced"]
        assert len(replaced) == 200
        lines = [record.getMessage() for record in caplog.records if record.name == "brand"]
    first, rest, *more = lines
    assert first.startswith(f"sample {replaced[0]['index']} is replaced by sample {replaced[0]['by']}: ")
    assert "00000002.brand, chunk 2" in first
    assert re.fullmatch(r"99 more samples of 1 chunk replaced within \d+ s; stats\(\)\['replaced'\] lists them", rest)
    assert len(more) <= 1  # the second epoch's, where it is more than half a minute later


def test_the_samples_of_a_missing_chunk_are_not_all_replaced_by_the_same_one(small: Path, tmp_path: Path) -> None:
    """A sample that comes eight times more often than the others is a bias."""
    path = shutil.copytree(small, tmp_path / "missing")
    chunk_path(path, 3).unlink()
    with served(path, memory=0.7, order=GROUPS, fields=None, on_error="skip") as data_set:
        records_of(loader_of(data_set, -1))
        assert len({fact["by"] for fact in data_set.stats()["replaced"]}) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, -1])
def test_a_missing_first_chunk_of_a_compressed_data_set(tmp_path: Path, kind: int) -> None:
    """The others are whole."""
    rows = [{"text": f"the sample with number {number} says what the one before it said"} for number in range(2000)]
    assert pack(rows, tmp_path / "set", {"text": "str"}, chunk_size=50, jobs=1).dictionary_bytes
    chunk_path(tmp_path / "set", 0).unlink()
    with served(tmp_path / "set", memory=0.7, order=GROUPS, fields=("text",), on_error="skip") as data_set:
        assert sum(len(batch[0]) for batch in loader_of(data_set, kind)) == 2000


# -- samples that do not decode --------------------------------------------------------------------------------------


def side(image: Any) -> int:
    """Something of a picture that a default collate takes."""
    return int(image.width)


def frames(wave: Waveform) -> int:
    """Something of a clip that a default collate takes."""
    return int(wave.samples.shape[1])


@pytest.fixture(scope="module")
def half_files(png: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures and clips, of which 5 and 11 are cut off. Both are in groups with others that are whole."""
    wave = io.BytesIO()
    soundfile.write(wave, np.zeros(300), 8000, format="WAV")
    clip = wave.getvalue()
    rows = [
        {"image": png[:60] if n == 5 else png, "audio": clip[:20] if n == 11 else clip, "key": f"k{n}"}
        for n in range(60)
    ]
    target = tmp_path_factory.mktemp("sets") / "half"
    schema = {"image": "image", "audio": "audio", "key": "str"}
    pack(rows, target, schema, chunk_size=4, compression="none", jobs=1)
    return target


@pytest.fixture(scope="module")
def png(fashion: Path) -> bytes:
    """A small real PNG file."""
    return next((fashion / "test" / "8_bag").iterdir()).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "memory"), [(0, 1.0), (2, 0.7), (-1, 0.7), (-3, 1.0)])
def test_files_that_do_not_decode_are_replaced(half_files: Path, kind: int, memory: float) -> None:
    """In memory or read exactly."""
    options: dict[str, Any] = {
        "fields": ("index", "key", "image", "audio"),
        "transform": {"image": side, "audio": frames},
        "order": GROUPS,
    }
    with served(half_files, memory=memory, on_error="skip", **options) as data_set:
        batches = list(loader_of(data_set, kind))
        found = [int(index) for batch in batches for index in batch[0]]
        check(found, data_set, {5, 11})
        assert [key for batch in batches for key in batch[1]] == [f"k{index}" for index in found]
        replaced = data_set.stats()["replaced"]
    assert sorted(fact["index"] for fact in replaced) == [5, 11]
    with served(half_files, memory=memory, **options) as data_set:
        error = failure_of(loader_of(data_set, kind))
        assert isinstance(error, DecodeError | RuntimeError)
        assert re.search(r"chunk \d+, sample (5|11): ", str(error))


def test_only_fields_that_are_decoded_can_fail(half_files: Path) -> None:
    """Broken pictures disturb nobody who wants the clips."""
    with served(half_files, on_error="skip", fields=("index", "audio"), transform={"audio": frames}) as data_set:
        list(loader_of(data_set, -1))
        assert [fact["index"] for fact in data_set.stats()["replaced"]] == [11]


@pytest.mark.parametrize("kind", [0, -1])
def test_a_record_that_does_not_decode_is_replaced(small: Path, tmp_path: Path, kind: int) -> None:
    """Its checksum is right and its fields are not: written by something that is broken."""
    path = shutil.copytree(small, tmp_path / "forged")
    chunk = chunk_path(path, 2)
    parts = take_apart(chunk)
    broken = parts.samples[1]
    broken.data, broken.raw_size = b"\xff" * len(broken.data), len(broken.data)
    put_together(chunk, parts)
    sign_index(path)
    with served(path, memory=1.0, order=GROUPS, fields=None, on_error="skip") as data_set:
        found = records_of(loader_of(data_set, kind))
        check([record[0] for record in found], data_set, {broken.index})
