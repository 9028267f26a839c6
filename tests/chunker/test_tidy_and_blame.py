"""What a kill while tidying up leaves, and whom a failed read blames."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from brand.chunker import Options, convert_images
from brand.chunker.plan.report import silent
from brand.chunker.sources.folders import scan_folder
from brand.chunker.sources.source import FolderSource
from brand.errors import SourceError, TargetExistsError
from tests.support import options, tree_digest


def test_a_finished_set_is_not_taken_by_another_source(photos: Path, tmp_path: Path) -> None:
    """Killed while it tidied up, its plan gone already: the data set is whole and stays as it is."""
    target = tmp_path / "set"
    convert_images(photos, target, options(8))
    before = tree_digest(target)
    (target / ".brand-work").mkdir()
    with pytest.raises(TargetExistsError, match="another source"):
        convert_images(photos / "animals", target, options(8))
    shutil.rmtree(target / ".brand-work", ignore_errors=True)
    assert tree_digest(target) == before


def test_the_same_command_tidies_up_a_finished_set(photos: Path, tmp_path: Path) -> None:
    """The same moment, the same command: it is done, with the same bytes."""
    target = tmp_path / "set"
    convert_images(photos, target, options(8))
    before = tree_digest(target)
    (target / ".brand-work").mkdir()
    report = convert_images(photos, target, options(8))
    assert report.chunks_found == report.chunks
    assert tree_digest(target) == before


@pytest.mark.parametrize("bad", [0, 3, 9])
def test_a_failed_read_names_its_own_file(photos: Path, tmp_path: Path, bad: int) -> None:
    """Files of a batch are opened together; one that cannot be read is blamed itself, not the last of the batch."""
    shutil.copytree(photos / "animals", tmp_path / "photos")
    (tmp_path / "work").mkdir()
    source = FolderSource(scan_folder(tmp_path / "photos", tmp_path / "work", Options(), on_progress=silent), "image")
    key = source.listing.key(bad)
    (tmp_path / "photos" / key).unlink()
    (tmp_path / "photos" / key).mkdir()  # opens, and does not read
    with pytest.raises(SourceError) as caught:
        source.records(np.arange(len(source)), 0)
    assert caught.value.path == key
