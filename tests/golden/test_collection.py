"""The golden collection of version 1.1: is it read as it was meant, by Brand and by the independent reader?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify
from tests.collect.support import grow, numbers
from tests.golden import make_collections
from tests.golden.make import plain
from tests.golden.make_collections import values
from tests.independent_reader import Collection
from tests.support import files_below

GOLDEN = Path(__file__).resolve().parent / "v1.1" / "collection"
EXPECTED: dict[str, Any] = json.loads((GOLDEN.parent / "expected.json").read_bytes())

every_version = pytest.mark.parametrize("number", [3, 8, 9])


def told(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample in the form of expected.json."""
    return {key: plain(value) for key, value in sample.items()}


@every_version
def test_brand_reads_what_was_written(number: int) -> None:
    """Every value of every present sample, columns included."""
    assert values(f"{GOLDEN}@{number}") == EXPECTED[str(number)]


@every_version
def test_the_independent_reader_reads_the_same(number: int) -> None:
    """Written from the specification alone, it finds the same values, and refuses what is deleted."""
    reader, expected = Collection(GOLDEN, number), EXPECTED[str(number)]
    assert {index: told(reader.sample(int(index))) for index in expected} == expected
    for index in reader.deleted:
        with pytest.raises(ValueError, match="deleted"):
            reader.sample(index)


@every_version
def test_verify_finds_nothing(number: int) -> None:
    """Every byte is right."""
    assert [error for step in verify(f"{GOLDEN}@{number}") for error in step.errors] == []


def test_the_golden_collection_shows_what_it_is_for() -> None:
    """A part with a deleted sample in it, one without some of its samples, one without any; both kinds of columns."""
    version = StoredDataSet(GOLDEN).version
    assert version is not None
    assert (version.number, version.samples, version.present) == (9, 20, 14)
    assert [part.samples for part in version.parts] == [10, 5, 0, 1]
    assert [part.absent is None for part in version.parts] == [True, False, False, True]
    assert {overlay.codec for overlay in version.overlays.values()} == {"int", "float"}


def test_it_is_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The script that made it refuses to run where it exists."""
    before = files_below(GOLDEN)
    assert make_collections.main() == 1
    assert "never made anew" in capsys.readouterr().err
    assert files_below(GOLDEN) == before


def test_a_copy_grows(tmp_path: Path) -> None:
    """Also one without empty folders, as git makes it."""
    copy = Path(shutil.copytree(GOLDEN, tmp_path / "copy"))
    with pytest.raises(ValueError, match="do not fit"):
        grow(copy, 100, 3)
    assert numbers(copy) == list(range(1, 10))


def test_the_same_input_gives_the_same_parts(tmp_path: Path) -> None:
    """Parts and lists are made today as they were: only the identity of the collection is another one."""
    make_collections.make_grown(tmp_path / "new")
    old, new = files_below(GOLDEN), files_below(tmp_path / "new")
    assert old.keys() - {"staging"} == new.keys() - {"present", "staging"}
    assert values(tmp_path / "new") == EXPECTED["9"]
