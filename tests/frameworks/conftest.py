"""The data of the trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand import pack


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples in 19 chunks."""
    path = tmp_path_factory.mktemp("frameworks") / "numbers.brand"
    pack([{"label": n % 7} for n in range(600)], path, {"label": "int"}, chunk_size=32, jobs=1)
    return path
