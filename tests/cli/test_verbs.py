"""Each verb on small real data: what it prints, for people and as JSON, and its exit code."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import brand as library
from tests.support import Outcome, brand, brand_process, files_below, tree_digest

CLASSES = ["animals", "documents", "markers", "outdoors", "tools"]
VERBS = ("convert", "info", "verify", "unpack", "cat", "reindex", "copy", "partition", "profile", "serve", "top")


@pytest.fixture
def copy(photos_set: Path, tmp_path: Path) -> Path:
    """The converted photos, to be changed."""
    shutil.copytree(photos_set, tmp_path / "photos.brand")
    return tmp_path / "photos.brand"


def ok(told: Outcome) -> Outcome:
    """Exit code 0, and nothing that looks like an accident."""
    assert told.code == 0, told.err
    assert "Traceback" not in told.err
    assert "Warning" not in told.err
    return told


@pytest.mark.parametrize("args", [(), *((verb,) for verb in VERBS), ("convert", "images"), ("convert", "audio")])
def test_every_verb_has_help(args: tuple[str, ...]) -> None:
    """`--help` and `-h` say the same, name the options, and exit with 0."""
    told = ok(brand(*args, "--help"))
    assert told.out.startswith("Usage: ")
    assert brand(*args, "-h").out == told.out
    if args and args not in (("convert",), ("serve",)):
        assert "--json" in told.out


def test_the_group_lists_its_verbs_and_exit_codes() -> None:
    """`brand --help` is the table of contents."""
    told = ok(brand("--help")).out
    assert all(verb in told for verb in VERBS)
    assert "Exit codes: 0 done, 1 something was found wrong, 2 wrong use, 130" in " ".join(told.split())


def test_the_version_is_the_librarys() -> None:
    """`brand --version`."""
    assert ok(brand("--version")).out.strip() == f"brand, version {library.__version__}"


@pytest.mark.slow
def test_python_m_brand_is_the_command(photos_set: Path) -> None:
    """In a process of its own, and as the script that is installed."""
    assert ok(brand_process("--version")).out == ok(brand("--version")).out
    assert ok(brand_process("info", photos_set)).out == ok(brand("info", photos_set)).out
    script = shutil.which("brand")
    if script is not None:
        assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout


def test_convert_says_what_it_made(photos: Path, tmp_path: Path) -> None:
    """Samples, classes, chunks, where, and what to call next; progress goes to stderr in plain lines."""
    told = ok(brand("convert", "images", photos, tmp_path / "set", "--chunk-size", 8, "-j", 2))
    assert f"31 samples in 5 classes are now 4 chunks of 8 in {tmp_path / 'set'}" in told.out
    assert f"brand info {tmp_path / 'set'}" in told.out
    assert "scan: 31 of 31 (100 %)" in told.err
    assert "pack: 31 of 31 (100 %)" in told.err
    assert "\x1b" not in told.err + told.out
    assert "\r" not in told.err + told.out


def test_convert_as_json(photos: Path, tmp_path: Path) -> None:
    """stdout holds the report and nothing else, stderr nothing."""
    told = ok(brand("convert", "images", photos, tmp_path / "set", "--chunk-size", 8, "--json"))
    assert told.err == ""
    report = told.json
    assert {
        "samples": 31,
        "classes": CLASSES,
        "chunks": 4,
        "chunk_size": 8,
        "skipped": [],
        "dry_run": False,
    }.items() <= report.items()
    assert report["target"] == str(tmp_path / "set")


def test_a_dry_run_says_so(photos: Path, tmp_path: Path) -> None:
    """What would be done, about how long it takes, and that nothing was written."""
    told = ok(brand("convert", "images", photos, tmp_path / "set", "--dry-run"))
    assert "31 samples in 5 classes would become" in told.out
    assert "Nothing was written" in told.out
    assert list(tmp_path.iterdir()) == []
    assert ok(brand("convert", "images", photos, tmp_path / "set", "--dry-run", "--json")).json["dry_run"] is True


def test_convert_audio_takes_a_table(clips: Path, tmp_path: Path) -> None:
    """And says how many clips have no transcript."""
    table = clips / "transcripts.tsv"
    told = ok(brand("convert", "audio", clips, tmp_path / "set", "--transcripts", table, "-j", 2))
    assert "41 samples in 6 classes" in told.out
    assert "5 audio files without a transcript" in told.out


@pytest.mark.parametrize(
    ("size", "chunks"),
    [("100kB", 8), ("200kb", 4), ("0.2 MB", 4), ("196KiB", 4), ("100MiB", 1), ("1GB", 1), ("200000", 4)],
)
def test_chunk_bytes_are_read_as_people_write_them(photos: Path, tmp_path: Path, size: str, chunks: int) -> None:
    """kB and KiB, with and without a space, in either case."""
    report = ok(brand("convert", "images", photos, tmp_path / "set", "--chunk-bytes", size, "--json")).json
    assert report["chunks"] == chunks


def test_info_shows_the_facts(photos_set: Path, clips_set: Path) -> None:
    """Fields, sizes, classes and their counts."""
    told = ok(brand("info", photos_set)).out
    for fact in ("31, ", "image: image, label: int, key: str", "4 of 8 samples", "animals", "10", "seed 0"):
        assert fact in told
    assert "text: str" in ok(brand("info", clips_set)).out
    assert "extras.zip" in ok(brand("info", clips_set)).out


def test_info_as_json(photos_set: Path) -> None:
    """All facts, with counts that add up."""
    facts = ok(brand("info", photos_set, "--json")).json
    assert facts["samples"] == 31
    assert facts["schema"] == {"image": "image", "label": "int", "key": "str"}
    assert facts["class_counts"] == {"animals": 10, "documents": 5, "markers": 5, "outdoors": 3, "tools": 8}
    assert sum(facts["size_histogram"].values()) == 31


def test_verify_says_that_all_is_well(photos_set: Path) -> None:
    """Samples, chunks and bytes that were checked."""
    told = ok(brand("verify", photos_set))
    assert "is whole: 31 samples in 4 chunks" in told.out
    assert ok(brand("verify", photos_set, "--json")).json["errors"] == []


def test_unpack_gives_the_folder_back(
    photos: Path, photos_set: Path, clips: Path, clips_set: Path, tmp_path: Path
) -> None:
    """Bit for bit, with the table of transcripts, and says how many files there are."""
    told = ok(brand("unpack", photos_set, tmp_path / "photos"))
    assert "31 files are in" in told.out
    assert files_below(tmp_path / "photos") == files_below(photos)
    assert ok(brand("unpack", clips_set, tmp_path / "clips", "--json")).json["files"] == 42
    assert files_below(tmp_path / "clips") == files_below(clips)


def test_unpack_takes_an_empty_folder_and_no_other(photos_set: Path, tmp_path: Path) -> None:
    """Nothing is overwritten."""
    (tmp_path / "empty").mkdir()
    ok(brand("unpack", photos_set, tmp_path / "empty"))
    for out in (tmp_path / "empty", photos_set / "brand.json"):
        told = brand("unpack", photos_set, out)
        assert told.code == 2
        assert str(out) in told.err


def test_cat_shows_a_sample(photos: Path, photos_set: Path) -> None:
    """Its index, key and label as text, its image as a kind and a size."""
    told = ok(brand("cat", photos_set, 0)).out
    size = (photos / "animals" / "armadillo.png").stat().st_size
    assert "index  0" in told
    assert "key  animals/armadillo.png" in told
    assert f"image  image/png, {size:,} bytes" in told


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 7, 30])
def test_cat_gives_the_original_bytes_of_a_field(photos: Path, photos_set: Path, index: int) -> None:
    """`brand cat DST 7 --field image > picture.png` is the file, without a line break added."""
    key = ok(brand("cat", photos_set, index, "--field", "key")).out
    assert key.endswith("\n")
    told = ok(brand_process("cat", photos_set, index, "--field", "image"))
    assert told.stdout == (photos / key.strip()).read_bytes()


def test_cat_as_json_holds_everything(photos: Path, photos_set: Path) -> None:
    """Bytes in base64."""
    sample = ok(brand("cat", photos_set, 0, "--json")).json
    assert sample["key"] == "animals/armadillo.png"
    assert sample["label"] == 0
    assert base64.b64decode(sample["image"]) == (photos / sample["key"]).read_bytes()
    assert ok(brand("cat", photos_set, 0, "--json", "--field", "label")).json == {"label": 0}


def test_cat_prints_every_codec(tmp_path: Path) -> None:
    """Numbers, texts, JSON, arrays; and `--json` stays JSON where a number is not finite."""
    sample = {
        "i": -3,
        "f": 0.25,
        "s": "naïve",
        "j": {"a": [1, "é"]},
        "a": np.eye(2),
        "b": b"\x00\xff",
        "n": float("nan"),
    }
    schema = {"i": "int", "f": "float", "s": "str", "j": "json", "a": "ndarray", "b": "bytes", "n": "float"}
    library.pack([sample], tmp_path / "set", schema, jobs=1)
    told = ok(brand("cat", tmp_path / "set", 0)).out
    for line in (
        "i  -3",
        "f  0.25",
        "s  naïve",
        'j  {"a": [1, "é"]}',
        "a  array float64, shape (2, 2)",
        "b  bytes, 2 bytes",
    ):
        assert line in told
    assert ok(brand("cat", tmp_path / "set", 0, "--field", "j")).json == {"a": [1, "é"]}
    assert json.loads(ok(brand("cat", tmp_path / "set", 0, "--field", "a")).out) == [[1.0, 0.0], [0.0, 1.0]]
    assert ok(brand("cat", tmp_path / "set", 0, "--field", "s")).out == "naïve\n"
    assert ok(brand("cat", tmp_path / "set", 0, "--field", "index")).out == "0\n"
    whole = ok(brand("cat", tmp_path / "set", 0, "--json")).json
    assert whole["a"] == [[1.0, 0.0], [0.0, 1.0]]


def test_reindex_makes_the_index_again(copy: Path) -> None:
    """Manifest, index and columns, byte for byte."""
    before = tree_digest(copy)
    (copy / "brand.json").unlink()
    (copy / "index" / "place.npy").write_bytes(b"")
    told = ok(brand("reindex", copy))
    assert "31 samples in 4 chunks" in told.out
    assert tree_digest(copy) == before
    assert ok(brand("reindex", copy, "--json")).json == {"path": str(copy), "samples": 31, "chunks": 4}


def test_verify_names_chunk_and_sample(copy: Path) -> None:
    """One flipped bit: exit code 1, and chunk, sample, what was expected and found."""
    chunk = copy / "chunks" / "00000002.brand"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    told = brand("verify", copy)
    assert told.code == 1
    assert "00000002.brand, chunk 2, sample " in told.out
    assert "expected " in told.out
    assert "found " in told.out
    assert "1 errors" in told.err or "1 error" in told.err
    (error,) = brand("verify", copy, "--json").json["errors"]
    assert (error["type"], error["chunk"]) == ("ChecksumError", 2)
    assert error["file"] == str(chunk)
    assert f"sample {error['sample']}" in told.out
    cat = brand("cat", copy, error["sample"])
    assert cat.code == 1
    assert "chunk 2" in cat.err
    good = next(index for index in range(31) if index != error["sample"])
    ok(brand("cat", copy, good))


@pytest.mark.parametrize("name", ["chunks/00000001.brand", "index/place.npy", "columns/label.npy"])
def test_verify_names_a_missing_file(copy: Path, name: str) -> None:
    """Exit code 1."""
    (copy / name).unlink()
    told = brand("verify", copy)
    assert told.code == 1
    assert name.rpartition("/")[2] in told.out
    assert brand("verify", copy, "--json").code == 1
    assert "Traceback" not in told.err


def test_unpack_of_a_damaged_set_stops_with_the_sample(copy: Path, tmp_path: Path) -> None:
    """Exit code 1; a damaged file is never written out as if it were whole."""
    chunk = copy / "chunks" / "00000000.brand"
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    told = brand("unpack", copy, tmp_path / "back")
    assert told.code == 1
    assert "chunk 0, sample " in told.err
