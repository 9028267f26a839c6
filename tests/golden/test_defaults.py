"""The golden data set with decode defaults and facts, of version 1.2: is it read as it was meant, and written so?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand import BrandDataset
from brand.errors import FormatError
from brand.formats.header import DecodeDefault, Header
from brand.formats.manifest import read_manifest
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden import make_defaults
from tests.golden.make import all_plain
from tests.golden.support import check_rebuilt
from tests.independent_reader import Reader

GOLDEN = Path(__file__).resolve().parent / "v1.2-images" / "defaults"
EXPECTED: list[dict[str, Any]] = json.loads((GOLDEN.parent / "defaults.json").read_bytes())
DEFAULTS = {"photo": DecodeDefault("L", upright=True), "mask": DecodeDefault("unchanged")}


def test_brand_reads_what_was_written() -> None:
    """Files, defaults and facts."""
    data = StoredDataSet(GOLDEN)
    assert [all_plain(data.sample(index)) for index in range(len(data))] == EXPECTED
    assert [all_plain(sample) for sample in make_defaults.samples()] == EXPECTED
    assert data.header.decode == DEFAULTS
    assert dict(data.header.schema.fields) == make_defaults.SCHEMA
    facts = [(fact.field, fact.what, fact.count, fact.example, fact.text) for fact in data.manifest.noticed]
    assert facts == [
        ("photo", "images_turned_by_exif", 2, "ä/1.png", "2 images are turned by EXIF and decode upright"),
        ("plain", "images_turned_by_exif", 1, "ä/3.png", "1 image is turned by EXIF: upright=True turns it"),
    ]


def test_images_decode_as_the_data_set_says() -> None:
    """One row of pixels stands upright as a column."""
    sample = BrandDataset(GOLDEN)[1]
    assert (sample["photo"].mode, sample["photo"].size) == ("L", (1, 4))
    assert (sample["mask"].mode, sample["mask"].size) == ("L", (4, 1))
    assert (sample["plain"].mode, sample["plain"].size) == ("RGB", (2, 1))
    assert np.asarray(sample["photo"])[:, 0].tolist() == [10, 11, 12, 13]


def test_the_independent_reader_reads_the_same() -> None:
    """A reader that was written from the specification alone finds the same files, and every checksum right."""
    reader = Reader(GOLDEN)
    assert [all_plain(reader.sample(index)) for index in range(len(EXPECTED))] == EXPECTED
    assert reader.manifest["version"] == [1, 2]
    assert {chunk.data[8:12] for chunk in reader.chunks} == {b"\1\0\2\0"}
    assert dict(reader.manifest["header"]["schema"])["photo"] == "image[L,upright]"
    assert [fact["count"] for fact in reader.manifest["noticed"]] == [2, 1]


def test_its_manifest_follows_from_the_chunks(tmp_path: Path) -> None:
    """`verify` finds nothing, and `reindex` makes manifest and index again, byte for byte."""
    check_rebuilt(GOLDEN, tmp_path / "set")


def test_the_same_input_gives_the_same_manifest(tmp_path: Path) -> None:
    """Header, facts and sizes."""
    make_defaults.make(tmp_path / "set")
    old, new = read_manifest(GOLDEN), read_manifest(tmp_path / "set")
    assert (new.header, new.noticed, new.raw_bytes) == (old.header, old.noticed, old.raw_bytes)


@pytest.mark.parametrize(
    "codec",
    ["image[]", "image[RGB]", "image[upright,L]", "image[left]", "image[L", "image[upright,upright]", "str[upright]"],
)
def test_other_words_in_brackets_are_refused(codec: str) -> None:
    """Each default has one form; a word that a newer version adds is an error, not another image."""
    value = read_manifest(GOLDEN).header.to_json() | {"schema": [["photo", codec], ["key", "str"]], "source": {}}
    with pytest.raises(FormatError):
        Header.from_json(value, "here")


def test_the_golden_set_is_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The script refuses to run where it exists."""
    assert make_defaults.main() == 1
    assert "never made anew" in capsys.readouterr().err
