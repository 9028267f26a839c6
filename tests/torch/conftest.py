"""Small data sets to draw from, and a way to open them that leaves no server behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch.support import Openings, make_samples, make_set, openings


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """75 samples of up to 1,500 bytes in chunks of eight, the last of them short. Not to be changed."""
    return make_set(tmp_path_factory.mktemp("sets") / "small.brand", make_samples(75, 1500), 8)


@pytest.fixture(scope="session")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty samples in chunks of four. Not to be changed."""
    return make_set(tmp_path_factory.mktemp("sets") / "smaller.brand", make_samples(30, 100, seed=1), 4)


@pytest.fixture
def opened() -> Iterator[Openings]:
    """Opens data sets; the servers that they start end with the test."""
    with openings() as found:
        yield found
