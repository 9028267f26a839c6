"""An epoch takes its plan in windows, and nothing that a client can see depends on that."""

from __future__ import annotations

import pytest

from brand.node.decide.state import windowed
from tests.node.test_core_walks import WALKS, walk
from tests.rounds import Chance, rounds

SIZES = [(1, 1, 0), (3, 8, 4), (16, 64, 16)]
"""Positions of the first window, of the largest one, and behind the draws that stay known."""


@pytest.fixture(params=SIZES, ids=["single", "few", "many"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, positions in zip(("FIRST", "MOST", "BEHIND"), request.param, strict=True):
        monkeypatch.setattr(windowed, name, positions)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@rounds(2)
def test_nothing_is_ever_lost(chance: Chance) -> None:
    for seed in chance.seeds(WALKS):
        walk(seed)
