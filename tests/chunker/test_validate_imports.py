"""`--validate` decodes the images and audio files of tars and tables; a decoder that is missing is told without it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from brand import BrandDataset
from tests.chunker.test_import_faults import tar_of
from tests.support import Outcome, brand
from tests.tools.audiofiles import mp3, tone, written


def photo() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 80).convert("RGB").save(file, "JPEG")
    return file.getvalue()


GOOD = {"image": photo(), "audio": written(tone(1), "FLAC")}
BAD = {
    "image": [photo()[:900], photo()[:30], b"\x89PNG\r\n\x1a\n" + bytes(200)],
    "audio": [GOOD["audio"][:-100], b"RIFF\0\0\0\0WAVE" + bytes(90), b"OggS" + bytes(300), mp3(1) + mp3(1, 44_100)],
}
ENDINGS = {"image": "jpg", "audio": "flac"}
CASES = [(codec, at) for codec, some in BAD.items() for at in range(len(some))]


def tar(folder: Path, codec: str, files: list[bytes]) -> list[str]:
    (folder / "x.tar").write_bytes(tar_of({f"s{n}.{ENDINGS[codec]}": data for n, data in enumerate(files)}))
    return ["webdataset", str(folder / "x.tar")]


def table(folder: Path, codec: str, files: list[bytes]) -> list[str]:
    pyarrow.parquet.write_table(pyarrow.table({codec: files}), folder / "x.parquet")
    return ["parquet", str(folder / "x.parquet")]


def convert(source: list[str], target: Path, *more: str) -> Outcome:
    return brand("convert", *source, target, "-j", 1, *more)


@pytest.mark.parametrize("layout", [tar, table])
@pytest.mark.parametrize(("codec", "at"), CASES)
def test_a_broken_file_is_found_at_the_conversion(layout: object, codec: str, at: int, tmp_path: Path) -> None:
    """It is named; `skip` leaves out that sample alone. Without the option it is found at the first fetch."""
    source = layout(tmp_path, codec, [GOOD[codec], BAD[codec][at], GOOD[codec]])  # type: ignore[operator]
    told = convert(source, tmp_path / "refused", "--validate")
    assert told.code == 1
    assert f"field {codec!r} ({codec}): " in told.err
    assert "cannot decode it" in told.err
    assert "--on-error skip leaves such samples out" in told.err
    assert convert(source, tmp_path / "skipped", "--validate", "--on-error", "skip").code == 0
    data = BrandDataset(tmp_path / "skipped")
    assert len(data) == 2
    for index in range(2):
        assert data[index][codec] is not None
    assert convert(source, tmp_path / "whole").code == 0
    assert len(BrandDataset(tmp_path / "whole")) == 3


def test_parts_of_a_run_without_validation_are_not_used(tmp_path: Path) -> None:
    """The option changes the samples, so a run with it reads the source again."""
    source = tar(tmp_path, "image", [GOOD["image"], BAD["image"][0]])
    (tmp_path / "set").mkdir()
    assert convert(source, tmp_path / "set").code == 0
    assert convert(source, tmp_path / "other", "--validate", "--on-error", "skip").code == 0
    assert len(BrandDataset(tmp_path / "other")) == 1


@pytest.mark.parametrize("layout", [tar, table])
def test_append_validates_too(layout: object, tmp_path: Path) -> None:
    source = layout(tmp_path, "audio", [GOOD["audio"], BAD["audio"][0]])  # type: ignore[operator]
    told = brand("append", *source, tmp_path / "set", "-j", 1, "--validate")
    assert told.code == 1
    assert "cannot decode it" in told.err


@pytest.mark.parametrize("layout", [tar, table])
def test_audio_for_a_decoder_that_is_missing_is_refused(
    layout: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the option; `skip` lists each."""
    monkeypatch.setitem(sys.modules, "av", None)
    m4a = b"\0\0\0\x1cftypM4A \0\0\2\0" + bytes(500)
    source = layout(tmp_path, "audio", [GOOD["audio"], m4a, m4a])  # type: ignore[operator]
    told = convert(source, tmp_path / "refused")
    assert told.code == 1
    assert "libsndfile does not open this kind of audio (mov), and FFmpeg is missing" in told.err
    told = convert(source, tmp_path / "skipped", "--on-error", "skip")
    assert "2 samples cannot be used" in told.out
    assert len(BrandDataset(tmp_path / "skipped")) == 1
