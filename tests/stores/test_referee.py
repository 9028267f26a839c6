"""A conversion and copies, with `moto`, which others wrote to be like S3, in place of our own object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand.chunker import convert_images
from brand.errors import TargetExistsError
from brand.storage.io.frontback import silent
from brand.storage.maintenance.copying import copy
from brand.stores.opening import open_store
from brand.stores.target import StoreTarget
from tests.support import options, tree_digest
from tests.testing.support import ask
from tests.testing.test_objects_referee import Referee
from tests.testing.test_objects_referee import referee as referee

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
pytestmark = pytest.mark.slow


def test_it_takes_conversions_and_copies(
    referee: Referee, photos: Path, photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed requests, checksums and create-only as S3 has them; the copy that comes back is the same."""
    assert ask(referee.url, "PUT", "/written", keys=referee.keys).status == 200
    monkeypatch.setenv("AWS_ENDPOINT_URL", referee.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", referee.keys.access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", referee.keys.secret)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    convert_images(photos, "s3://written/a/set", options(8))
    with pytest.raises(TargetExistsError, match="finished data set already"):
        convert_images(photos, "s3://written/a/set", options(8))
    copy("s3://written/a/set", "s3://written/b", silent)
    copy("s3://written/b", tmp_path / "set", silent)
    assert copy("s3://written/a/set", "s3://written/b", silent).chunks_found == 4
    assert tree_digest(tmp_path / "set") == tree_digest(photos_set)
    with pytest.raises(TargetExistsError, match="has finished there meanwhile"):
        StoreTarget(open_store("s3://written/b")).finish("brand.json", b"another")
