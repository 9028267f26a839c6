"""Data sets for the data server: texts of all sizes, with a number that tells each sample."""

from __future__ import annotations

from pathlib import Path

import pytest

import brand
from brand.node.decide.reads import sources

SAMPLES = 1200


def text(number: int) -> str:
    """The text of a sample: some short, some long, each its own."""
    return f"{number}:" + f"{number * 7919 % 1000}," * (number * 31 % 97)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 samples of 20 to 500 bytes in chunks of 32. Not to be changed."""
    target = tmp_path_factory.mktemp("node") / "texts.brand"
    samples = [{"number": number, "text": text(number)} for number in range(SAMPLES)]
    brand.pack(samples, target, {"number": "int", "text": "str"}, chunk_size=32, compression="none", jobs=1)
    return target


@pytest.fixture
def folders_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache folder is too slow, however busy this machine is: tests count the reads of folder and storage."""
    monkeypatch.setattr(sources, "LEAST_S", float("inf"))
