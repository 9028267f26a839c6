"""Values pass between two ends as they are: types, dtypes, shapes, bytes, and memory of their own."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import torch

from brand.torch.loader.memory_pipe import MemoryPipe
from tests.torch.support import equal

VALUES: dict[str, Any] = {
    "none": None,
    "texts": ["", "a", "ä" * 100_000],
    "bytes": [b"", bytes(range(256)) * 1000],
    "tensor": torch.arange(12, dtype=torch.int16).reshape(3, 4),
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "part": torch.arange(100)[10:90:3],
    "scalar": torch.tensor(3.5),
    "empty": [torch.empty(0, 3), torch.empty(3, 0, dtype=torch.bool)],
    "kinds": [
        torch.ones(5, dtype=dtype)
        for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.complex64)
    ],
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "batch": {"image": torch.rand(4, 3, 8, 8), "label": torch.arange(4), "key": ["a", "b", "c", "d"]},
    "many": [torch.full((number % 7,), number) for number in range(3000)],
}


def exchanged(value: Any) -> Any:
    """The value after it was sent."""
    near, far = MemoryPipe.pair()
    near.send(value)
    received = far.receive()
    far.send(received)
    try:
        return near.receive()
    finally:
        near.close()
        far.close()


@pytest.mark.parametrize("name", VALUES)
def test_values_arrive_as_they_are(name: str) -> None:
    assert equal(exchanged(VALUES[name]), VALUES[name])


@pytest.mark.parametrize("dtype", ["i4", ">f8", "S3", "U2", "M8[s]", "V5"])
def test_arrays(dtype: str) -> None:
    array = np.zeros((3, 2), dtype)
    for value in (array, array[1:], array.T, array[:0]):
        found = exchanged(value)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def test_tensors_that_pytorch_pickles_itself() -> None:
    """They have no bytes of their own."""
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(exchanged(sparse).to_dense(), torch.eye(3))
    weight = torch.nn.Parameter(torch.ones(2))
    assert equal(exchanged(weight).detach(), weight.detach())


def test_each_value_has_memory_of_its_own() -> None:
    """It may be changed, and a label does not keep the images of its batch."""
    batch = exchanged({"image": torch.zeros(1 << 20, dtype=torch.uint8), "label": torch.zeros(2, dtype=torch.uint8)})
    again = exchanged(batch)
    batch["image"] += 1
    assert int(again["image"].sum()) == 0
    assert batch["label"].untyped_storage().nbytes() == 2


def test_a_value_that_is_larger_than_the_one_before() -> None:
    near, far = MemoryPipe.pair()
    for size in (10, 1 << 22, 3, 1 << 23):
        near.send(np.full(size, size))
        assert far.receive().tolist() == [size] * size
        far.send(size)
        assert near.receive() == size
    near.close()
    far.close()


def used() -> tuple[MemoryPipe, MemoryPipe]:
    """Two ends that have exchanged a value."""
    near, far = MemoryPipe.pair()
    near.send(0)
    assert far.receive() == 0
    return near, far


class Unknown:
    def __reduce__(self) -> Any:
        raise ValueError("mine")


def test_a_value_that_cannot_be_pickled_sends_nothing() -> None:
    near, far = used()
    with pytest.raises(ValueError, match="mine"):
        near.send([torch.ones(3), Unknown()])
    assert not far.filled
    near.send(1)
    assert far.receive() == 1
    near.close()
    far.close()


@pytest.mark.parametrize("way", ["hang_up", "close"])
def test_the_end_of_the_other_side(way: str) -> None:
    near, far = used()
    getattr(near, way)()
    assert far.filled
    with pytest.raises(EOFError):
        far.receive()
    near.close()
    far.close()


def test_a_wait_ends_with_a_value_or_with_the_other_descriptor() -> None:
    near, far = used()
    reading, writing = os.pipe()
    assert not far.wait(0.01, reading)
    threading.Timer(0.05, near.send, [1]).start()
    assert far.wait(60, reading)
    assert far.receive() == 1
    os.write(writing, b"x")
    assert far.wait(60, reading)
    assert not far.filled
    for descriptor in (reading, writing):
        os.close(descriptor)
    near.close()
    far.close()
