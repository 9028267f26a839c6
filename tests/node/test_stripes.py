"""Stripes that start together are read as they would be one by one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from brand.formats.constants import ROW
from brand.node.decide.reads.operations import Stripe, operations_of
from tests.node.test_gaps import one_by_one
from tests.rounds import examples

CHUNK = 40

SAMPLES = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=12)
"""Of a stripe: the size of each sample, and whether it is to come."""


def stripe_of(number: int, samples: list[tuple[int, bool]]) -> Stripe:
    """A stripe of chunk `number`, from its 7th sample on. Its first and last sample are to come."""
    rows = np.zeros(len(samples), ROW)
    rows["size"] = [size for size, _ in samples]
    rows["offset"] = 1000 + np.cumsum(rows["size"], dtype=np.int64) - rows["size"]
    rows["index"] = np.arange(len(samples)) + 100 * number
    wanted = np.array([wanted for _, wanted in samples])
    wanted[[0, -1]] = True
    return Stripe(CHUNK * number + 7, rows, np.flatnonzero(wanted) + CHUNK * number + 7, np.arange(0))


@given(st.lists(SAMPLES, min_size=1, max_size=4), st.none() | st.integers(0, 100))
@examples(200)
def test_each_stripe_has_its_own_operations(stripes: list[list[tuple[int, bool]]], gap_bytes: int | None) -> None:
    """Found sample by sample: where each begins, what it spans, and which of that comes into memory."""
    made = [stripe_of(number, samples) for number, samples in enumerate(stripes)]
    found = operations_of(made, CHUNK, gap_bytes)
    expected, brought, spanned = [], [], []
    for number, stripe in enumerate(made):
        sizes, first = stripe.rows["size"].tolist(), stripe.first
        wanted = [place + first in stripe.absent for place in range(len(sizes))]
        whole = [(0, len(sizes))]
        for start, end in whole if gap_bytes is None else one_by_one(sizes, wanted, gap_bytes):
            offset, size = int(stripe.rows["offset"][start]), sum(sizes[start:end])
            expected.append((number, offset, size, end - start, sum(wanted[start:end]), False))
            spanned += stripe.rows["index"][start:end].tolist()
            brought += [place + first for place in range(start, end) if wanted[place]]
    assert found.pieces.tolist() == expected
    assert found.rows["index"].tolist() == spanned
    assert found.ends.tolist() == np.cumsum([piece[3] for piece in expected]).tolist()
    assert found.firsts.tolist() == [sum(piece[4] for piece in expected[:at]) for at in range(len(expected))]
    assert [CHUNK * (index // 100) + 7 + index % 100 for index in found.rows["index"][found.held].tolist()] == brought
