"""The paper's Table 5: memory misses and remote requests of an epoch of ImageNet-1k on three nodes, within 4 %."""

from __future__ import annotations

import pytest

from bench.papers.breakdown import BREAKDOWN, SAMPLES, Setting, counts

USUAL = Setting()
"""The row of `make test`."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [row if row == USUAL else pytest.param(row, marks=pytest.mark.tables) for row in BREAKDOWN],
    ids=lambda setting: BREAKDOWN[setting].name,
)
def test_misses_and_remote_requests(setting: Setting) -> None:
    """Brand without optimisation, without prefetching, with random selection, and in full.

    At no time is the remote abstract memory of a node full.
    """
    found = counts(setting)
    assert found.reads == pytest.approx(BREAKDOWN[setting].misses, rel=0.04)
    assert found.requests == pytest.approx(BREAKDOWN[setting].requests, rel=0.04)
    assert found.ahead < setting.remote
    assert found.reads < SAMPLES
