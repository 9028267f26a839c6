"""What a state says was drawn: there and back, and nothing that is not so."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from brand.orders.joader.growing import pack_drawn, unpack_drawn


@given(st.integers(1, 200), st.data())
def test_there_and_back(samples: int, data: st.DataObject) -> None:
    """Any set of places, in any order."""
    places = data.draw(st.lists(st.integers(0, samples - 1), unique=True))
    assert unpack_drawn(pack_drawn(np.array(places, np.int32), samples), samples).tolist() == sorted(places)


def text(packed: bytes) -> str:
    """As in a state."""
    return base64.b64encode(packed).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        7,
        "!",
        text(b"no zlib"),
        text(zlib.compress(bytes(2))),
        text(zlib.compress(bytes(4))),
        text(zlib.compress(bytes(1 << 24))),  # it would fill memory
        text(zlib.compress(bytes(3)) + b"more"),
        text(zlib.compress(bytes(3))[:-2]),
        text(zlib.compress(b"\0\0\x80")),
    ],
)
def test_what_is_damaged_is_refused(wrong: Any) -> None:
    """Not a text, not packed, too short, too long, cut off, or with a bit behind the last sample."""
    with pytest.raises(ValueError, match=r"fetched samples|base64|ase64"):
        unpack_drawn(wrong, 20)
