"""The golden collection with merged segments, of version 1.3: is it read as it was meant, and are its appends known?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from brand.errors import UsageError
from brand.formats.version import make_version
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify
from tests.golden import make_collections
from tests.golden.make import plain
from tests.golden.make_collections import values
from tests.independent_reader import Collection
from tests.support import files_below

GOLDEN = Path(__file__).resolve().parent / "v1.3" / "collection"
EXPECTED: dict[str, Any] = json.loads((GOLDEN.parent / "expected.json").read_bytes())


def told(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample in the form of expected.json."""
    return {key: plain(value) for key, value in sample.items()}


def test_brand_reads_what_was_written() -> None:
    """Every value of every present sample, columns included, and every checksum is right."""
    assert values(GOLDEN) == EXPECTED
    assert [error for step in verify(GOLDEN) for error in step.errors] == []


def test_the_independent_reader_reads_the_same() -> None:
    """It was written from the specification alone."""
    reader = Collection(GOLDEN, 12)
    assert reader.version["version"] == [1, 3]
    assert {index: told(reader.sample(int(index))) for index in EXPECTED} == EXPECTED
    assert reader.deleted == {4, 12, 13}


def test_it_shows_what_it_is_for() -> None:
    """A segment of eight, with a deleted sample or without it, and one as before; an older reader finds the same id."""
    version = StoredDataSet(GOLDEN).version
    assert version is not None
    facts = [
        (part.samples, part.absent and part.absent.count, part.merged and part.merged.count) for part in version.parts
    ]
    assert facts == [(22, 2, 8), (3, None, None)]
    without = [
        type(part)(part.id, part.first, part.end, part.samples, part.origin, part.absent) for part in version.parts
    ]
    same = make_version(
        version.collection, version.number, without, version.deleted, version.overlays, version.parent, version.note
    )
    assert same.id == version.id


def test_appends_before_the_merge_are_known(tmp_path: Path) -> None:
    """None of them is added twice; others are, also to a copy without empty folders, as git makes it."""
    copy = Path(shutil.copytree(GOLDEN, tmp_path / "copy"))
    for night in range(1, make_collections.NIGHTS):
        with pytest.raises(UsageError, match="in the collection already, among 0 to 23"):
            make_collections.append_night(copy, night)
    make_collections.append_night(copy, 20)
    assert len(values(copy)) == len(EXPECTED) + 3


def test_it_is_never_made_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The script that made it refuses to run where it exists; today it makes the same samples."""
    before = files_below(GOLDEN)
    assert make_collections.main() == 1
    assert "never made anew" in capsys.readouterr().err
    assert files_below(GOLDEN) == before
    make_collections.make_merged(tmp_path / "new")
    assert values(tmp_path / "new") == EXPECTED
