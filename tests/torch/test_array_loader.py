"""`ArrayLoader` gives the batches and states of `BrandLoader`, as NumPy arrays, also if PyTorch is not installed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import BatchSampler, SequentialSampler, default_collate

from brand import ArrayLoader, DecodeImage, LengthBatchSampler, PackedBatchSampler, Waveform, pack
from brand.errors import UsageError
from brand.formats.values import FieldList
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler, Mixture
from brand.torch.loader.arrays import stacked
from tests.conftest import ROOT
from tests.support import LIMIT_S

COUNT = 37
SCHEMA = {
    **{"tokens": "ndarray", "number": "int", "half": "float", "text": "str", "raw": "bytes"},
    **{"fact": "json", "image": "image", "words": "list[str]"},
}


def sample(number: int) -> dict[str, Any]:
    """A sample with a field of each kind."""
    image = np.full((6 + number % 5, 7, 3), number, np.uint8)
    return {
        "tokens": np.arange(1 + number % 4, dtype=np.int32),
        "number": number,
        "half": number / 2,
        "text": f"text {number}",
        "raw": bytes([number]),
        "fact": {"n": number, "name": str(number)},
        "image": Image.fromarray(image),
        "words": [f"w{i}" for i in range(number % 3)],
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with a field of each kind."""
    target = tmp_path_factory.mktemp("arrays") / "set.brand"
    pack([sample(number) for number in range(COUNT)], target, SCHEMA, chunk_size=8, jobs=1)
    return target


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[str]:
    """The address of its data server."""
    with running_server(path, memory=0.6) as running:
        yield running.address


def in_arrays(batch: Any) -> Any:
    """A batch of `BrandLoader` with arrays in place of its tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.numpy()
    if isinstance(batch, dict):
        return {name: in_arrays(value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(in_arrays, batch))
    return type(batch)(map(in_arrays, batch)) if isinstance(batch, list | tuple) else batch


def same(one: Any, other: Any) -> bool:
    """Whether two batches are the same to the bit: types, names, dtypes, shapes, values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def jittered(found: dict[str, Any]) -> dict[str, Any]:
    """A transform with random numbers of two generators."""
    return {"noise": NUMBERS.random(3), "more": MORE.random(), "number": found["number"]}


NUMBERS, MORE = np.random.default_rng(0), random.Random(0)


def numbers_of(samples: list[Any]) -> list[int]:
    """A collate function."""
    return [number for (number,) in samples]


@pytest.mark.parametrize("without_server", [False, True])
@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"fields": ("index", "number", "half", "text")}, {}),
        ({"fields": ("number", "raw", "fact", "words"), "decode": False}, {"drop_last": True}),
        ({"decode": False, "transform": {"tokens": len}}, {}),
        ({"fields": ("image", "key"), "decode": False}, {}),
        ({"fields": ("image", "number"), "decode": {"image": DecodeImage(size=(8, 8))}}, {}),
        ({"fields": ("image",), "decode": {"image": DecodeImage(size=(8, 8))}, "transform": {"image": np.mean}}, {}),
        ({"transform": jittered}, {"num_workers": 3}),
        ({"fields": ("number",)}, {"collate_fn": numbers_of}),
    ],
)
def test_batches_and_states_are_those_of_a_brand_loader(
    path: Path, server: str, options: dict[str, Any], more: dict[str, Any], *, without_server: bool
) -> None:
    """Batch for batch, over two epochs; each continues from the states of the other."""
    ds = BrandDataset(path, server="none" if without_server else server, **options)
    tensors, arrays = (make(ds, 5, sampler=BrandSampler(ds, seed=3), **more) for make in (BrandLoader, ArrayLoader))
    expected = list[Any]()
    for _ in range(2):
        assert len(arrays) == len(tensors)
        for theirs, ours in zip(tensors, arrays, strict=True):
            expected.append((in_arrays(theirs), tensors.state_dict()))
            assert same(ours, expected[-1][0])
            assert arrays.state_dict() == expected[-1][1]
    for kind, at in ((ArrayLoader, 2), (BrandLoader, 9), (ArrayLoader, len(tensors) - 1)):
        again = kind(ds, 5, sampler=BrandSampler(ds), **more)
        again.load_state_dict(json.loads(json.dumps(expected[at][1])))
        assert same(in_arrays(next(iter(again))), expected[at + 1][0])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("transform", [None, {"tokens": np.negative}])
def test_planned_batches(path: Path, server: str, transform: Any, *, packed: bool) -> None:
    """Batches of similar length, and packed rows, made of columns and of single samples."""
    ds = BrandDataset(path, fields=("tokens", "index"), transform=transform, server=server)
    lengths = np.array([1 + number % 4 for number in range(COUNT)])
    found = []
    for make in (BrandLoader, ArrayLoader):
        if packed:
            rows = PackedBatchSampler(ds, lengths, tokens_per_row=8, rows_per_batch=2)
            loader = make(ds, batch_sampler=rows, collate_fn=rows.collate("tokens"))
        else:
            loader = make(ds, batch_sampler=LengthBatchSampler(ds, lengths, batch_length=16), collate_fn=list)
        batches = [(in_arrays(batch), loader.state_dict()) for batch in islice(loader, 6)]
        found.append([*batches, (loader.stats()["batches"], {})])
    assert same(*found)


def test_a_mixture(path: Path) -> None:
    """Two members, each sample with its member's number."""
    found = []
    for make in (BrandLoader, ArrayLoader):
        members = [BrandDataset(path, fields=("number", "image"), decode=False, server="none") for _ in range(2)]
        mixture = Mixture(dict.fromkeys(members, 1.0), seed=5)
        found.append([in_arrays(batch) for batch in islice(make(mixture, 4), 5)])
    assert same(*found)


def test_a_file_that_is_not_decoded_is_not_the_memory_of_the_server(path: Path, server: str) -> None:
    """Batches stay as they are, whatever is fetched later."""
    ds = BrandDataset(path, fields=("image", "index"), decode=False, server=server)
    stored = [ds[i][0] for i in range(COUNT)]
    batches = list(ArrayLoader(ds, 3))
    for images, indices in batches:
        assert [image.tobytes() for image in images] == [stored[i] for i in indices.tolist()]


class Foreign:
    """An array of another library."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array([self._value], dtype)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        [True, False],
        [0.5, 2],
        ["a", "b"],
        [b"a", b"b"],
        [np.float32(1), np.float32(2)],
        [np.ones((2, 3), np.uint8), np.zeros((2, 3), np.uint8)],
        [{"a": 1, "b": {"c": [1, 2]}}, {"a": 2, "b": {"c": [3, 4]}}],
        [(1, "x"), (2, "y")],
        [[1, 2], [3, 4]],
        [Waveform(np.zeros(3, np.float32), 16000), Waveform(np.ones(3, np.float32), 8000)],
        [FieldList([1, 2]), FieldList([])],
        [FieldList(["a"]), FieldList(["b"])],
        [np.int64(3), np.int64(4)],
        [[], []],
    ],
)
def test_values_are_stacked_as_pytorch_stacks_them(values: list[Any]) -> None:
    """The same structure, dtypes and values as `default_collate`."""
    assert same(stacked(values), in_arrays(default_collate(values)))


def test_arrays_of_other_libraries_are_stacked() -> None:
    """A transform may return JAX arrays or tensors."""
    assert stacked([Foreign(1), Foreign(2)]).tolist() == [[1], [2]]
    assert stacked([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([None, None], TypeError),
        ([Image.new("RGB", (2, 2))], TypeError),
        ([2**70, 1], TypeError),
        ([np.ones(2), np.ones(3)], ValueError),
        ([[1], [1, 2]], ValueError),
        ([{"a": 1}, {"b": 1}], KeyError),
        ([object()], TypeError),
    ],
)
def test_values_that_make_no_array_are_refused(values: list[Any], error: type[Exception]) -> None:
    """As in PyTorch; never an array of objects."""
    with pytest.raises(error):
        stacked(values)


def test_images_need_a_size(path: Path) -> None:
    """The message says how to give it."""
    ds = BrandDataset(path, fields=("image",), server="none")
    with pytest.raises(TypeError, match=r"not of Image: decode=\{FIELD: DecodeImage"):
        next(iter(ArrayLoader(ds, 2)))


def test_arguments_are_checked_as_those_of_a_brand_loader(path: Path) -> None:
    """Messages name the loader."""
    ds = BrandDataset(path, server="none")
    for wrong in ({"batch_size": 0}, {"num_workers": "many"}, {"prefetch_batches": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            ArrayLoader(ds, **wrong)
    with pytest.raises(UsageError, match="BatchSampler: give batch_size="):
        ArrayLoader(ds, sampler=BatchSampler(SequentialSampler(range(3)), 2, drop_last=False))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="an ArrayLoader takes"):
        ArrayLoader(ds, batch_sampler=[[1, 2]])  # type: ignore[arg-type]
    assert repr(ArrayLoader(ds, 2)).startswith("ArrayLoader(BrandDataset(")


WITHOUT = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from brand import ArrayLoader, BrandDataset, BrandSampler
import brand

path, server, state = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
ds = BrandDataset(path, fields=("index", "number", "text"), memory=0.6, server=server)
loader = ArrayLoader(ds, 4, sampler=BrandSampler(ds, seed=9))
if state:
    loader.load_state_dict(state)
found = []
for _ in range(2):
    for index, number, text in loader:
        assert type(index) is type(number) is np.ndarray
        found.append([index.tolist(), number.tolist(), list(text), loader.state_dict()])
try:
    brand.BrandLoader
except brand.BrandError as error:
    found.append(str(error))
print(json.dumps([found, ds[3][:2]]))
"""


@pytest.mark.parametrize("without_server", [False, True])
def test_without_pytorch(path: Path, *, without_server: bool) -> None:
    """In a process that cannot import torch, from the beginning and resumed, with a server of its own and with none."""
    ds = BrandDataset(path, fields=("index", "number", "text"), memory=0.6, server="none")
    loader = BrandLoader(ds, 4, sampler=BrandSampler(ds, seed=9))
    expected: list[Any] = [
        [index.tolist(), number.tolist(), list(text), loader.state_dict()]
        for _ in range(2)
        for index, number, text in loader
    ]
    server = json.dumps("none" if without_server else None)
    for begin in (0, 7):
        state = expected[begin - 1][3] if begin else None
        command = [sys.executable, "-c", WITHOUT, str(path), server, json.dumps(state)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        *found, refused = json.loads(done.stdout)[0]
        assert found[: len(expected) - begin] == expected[begin:]
        assert refused == ("BrandLoader needs PyTorch, and ArrayLoader does without: pip install 'brand-data[train]'")


def of_ranks(run: Callable[[int], list[int]]) -> list[list[int]]:
    """What each of two ranks fetches."""
    return [run(rank) for rank in range(2)]


def test_ranks_share_the_samples(path: Path) -> None:
    """Each gets its share, and all samples come once."""

    def run(rank: int) -> list[int]:
        ds = BrandDataset(path, fields=("index",), server="none")
        sampler = BrandSampler(ds, num_replicas=2, rank=rank, drop_last=True)
        return [int(i) for (indices,) in ArrayLoader(ds, 4, sampler=sampler) for i in indices]

    mine, yours = of_ranks(run)
    assert len(mine) == len(yours) == COUNT // 2
    assert len({*mine, *yours}) == COUNT // 2 * 2
