"""A node that knows the token and lies: no sample is wrong, no server ends, nobody waits past a limit.

`python -m tests.tools.liar` runs a campaign.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rounds import Chance, rounds
from tests.tools.liar import LIES, make_sets, run_round

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_job")]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    return make_sets(tmp_path_factory.mktemp("liar"))


@rounds(1)
@pytest.mark.parametrize("lie", ["other samples", None])
def test_a_node_that_lies(sets: tuple[Path, list[Path]], chance: Chance, lie: str | None) -> None:
    """Each rank gets what the plan has, or an error that names the node."""
    result = run_round(*sets, chance.seed, chance.number, lie)
    assert result.told.keys() <= LIES.keys()
    assert not result.wrong, result
