"""`ds[i]` is exactly sample `i` of the source, however it is asked for."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brand import pack
from brand.errors import NotADataSetError, SchemaError, UsageError
from brand.torch import BrandDataset
from tests import places
from tests.rounds import examples

pytestmark = places.EVERYWHERE

Sample = dict[str, Any]


def folder_samples(root: Path) -> tuple[list[str], list[Sample]]:
    """What ImageFolder says of a folder, with the files' bytes."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    paths = [
        (os.path.relpath(os.path.join(folder, name), root), label)
        for label, top in enumerate(classes)
        for folder, _, names in sorted(os.walk(root / top))
        for name in sorted(names)
    ]
    return classes, [
        {"image": (root / key).read_bytes(), "label": label, "key": key, "index": index}
        for index, (key, label) in enumerate(paths)
    ]


@pytest.fixture(scope="module")
def samples(fashion: Path) -> list[Sample]:
    """The 600 pictures as they lie in the folder."""
    return folder_samples(fashion / "test")[1]


@pytest.fixture(scope="module")
def raw(fashion_set: Path) -> BrandDataset:
    """The converted set, images as bytes."""
    return BrandDataset(fashion_set, decode=False)


@pytest.mark.slow
def test_every_sample_is_the_sources(raw: BrandDataset, samples: list[Sample]) -> None:
    """All 600, one by one: bytes, label, key and index."""
    assert len(raw) == len(samples) == 600
    assert [raw[i] for i in range(len(raw))] == samples


@pytest.mark.slow
def test_iterating_gives_every_sample_once(fashion_set: Path, samples: list[Sample]) -> None:
    """`for sample in ds` ends after the last."""
    keys: Any = BrandDataset(fashion_set, fields=("key",))
    assert [key for (key,) in keys] == [sample["key"] for sample in samples]
    assert next(reversed(keys)) == (samples[-1]["key"],)


def test_classes_and_schema(raw: BrandDataset, fashion: Path) -> None:
    """As lists and dicts of their own: changing them changes nothing."""
    assert raw.classes == folder_samples(fashion / "test")[0]
    assert raw.schema == {"image": "image", "label": "int", "key": "str"}
    raw.classes.clear()
    raw.schema.clear()
    assert len(raw.classes) == 10
    assert len(raw.schema) == 3


def test_columns_are_in_index_order(raw: BrandDataset, samples: list[Sample]) -> None:
    """Labels of all samples without reading a chunk; other fields are no columns."""
    assert raw.column("label").tolist() == [sample["label"] for sample in samples]
    with pytest.raises(SchemaError, match="'image'"):
        raw.column("image")
    with pytest.raises(SchemaError, match="'labl'"):
        raw.column("labl")


def test_a_set_without_classes_has_none(tmp_path: Path) -> None:
    """`None`, not an empty list."""
    pack([{"n": 1}], tmp_path / "set", {"n": "int"}, jobs=1)
    assert BrandDataset(tmp_path / "set").classes is None


@examples(30)
@given(st.lists(st.integers(-600, 599), max_size=40))
def test_any_batch_is_what_a_list_gives(raw: BrandDataset, samples: list[Sample], indices: list[int]) -> None:
    """`__getitems__`: any order, negative ones, the same one several times, none at all."""
    assert raw.__getitems__(indices) == [samples[i] for i in indices]


def test_samples_of_a_batch_do_not_share(raw: BrandDataset) -> None:
    """A sample that is asked for twice may be changed once."""
    first, second = raw.__getitems__([5, 5])
    first["label"] = 99
    assert second["label"] != 99


def test_arrays_of_a_batch_do_not_share(tmp_path: Path) -> None:
    """Nor does a later read change an earlier one: each array has memory of its own, and is writable."""
    rows = [{"a": np.full(50, number)} for number in range(40)]
    pack(rows, tmp_path / "set", {"a": "ndarray"}, compression="none", jobs=1)
    data_set = BrandDataset(tmp_path / "set", fields=("a",))
    batch = [a for (a,) in data_set.__getitems__([3, 3, 4])]
    batch[0][:] = -1
    data_set.__getitems__(list(range(40)))
    assert batch[1].tolist() == [3] * 50
    assert batch[2].tolist() == [4] * 50


def test_bytes_stay_what_they_are_after_later_reads(raw: BrandDataset, samples: list[Sample]) -> None:
    """No sample is a view of memory that the next read uses again."""
    kept = [raw[i] for i in range(100)]
    for start in range(0, 600, 50):
        raw.__getitems__(list(range(start, start + 50)))
    assert kept == samples[:100]
    assert all(type(sample["image"]) is bytes for sample in kept)


@pytest.mark.parametrize(
    "convert", [int, np.int64, np.int32, np.uint8, np.array, torch.tensor, lambda i: torch.tensor(i, dtype=torch.int16)]
)
def test_any_kind_of_integer_is_an_index(
    raw: BrandDataset, samples: list[Sample], convert: Callable[[int], Any]
) -> None:
    """NumPy scalars, 0-d arrays and 0-d tensors, as samplers give them; the true index in the sample is an int."""
    assert raw[convert(77)] == samples[77]
    assert type(raw[convert(77)]["index"]) is int
    assert raw.__getitems__([convert(3), convert(5)]) == [samples[3], samples[5]]


def test_arrays_and_tensors_of_indices_are_batches(raw: BrandDataset, samples: list[Sample]) -> None:
    """A sampler may give a whole batch as one array or tensor, or as a range."""
    batches: list[Any] = [np.array([3, -1, 5]), torch.tensor([3, -1, 5]), (3, -1, 5)]
    for batch in batches:
        assert raw.__getitems__(batch) == [samples[3], samples[-1], samples[5]]
    assert raw.__getitems__(range(4, 8)) == samples[4:8]


@pytest.mark.parametrize("index", [600, -601, 10**6, -(10**6), 2**63 - 1, 2**63, -(2**63), 2**64, 10**30])
def test_an_index_out_of_range_is_an_index_error(raw: BrandDataset, index: int) -> None:
    """As a list has it, for any size of number, alone or in a batch."""
    with pytest.raises(IndexError, match=str(index)):
        raw[index]
    with pytest.raises(IndexError):
        raw.__getitems__([0, index])


@pytest.mark.parametrize(
    "index", [1.0, np.float64(1), "1", None, slice(0, 2), (1, 2), [1], b"1", torch.tensor(1.0), 1j], ids=repr
)
def test_what_is_no_integer_is_a_type_error(raw: BrandDataset, index: Any) -> None:
    """As a list has it: the message names the type."""
    with pytest.raises(TypeError, match=type(index).__name__):
        raw[index]
    with pytest.raises(TypeError):
        raw.__getitems__([0, index])


def test_bools_are_the_numbers_0_and_1(raw: BrandDataset, samples: list[Sample]) -> None:
    """As for a list."""
    assert raw[True] == samples[1]
    assert raw[False] == samples[0]


def test_a_copy_by_pickle_reads_the_same(fashion_set: Path, samples: list[Sample]) -> None:
    """Path, fields and options travel, nothing that was read does: a used data set pickles as small as a new one."""
    data_set = BrandDataset(fashion_set, fields=("label", "key"), decode=False)
    size = len(pickle.dumps(data_set))
    data_set.__getitems__(list(range(600)))
    data = pickle.dumps(data_set)
    assert len(data) < size + 500
    copy = pickle.loads(data)
    assert [copy[i] for i in (0, 599)] == [(samples[i]["label"], samples[i]["key"]) for i in (0, 599)]
    assert repr(copy) == repr(data_set)


def test_repr_tells_what_it_is(raw: BrandDataset) -> None:
    """Path, samples, chunks and fields."""
    assert "600 samples, 38 chunks of 16" in repr(raw)
    assert "image: image" in repr(raw)
    assert "fashion.brand" in repr(raw)


@pytest.mark.slow
def test_several_threads_read_at_once(raw: BrandDataset, samples: list[Sample]) -> None:
    """One object, eight threads, each its own order."""
    wrong: list[str] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(600)
        for start in range(0, 600, 40):
            batch = order[start : start + 40].tolist()
            if raw.__getitems__(batch) != [samples[i] for i in batch]:
                wrong.append(f"{seed}, {start}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_compressed_samples_are_read_by_several_threads(tmp_path: Path) -> None:
    """A decompressor with a dictionary for each."""
    rows = [{"s": f"the sample with number {number} says what the one before it said"} for number in range(2000)]
    report = pack(rows, tmp_path / "set", {"s": "str"}, jobs=1)
    assert report.dictionary_bytes
    data_set = BrandDataset(tmp_path / "set", fields=("s",))
    found: dict[int, list[tuple[str]]] = {}

    def read(number: int) -> None:
        found[number] = data_set.__getitems__(list(range(number, 2000, 4)))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert found[number] == [(row["s"],) for row in rows[number::4]]


@pytest.mark.slow
def test_a_fork_reads_what_its_parent_reads(fashion_set: Path, samples: list[Sample]) -> None:
    """After reads in the parent; both go on reading at the same time, and neither disturbs the other."""
    data_set = BrandDataset(fashion_set, decode=False)
    assert data_set.__getitems__(list(range(600))) == samples
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            wrong = 1
            try:
                wrong = int([data_set[i] for i in range(599, -1, -1)] != samples[::-1])
            finally:
                os._exit(wrong)
        children.append(child)
    for start in range(0, 600, 10):
        assert data_set.__getitems__(list(range(start, start + 10))) == samples[start : start + 10]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


def test_a_relative_path_survives_a_change_of_the_working_directory(fashion_set: Path, tmp_path: Path) -> None:
    """The path is taken at opening: a script (Hydra's, say) may change its working directory afterwards."""
    before = Path.cwd()
    try:
        os.chdir(fashion_set.parent)
        data_set = BrandDataset(fashion_set.name, decode=False)
        expected = BrandDataset(fashion_set, decode=False)[17]
        os.chdir(tmp_path)
        assert data_set[17] == expected
    finally:
        os.chdir(before)


@pytest.mark.parametrize("name", ["nowhere", "folder"])
def test_what_is_no_data_set_is_said_at_opening(tmp_path: Path, name: str) -> None:
    """Not at the first sample, in a worker."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotADataSetError, match=name):
        BrandDataset(tmp_path / name)


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (150e6, "memory=150000000.0: a float is a fraction of the (data|memory)"),
        (0.0, "memory=0.0: a float is a fraction of the (data|memory), above 0"),
        ("0GB", "memory='0GB': at least one byte"),
        ("0.5", "for a fraction of the (data|memory) give (peer_)?memory=0.5"),
        (True, "memory=True: give bytes"),
        ("lots", "is not a size"),
        (0, "memory=0 has no unit"),
        (1, r"memory=1 has no unit: give a size such as .8GB., or a share such as 0.25 \(1.0 is all\)"),
        ("300", "memory=.300. has no unit"),
        ((1 << 20) - 1, "has no unit"),
    ],
)
def test_a_wrong_memory_is_said_at_opening(fashion_set: Path, memory: float | str, said: str) -> None:
    """Not at the first sample, when the server starts."""
    with pytest.raises(UsageError, match=said):
        BrandDataset(fashion_set, memory=memory)
    with pytest.raises(UsageError, match=said) as caught:
        BrandDataset(fashion_set, peer_memory=memory)
    assert "the data" not in str(caught.value)
    assert " memory=" not in f" {caught.value}", "the parameter that was not given"


def test_fields_that_are_not_there_are_said_at_opening(fashion_set: Path) -> None:
    """With the fields that are."""
    with pytest.raises(SchemaError, match=r"'labl'.*image, index, key, label"):
        BrandDataset(fashion_set, fields=("image", "labl"))
    with pytest.raises(SchemaError, match="'labl'"):
        BrandDataset(fashion_set, transform={"labl": int})
    with pytest.raises(SchemaError, match="label"):
        BrandDataset(fashion_set, fields=("image",), transform={"label": int})
    with pytest.raises(UsageError, match=r"\('image',\)"):
        BrandDataset(fashion_set, fields="image")
