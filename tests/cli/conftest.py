"""A data set that no other process serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brand.chunker import convert_images
from tests.support import options


@pytest.fixture(scope="session")
def own_photos_set(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos in an order of their own: a server's default address follows from the data set. Not to be changed."""
    target = tmp_path_factory.mktemp("own") / "photos.brand"
    convert_images(photos, target, options(8, seed=os.getpid()))
    return target
