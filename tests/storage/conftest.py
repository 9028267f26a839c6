"""Two small data sets, and copies of them to be broken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import brand
from tests.storage.support import NOTES, SAMPLES, SCHEMA


@pytest.fixture(scope="session")
def plain_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten samples in chunks of four, stored raw. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "plain.brand"
    brand.pack(SAMPLES, target, SCHEMA, chunk_size=4, compression="none", jobs=1)
    return target


@pytest.fixture(scope="session")
def dense_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """130 samples in chunks of 100, compressed with a dictionary. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "dense.brand"
    brand.pack(NOTES, target, {"text": "str", "number": "int"}, chunk_size=100, compression="zstd", jobs=1)
    return target


@pytest.fixture
def plain(plain_set: Path, tmp_path: Path) -> Path:
    """A copy of `plain_set`."""
    return Path(shutil.copytree(plain_set, tmp_path / "plain.brand"))


@pytest.fixture
def dense(dense_set: Path, tmp_path: Path) -> Path:
    """A copy of `dense_set`."""
    return Path(shutil.copytree(dense_set, tmp_path / "dense.brand"))
