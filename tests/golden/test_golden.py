"""Data sets of released versions: are they read as they were meant, and written as they were?"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from brand.formats.chunk import read_front
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from tests.golden import make
from tests.golden.inputs import SETS, clip_files, picture_files
from tests.independent_reader import Reader
from tests.support import files_below
from tests.tools.forge import take_apart

GOLDEN = Path(__file__).resolve().parent / "v1"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_bytes())
SAME_ZSTD = tuple(EXPECTED["zstd"]) == zstandard.ZSTD_VERSION
UNCOMPRESSED = [
    name for name in SETS if json.loads((GOLDEN / name / "brand.json").read_bytes())["header"]["compression"] == "none"
]

every_set = pytest.mark.parametrize("name", sorted(SETS))


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample in the form of expected.json."""
    return {key: make.plain(value) for key, value in sample.items()}


@pytest.mark.slow
@every_set
def test_brand_reads_what_was_written(name: str) -> None:
    """Every value of every golden sample is what expected.json says, to the bit."""
    data_set = StoredDataSet(GOLDEN / name)
    assert [plain(data_set.sample(i)) for i in range(len(data_set))] == EXPECTED["sets"][name]


@every_set
def test_the_independent_reader_reads_the_same(name: str) -> None:
    """A reader that was written from the specification alone finds the same values, and every checksum right."""
    reader, expected = Reader(GOLDEN / name), EXPECTED["sets"][name]
    assert [plain(reader.sample(i)) for i in range(len(expected))] == expected


@every_set
def test_verify_finds_nothing(name: str) -> None:
    """A golden data set is whole, and `verify` counts its samples."""
    steps = list(verify(GOLDEN / name))
    assert [error for step in steps for error in step.errors] == []
    assert sum(step.samples for step in steps) == len(EXPECTED["sets"][name])


@every_set
def test_reindex_makes_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Manifest, index and columns follow from the chunks, byte for byte."""
    copy = tmp_path / name
    shutil.copytree(GOLDEN / name, copy)
    (copy / "brand.json").unlink()
    shutil.rmtree(copy / "index")
    shutil.rmtree(copy / "columns", ignore_errors=True)
    reindex(copy)
    assert files_below(copy) == files_below(GOLDEN / name)


@pytest.mark.slow
@every_set
def test_the_same_input_gives_the_same_samples(name: str, tmp_path: Path) -> None:
    """What is written today from the same input reads the same, in the same order of places."""
    SETS[name](tmp_path / "new", tmp_path)
    old, new = StoredDataSet(GOLDEN / name), StoredDataSet(tmp_path / "new")
    assert new.header == old.header
    assert [plain(new.sample(i)) for i in range(len(new))] == EXPECTED["sets"][name]
    assert new.rows(0, len(new))["index"].tolist() == old.rows(0, len(old))["index"].tolist()


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_the_same_input_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Without compression all that is written is the same today but for the header's zstd frame.

    The frame and the zip of the companions depend on the version of zstd and zlib; what they hold does not.
    """
    SETS[name](tmp_path / "new", tmp_path)
    old, new = files_below(GOLDEN / name), files_below(tmp_path / "new")
    assert old.keys() == new.keys()
    for file in (file for file in old if file.startswith("chunks/")):
        parts, made = take_apart(GOLDEN / name / file), take_apart(tmp_path / "new" / file)
        assert _unpacked(made.header) == _unpacked(parts.header)
        made.header = parts.header
        assert made == parts
    if SAME_ZSTD:
        zipped = {"extras.zip"} & old.keys()  # and the manifest holds its checksum
        differ = {file for file in old if old[file] != new[file]}
        manifests = [json.loads((folder / "brand.json").read_bytes()) for folder in (GOLDEN / name, tmp_path / "new")]
        if manifests[1].pop("noticed", None):  # newer than these sets, and it makes the version 1.2
            manifests = [{**each, "checksum": "", "version": []} for each in manifests]
            assert manifests[0] == manifests[1]
            differ -= {"brand.json"}
        assert differ - zipped - ({"brand.json"} if zipped else set()) == set()


def test_the_golden_sets_show_what_they_are_for() -> None:
    """There is a dictionary, a frame without one, a raw sample among frames, a short last chunk, classes, extras."""
    sets = {name: StoredDataSet(GOLDEN / name) for name in SETS}
    assert sets["dictionary"].manifest.dictionary_size > 0
    rows = sets["no_dictionary"].rows(0, 5)
    assert sets["no_dictionary"].manifest.dictionary_size == 0
    assert sorted(rows["size"] < rows["raw_size"]) == [False, True, True, True, True]
    assert len(sets["every_codec"]) % sets["every_codec"].header.chunk_size != 0
    assert {codec for _, codec in sets["every_codec"].header.schema.fields} == {
        "int", "float", "str", "bytes", "json", "ndarray", "image", "audio",
    }  # fmt: skip
    assert len(sets["one_sample"]) == 1
    assert sets["classes"].header.classes == ("no", "yes", "ø \"'\\ \n")
    assert sets["clips"].manifest.companions.keys() == {"extras.zip"}
    assert "text" in sets["clips"].header.schema.names


@pytest.mark.parametrize(("name", "files"), [("pictures", picture_files()), ("clips", clip_files())])
def test_unpack_gives_the_folder_back(name: str, files: dict[str, bytes], tmp_path: Path) -> None:
    """A golden folder set unpacks to the files it was made from, sidecars and empty folders included."""
    count = unpack(GOLDEN / name, tmp_path / "out")
    assert count == len(files)
    assert files_below(tmp_path / "out") == files | ({"grace/empty": b"/"} if name == "clips" else {})


def test_the_extras_hold_sidecars_and_empty_folders() -> None:
    """`extras.zip` holds what is no sample, under its path in the source."""
    with zipfile.ZipFile(GOLDEN / "clips" / "extras.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "grace/empty/": b"",
            "ada/0.txt": b"good morning\n",
            "grace/1.lab": "grüezi".encode(),
        }


def test_golden_files_are_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The script that made them refuses to run where they exist, and they are small."""
    before = files_below(GOLDEN)
    assert make.main() == 1
    assert "never made anew" in capsys.readouterr().err
    assert files_below(GOLDEN) == before
    assert sum(map(len, before.values())) < 300_000


def test_the_header_is_the_same_in_every_chunk() -> None:
    """As the specification says of header and dictionary."""
    for name in SETS:
        chunks = sorted((GOLDEN / name / "chunks").iterdir())
        parts = [take_apart(path) for path in chunks]
        assert len({part.header for part in parts}) == len({part.dictionary for part in parts}) == 1
        with chunks[0].open("rb") as file:
            assert read_front(file, chunks[0]).header == StoredDataSet(GOLDEN / name).header


def _unpacked(header: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(header)


def test_the_independent_reader_is_small_and_independent(repository: Path) -> None:
    """At most 180 lines, and none of Brand's code: what one afternoon with the specification gives."""
    source = (repository / "tests" / "independent_reader.py").read_text()
    assert len(source.splitlines()) <= 180
    assert not re.search(r"^\s*(import|from) (brand|tests)", source, re.MULTILINE)
