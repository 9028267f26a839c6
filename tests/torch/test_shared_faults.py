"""A process of jobs that share is killed or stopped: the others get each sample once, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.torch.shared_faults import FAULTS, Round, make_pictures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pictures, and their checksums."""
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@rounds(3)
def test_jobs_outlive_a_fault(chance: Chance, pictures: tuple[Path, Path], tmp_path: Path, left: Leftovers) -> None:
    """At any moment; a job that ends with it goes on from its checkpoint. Each round has the next kind of fault."""
    fault = FAULTS[1 + chance.number % len(FAULTS[1:])]
    Round(chance, fault, *pictures, tmp_path, left).play()
