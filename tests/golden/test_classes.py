"""The golden data set with names of classes of several fields, of version 1.2: is it read as meant, and written so?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brand import BrandDataset
from brand.errors import NoLabelsError
from brand.formats.manifest import read_manifest
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden import make_classes
from tests.golden.make import all_plain
from tests.golden.support import check_rebuilt
from tests.independent_reader import Reader
from tests.tools.forge import take_apart

GOLDEN = Path(__file__).resolve().parent / "v1.2-classes" / "classes"
EXPECTED: list[dict[str, Any]] = json.loads((GOLDEN.parent / "classes.json").read_bytes())


def test_brand_reads_what_was_written() -> None:
    """Numbers, and the names of each field."""
    data = StoredDataSet(GOLDEN)
    assert [all_plain(data.sample(index)) for index in range(len(data))] == EXPECTED
    assert {name: data.classes_of(name) for name in make_classes.NAMES} == make_classes.NAMES
    assert BrandDataset(GOLDEN).classes_of("fine")[data.sample(0)["fine"]] == "日本語"
    with pytest.raises(NoLabelsError, match=r"fields with names: label, boxes\.kind, fine, tags"):
        data.classes_of("number")


def test_the_independent_reader_reads_the_same() -> None:
    """A reader that was written from the specification alone finds the same numbers and names."""
    reader = Reader(GOLDEN)
    assert [all_plain(reader.sample(index)) for index in range(len(EXPECTED))] == EXPECTED
    assert {name: reader.names(name) for name in make_classes.NAMES} == make_classes.NAMES
    assert reader.manifest["version"] == [1, 2]
    assert {chunk.data[8:12] for chunk in reader.chunks} == {b"\1\0\2\0"}
    with pytest.raises(ValueError, match="a field without names"):
        reader.names("number")


def test_its_manifest_follows_from_the_chunks(tmp_path: Path) -> None:
    """`verify` finds nothing, and `reindex` makes manifest and index again, byte for byte."""
    check_rebuilt(GOLDEN, tmp_path / "set")


def test_the_same_input_gives_the_same_samples(tmp_path: Path) -> None:
    """Header, samples and tables."""
    make_classes.make(tmp_path / "set")
    assert read_manifest(tmp_path / "set").header == read_manifest(GOLDEN).header
    for path in sorted((GOLDEN / "chunks").iterdir()):
        assert take_apart(tmp_path / "set" / "chunks" / path.name).samples == take_apart(path).samples


def test_the_golden_set_is_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The script refuses to run where it exists."""
    assert make_classes.main() == 1
    assert "never made anew" in capsys.readouterr().err
