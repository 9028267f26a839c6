"""Buffers are used again when nobody looks at them, and never before."""

from __future__ import annotations

import random

import numpy as np
import pytest

from brand.node.client.memories import MOST, Buffers


@pytest.mark.parametrize("seed", range(4))
def test_what_somebody_looks_at_never_changes(seed: int) -> None:
    """Arrays, views of them and memoryviews, held for any time."""
    rng, buffers = random.Random(seed), Buffers()
    alive: list[tuple[object, int, int]] = []
    for number in range(400):
        size = rng.choice([0, 1, 10, 100, rng.randint(1, 5000)])
        array = buffers.take(size)
        assert array.shape == (size,)
        assert array.dtype == np.uint8
        array[:] = number % 251
        half = size // 2
        view: object = rng.choice([array, array[half:], array.reshape(-1, 1), array.data, array[:half].data])
        alive.append((view, number % 251, size))
        del array, view
        while len(alive) > rng.choice([0, 3, 20, MOST + 10]):
            view, value, _ = alive.pop(rng.randrange(len(alive)))
            assert (np.asarray(view) == value).all()
            del view
    for view, value, _ in alive:
        assert (np.asarray(view) == value).all()


def test_a_buffer_that_nobody_looks_at_is_used_again() -> None:
    """Also for a little more than was asked for the first time."""
    buffers = Buffers()
    first = buffers.take(1000)
    address = first.ctypes.data
    second = buffers.take(1000)
    assert second.ctypes.data != address
    del first
    third = buffers.take(1200)
    assert third.ctypes.data == address
    del third
    assert buffers.take(10).ctypes.data == address


def test_no_more_than_so_many_are_kept() -> None:
    """However many are looked at at the same time, and though they are all too small for what comes."""
    buffers = Buffers()
    held = [buffers.take(100) for _ in range(3 * MOST)]
    assert len(buffers._buffers) == MOST
    del held
    for size in range(1000, 1000 + 100 * MOST, 100):
        buffers.take(2 * size)
        assert len(buffers._buffers) <= MOST
