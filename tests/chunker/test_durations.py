"""Clips are measured as they are converted: the field `duration` has the seconds that the head of each file says."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from brand import BrandDataset, LengthBatchSampler
from brand.chunker import convert_audio
from brand.errors import UsageError
from brand.formats.media import duration
from brand.storage.maintenance.verify import verify
from tests.support import options, tree_digest

RATE = 8000


def clip(seconds: float, kind: str = "WAV", rate: int = RATE) -> bytes:
    """A tone of two channels."""
    file = io.BytesIO()
    wave = np.sin(np.arange(round(seconds * rate)) * 0.1).astype(np.float32)
    soundfile.write(file, np.stack([wave, wave], 1), rate, format=kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Clips of several kinds, and one whose head is cut off."""
    source = tmp_path / "clips" / "one"
    source.mkdir(parents=True)
    for number, seconds in enumerate((0.5, 1.25, 0.0, 2.0)):
        (source / f"{number}.wav").write_bytes(clip(seconds))
    (source / "5.ogg").write_bytes(clip(0.75, "OGG"))
    (source / "6.flac").write_bytes(clip(1.5, "FLAC", 16_000))
    (source / "7.wav").write_bytes(clip(1.0)[:20])
    return source.parent


def test_a_clip_is_measured(folder: Path, tmp_path: Path) -> None:
    """Of any kind and rate; nan where the head is broken, which `verify` and a plan can tell."""
    target = tmp_path / "clips.brand"
    convert_audio(folder, target, options())
    data = BrandDataset(target)
    assert list(data.schema) == ["audio", "label", "duration", "key"]
    np.testing.assert_array_equal(data.column("duration"), [0.5, 1.25, 0.0, 2.0, 0.75, 1.5, np.nan])
    assert data.column("duration")[0] == data[0]["audio"].samples.shape[1] / RATE
    assert [error for checked in verify(target) for error in checked.errors] == []
    with pytest.raises(UsageError, match=r"sample 6 has length nan, which is none: leave it out with subset="):
        LengthBatchSampler(data, "duration", batch_size=2)
    seconds = data.column("duration")
    plan = LengthBatchSampler(data, "duration", batch_size=2, subset=seconds >= 0)
    assert len(plan) == 3


def test_processes_do_not_change_it(folder: Path, tmp_path: Path) -> None:
    """The same bytes from one process and from two."""
    for jobs in (1, 2):
        convert_audio(folder, tmp_path / f"{jobs}.brand", options(2, jobs=jobs))
    assert tree_digest(tmp_path / "1.brand") == tree_digest(tmp_path / "2.brand")


def test_without_soundfile_clips_are_not_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says so, and how to have it."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    report = convert_audio(folder, tmp_path / "clips.brand", options())
    assert any("No field `duration`: pip install 'brand-data[audio]'" in note for note in report.notes)
    assert "duration" not in BrandDataset(tmp_path / "clips.brand").schema


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\x00\x00\x00\x00WAVEfmt ", b"OggS" + bytes(60), bytes(1000)])
def test_what_is_no_clip_has_no_duration(data: bytes) -> None:
    """Nan, and no error."""
    assert np.isnan(duration(data))


def test_a_column_of_the_table_cannot_take_its_name(folder: Path, tmp_path: Path) -> None:
    """The message says what to do."""
    table = tmp_path / "table.tsv"
    table.write_text("path\ttext\tduration\none/0.wav\tla\t3\n")
    with pytest.raises(UsageError, match=r"--columns duration: every sample has a field of this name; rename"):
        convert_audio(folder, tmp_path / "clips.brand", options(), transcripts=table, columns=["duration"])
