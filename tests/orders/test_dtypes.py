"""The smallest types that hold what tables say of each sample, and masks of bits."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.orders.base.dtypes import PackedMask, count_dtype, index_dtype, smallest
from brand.orders.base.mapping import Mapping
from brand.orders.base.plan import read_dtype


@pytest.mark.parametrize(("count", "expected"), [(1, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)])
def test_numbers_take_four_bytes_while_they_fit(count: int, expected: type) -> None:
    """From 2**31 on they take eight."""
    assert index_dtype(count) is expected


@given(st.integers(0, 2**64 - 1))
def test_the_smallest_type_holds_the_number_and_no_smaller_one_does(most: int) -> None:
    """Of 1, 2, 4 and 8 bytes."""
    found = count_dtype(most)
    assert found.kind == "u"
    assert most < 256**found.itemsize
    assert found.itemsize == 1 or most >= 256 ** (found.itemsize // 2)


@given(st.lists(st.integers(0, 2**40)))
def test_numbers_stay_what_they_are(numbers: list[int]) -> None:
    """None is cut, and none at all take a byte each."""
    found = smallest(np.array(numbers, np.int64))
    assert found.tolist() == numbers
    assert found.dtype == count_dtype(max(numbers, default=0))


@given(st.integers(1, 2**40), st.integers(1, 2**34))
def test_a_read_holds_all_that_it_says(samples: int, chunk_size: int) -> None:
    """The largest numbers of each field fit; data sets of usual size take 12 bytes a read."""
    mapping = Mapping(samples, chunk_size, 1)
    read, (deadline, chunk, count) = np.zeros(1, read_dtype(mapping)), (samples, mapping.chunks - 1, chunk_size)
    read[0] = deadline, chunk, count - 1, count
    assert read[0].tolist() == (deadline, chunk, count - 1, count)
    assert read.dtype.itemsize == 12 or samples >= 2**31 or chunk_size >= 2**16


@given(st.lists(st.booleans(), max_size=40), st.data())
def test_a_packed_mask_is_the_mask(mask: list[bool], data: st.DataObject) -> None:
    """As a whole, any part of it, and at places in any order; it takes a bit for each entry."""
    packed, bound = PackedMask(np.array(mask, np.bool_)), st.integers(0, len(mask))
    assert len(packed) == len(mask)
    assert packed.part().tolist() == mask
    start, stop = data.draw(bound), data.draw(bound)
    assert packed.part(slice(start, stop)).tolist() == mask[start:stop]
    places = data.draw(st.lists(st.integers(0, len(mask) - 1))) if mask else []
    assert packed.at(np.array(places, np.int64)).tolist() == [mask[place] for place in places]
    assert packed._bits.nbytes == -(-len(mask) // 8)
