"""Whatever happens to a collection, in whatever order and killed whenever: it reads like a plain model."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from brand.storage.maintenance.verify import verify
from tests.collect.support import Model, check, some_change, some_history
from tests.rounds import Chance, rounds


@pytest.mark.slow
@rounds(10)
def test_a_history_reads_like_its_model(tmp_path: Path, chance: Chance) -> None:
    """Appends, overlays, deletions, compactions, redactions; some of them killed at any change of a file.

    A change that is killed is done, or nothing of it is. What it leaves is removed by the next.
    """
    folder = tmp_path / "all"
    model = some_history(folder, chance.rng, changes=10, share_killed=0.4)
    if model.samples:
        assert [error for step in verify(folder) for error in step.errors] == []


def test_the_histories_are_not_empty(tmp_path: Path) -> None:
    """A history that goes wrong would be seen: a model that differs in one sample, one column, one deletion."""
    folder, model = tmp_path / "all", Model()
    for seed in range(4):
        change, model = some_change(model, Random(seed), folder)
        change(folder)
    check(folder, model)
    others = [
        Model((*model.samples[:-1], {**model.samples[-1], "share": 0.5}), model.deleted, model.gone, model.columns),
        Model(model.samples, model.deleted | {model.present[0]}, model.gone, model.columns),
        Model(model.samples, model.deleted, model.gone, {**model.columns, "more": [0.0] * len(model.samples)}),
    ]
    for other in others:
        with pytest.raises((AssertionError, KeyError)):
            check(folder, other)
