"""The large real sets: converted, verified, unpacked bit for bit, and read back.

BRAND_REAL_DATA names a folder with `images`, `audio`, `fashion-mnist`, `images-odd` and `text`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from brand import pack
from brand.chunker import Options, convert_audio, convert_images
from brand.formats.media import kind_of
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.unpack import unpack
from brand.storage.maintenance.verify import verify
from brand.torch import BrandDataset
from tests.support import LIMIT_S

pytestmark = pytest.mark.realdata

DECODE = """
import os, sys, warnings
from PIL import Image
warnings.simplefilter("ignore")
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        try:
            with Image.open(path) as image:
                image.convert("RGB")
        except Exception:
            sys.stdout.write(os.path.relpath(path, sys.argv[1]) + "\\n")
"""


def real(name: str) -> Path:
    """A real set, or skip."""
    root = os.environ.get("BRAND_REAL_DATA")
    if not root:
        pytest.skip("BRAND_REAL_DATA does not name the folder of the real sets")
    folder = Path(root) / name
    if not folder.is_dir():
        pytest.skip(f"the folder of real sets has no {name}")
    return folder


def files(folder: Path) -> dict[str, Path]:
    """Every file by its path below the folder."""
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def assert_equal_trees(one: Path, other: Path, *, but: frozenset[str] = frozenset()) -> None:
    """The same files with the same bytes, but for those named, which `other` lacks."""
    expected, found = files(one), files(other)
    assert set(found) == set(expected) - but
    different = [name for name, path in found.items() if path.read_bytes() != expected[name].read_bytes()]
    assert different == []


def assert_whole(target: Path) -> None:
    """Every byte is as it was written."""
    assert [str(error) for step in verify(target) for error in step.errors] == []


@pytest.mark.parametrize("name", ["images", "fashion-mnist/train", "fashion-mnist/test"])
def test_image_sets_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Convert, verify, unpack: the folder as it was."""
    source = real(name)
    report = convert_images(source, tmp_path / "set")
    assert report.samples == len(files(source))
    assert report.skipped == ()
    assert_whole(tmp_path / "set")
    unpack(tmp_path / "set", tmp_path / "back")
    assert_equal_trees(source, tmp_path / "back")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The audio folder, its table of transcripts, and the data set made of both."""
    source = real("audio")
    tables = sorted(source.rglob("*.tsv"))
    if not tables:
        pytest.skip("the audio set has no table of transcripts")
    target = tmp_path_factory.mktemp("speech") / "set"
    convert_audio(
        source,
        target,
        Options(labels=not any(p.is_file() for p in source.iterdir() if p != tables[0])),
        transcripts=tables[0],
    )
    return source, tables[0], target


def test_audio_with_transcripts_comes_back_bit_for_bit(speech: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The table, too."""
    source, _, target = speech
    assert_whole(target)
    unpack(target, tmp_path / "back")
    assert_equal_trees(source, tmp_path / "back")


def test_every_clip_has_its_own_transcript(speech: tuple[Path, Path, Path]) -> None:
    """As the table says it, for all rows; 200 clips decode as libsndfile decodes their files."""
    source, table, target = speech
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8-sig").splitlines()]
    path_at, text_at = (rows[0].index(name) for name in ("path", "text"))
    told = {row[path_at]: row[text_at].strip() for row in rows[1:]}
    samples = BrandDataset(target, fields=("key", "text"))
    found = dict(samples.__getitems__(range(len(samples))))
    assert {key: text for key, text in found.items() if text} == {key: text for key, text in told.items() if text}
    chosen = np.random.default_rng(0).choice(len(found), 200, replace=False).tolist()
    for audio, key in BrandDataset(target, fields=("audio", "key")).__getitems__(chosen):
        expected, rate = soundfile.read(source / key, dtype="float32", always_2d=True)
        assert (audio.rate, audio.samples.shape) == (rate, expected.T.shape)
        assert np.array_equal(audio.samples, expected.T)


def test_odd_images_are_skipped_exactly_where_pillow_cannot_decode(tmp_path: Path) -> None:
    """Pillow alone, in a process of its own, says which files these are."""
    source = real("images-odd")
    told = subprocess.run(
        [sys.executable, "-c", DECODE, str(source)], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    bad = frozenset(told.stdout.splitlines())
    report = convert_images(source, tmp_path / "set", Options(skip_errors=True))
    assert {problem.path for problem in report.skipped} == bad
    assert all(problem.reason for problem in report.skipped)
    listed = (tmp_path / "set" / "skipped.tsv").read_text(encoding="utf-8").splitlines()[1:] if bad else []
    assert {line.split("\t")[0] for line in listed} == bad
    assert_whole(tmp_path / "set")
    unpack(tmp_path / "set", tmp_path / "back")
    assert_equal_trees(source, tmp_path / "back", but=bad)


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every line of every file: where it is from, and its object."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                yield {"key": f"{path.stem}:{number}", "record": json.loads(line), "line": line}


def test_a_stream_of_text_records_is_packed_and_read_back(tmp_path: Path) -> None:
    """All of them from a generator; 2,000 at random positions are what the files say."""
    source = real("text")
    chosen = np.random.default_rng(1)
    report = pack(records(source), tmp_path / "set", {"key": "str", "record": "json", "line": "str"})
    positions = set(chosen.choice(report.samples, 2000, replace=False).tolist())
    expected = {index: record for index, record in enumerate(records(source)) if index in positions}
    assert len(expected) == 2000
    stored = StoredDataSet(tmp_path / "set")
    for index, record in expected.items():
        assert stored.sample(index) == record
    assert report.compression == "zstd"
    assert_whole(tmp_path / "set")


def test_the_kinds_of_all_real_images_are_known() -> None:
    """From their first bytes alone."""
    unknown = []
    for name, path in files(real("images")).items():
        with path.open("rb") as file:
            kind = kind_of(file.read(64))
        if kind is None or not kind.startswith("image/"):
            unknown.append(name)
    assert unknown == []
