"""Makes the data sets and the model of them once for all frameworks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.cells import LOADERS
from tests.frameworks.jobs import make_data
from tests.frameworks.judge import model_of
from tests.frameworks.loops import Samples
from tests.frameworks.matrix import Verdicts


@pytest.fixture(scope="session")
def verdicts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Verdicts]:
    """A function: the verdicts of a framework, whose checkpoints are in a folder."""
    data = make_data(tmp_path_factory.mktemp("frameworks"))
    samples = Samples(data)
    models = {loader: model_of(samples, loader) for loader in LOADERS}
    return lambda framework, folder: Verdicts(framework, data, folder, models)
