"""Runs each framework once for all tests of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.jobs import make_numbers, run


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples in 19 chunks."""
    return make_numbers(tmp_path_factory.mktemp("frameworks") / "numbers.brand")


@pytest.fixture(scope="session")
def results(numbers: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: the results of a framework, by number of processes, one dict for each rank."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}

    def of(framework: str) -> dict[int, list[dict[str, Any]]]:
        if framework not in found:
            found[framework] = run(framework, numbers, tmp_path_factory.mktemp("runs"))
        return found[framework]

    return of
