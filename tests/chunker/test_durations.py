"""Clips are measured as they are converted: the field `duration` has the seconds that each file decodes to."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from brand import BrandDataset, BrandSampler, LengthBatchSampler
from brand.chunker import convert_audio
from brand.errors import SourceError, UsageError
from brand.storage.maintenance.verify import verify
from tests.formats.test_audio import WHOLE
from tests.support import brand, options, tree_digest
from tests.tools.audiofiles import by_ffmpeg, tone

RATE = 8000


def clip(seconds: float, kind: str = "WAV", rate: int = RATE) -> bytes:
    """A tone of two channels."""
    file = io.BytesIO()
    wave = np.sin(np.arange(round(seconds * rate)) * 0.1).astype(np.float32)
    soundfile.write(file, np.stack([wave, wave], 1), rate, format=kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Clips of several kinds, and one that is cut."""
    source = tmp_path / "clips" / "one"
    source.mkdir(parents=True)
    for number, seconds in enumerate((0.5, 1.25, 0.0, 2.0)):
        (source / f"{number}.wav").write_bytes(clip(seconds))
    (source / "5.ogg").write_bytes(clip(0.75, "OGG"))
    (source / "6.flac").write_bytes(clip(1.5, "FLAC", 16_000))
    (source / "7.flac").write_bytes(clip(1.0, "FLAC")[:-100])
    return source.parent


def test_a_clip_is_measured(folder: Path, tmp_path: Path) -> None:
    """Of any kind and rate; nan where a file does not decode to its end, which `verify` and a plan can tell."""
    target = tmp_path / "clips.brand"
    report = convert_audio(folder, target, options())
    says = "1 audio file does not decode to its end, and has the duration nan: --on-error skip leaves such files out"
    empty = "1 audio file has no samples, and has the duration 0: `subset=` leaves it out of training"
    assert [(fact.what, fact.example, fact.text) for fact in report.noticed] == [
        ("unknown_durations", "one/7.flac", says),
        ("empty_audio", "one/2.wav", empty),
    ]
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
    assert len(BrandSampler(data, subset=seconds > 0, num_replicas=1, rank=0)) == 5


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


def test_a_file_that_no_decoder_opens_is_refused(folder: Path, tmp_path: Path) -> None:
    """At conversion, not at the first fetch; `skip` lists it, and finds the cut file, too."""
    (folder / "one" / "8.wav").write_bytes(clip(1.0)[:20])
    with pytest.raises(
        SourceError, match=r"one/8\.wav: libsndfile cannot decode it.*--on-error skip leaves such files"
    ):
        convert_audio(folder, tmp_path / "clips.brand", options())
    report = convert_audio(folder, tmp_path / "skipped.brand", options(skip_errors=True))
    assert [problem.path for problem in report.skipped] == ["one/7.flac", "one/8.wav"]
    assert not np.isnan(BrandDataset(tmp_path / "skipped.brand").column("duration")).any()


M4A = b"\0\0\0\x1cftypM4A \0\0\2\0" + bytes(3000)
SPEEX = b"OggS" + bytes(24) + b"Speex   1.2" + bytes(3000)


@pytest.mark.parametrize("data", [M4A, SPEEX])
def test_a_file_for_a_decoder_that_is_missing_is_refused_with_a_count(
    data: bytes, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says how many files of the folder are such, and which package decodes them."""
    monkeypatch.setitem(sys.modules, "av", None)
    for number in range(3):
        (folder / "one" / f"9{number}").write_bytes(data)
    with pytest.raises(
        SourceError, match=r"one/9\d: libsndfile does not open.*'brand-data\[av\]'.*3 of 10 inspected files are such"
    ):
        convert_audio(folder, tmp_path / "clips.brand", options())
    report = convert_audio(folder, tmp_path / "skipped.brand", options(skip_errors=True))
    assert [problem.path for problem in report.skipped] == ["one/7.flac", "one/90", "one/91", "one/92"]


def test_ffmpeg_measures_what_libsndfile_does_not_open(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("av")
    (folder / "one" / "9.m4a").write_bytes(by_ffmpeg(tone(1), "ipod", "aac"))
    convert_audio(folder, tmp_path / "clips.brand", options())
    data = BrandDataset(tmp_path / "clips.brand")
    assert data.column("duration")[7] == data[7]["audio"].samples.shape[1] / 16_000


@pytest.mark.parametrize(
    "name", ["mp3, two in one", "flac, piped", "ogg, chained", "wav, size 0", "mp3, without a Xing head"]
)
def test_a_file_with_a_wrong_head_has_its_true_length(name: str, tmp_path: Path) -> None:
    """With and without `--validate`, and the fetched audio is all of it."""
    contents, seconds = WHOLE[name]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "0").write_bytes(contents)
    for validate in (False, True):
        target = tmp_path / f"{validate}.brand"
        convert_audio(tmp_path / "source", target, options(validate=validate))
        data = BrandDataset(target)
        assert data.column("duration")[0] == data[0]["audio"].samples.shape[1] / data[0]["audio"].rate
        assert data.column("duration")[0] == pytest.approx(seconds, abs=0.2)


def test_a_column_of_the_table_cannot_take_its_name(folder: Path, tmp_path: Path) -> None:
    """The message says what to do."""
    table = tmp_path / "table.tsv"
    table.write_text("path\ttext\tduration\none/0.wav\tla\t3\n")
    with pytest.raises(UsageError, match=r"--columns duration: every sample has a field of this name; rename"):
        convert_audio(folder, tmp_path / "clips.brand", options(), transcripts=table, columns=["duration"])


def test_joined_files_are_counted(tmp_path: Path) -> None:
    """Each recording in them is decoded, where libsndfile alone decodes the first: the report says so."""
    files = {
        "one.ogg": clip(0.5, "OGG"),
        "two.ogg": clip(0.5, "OGG") * 2,
        "two.mp3": clip(0.5, "MP3") * 2,
        "a.wav": clip(1),
    }
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    report = convert_audio(tmp_path / "in", tmp_path / "set", options(labels=False))
    told = {fact.what: (fact.count, fact.example, fact.text) for fact in report.noticed}
    assert told == {
        "joined_audio": (
            2,
            "two.mp3",
            "2 audio files consist of several recordings: all are decoded, where some decoders stop after the first",
        )
    }


def test_facts_about_audio_are_printed_and_listed(folder: Path, tmp_path: Path) -> None:
    """By `convert` and `info`, as text and with --json."""
    (folder / "one" / "8.ogg").write_bytes(clip(0.5, "OGG") * 2)
    printed = brand("convert", "audio", folder, tmp_path / "set").out
    listed = json.loads(brand("convert", "audio", folder, tmp_path / "two", "--json").out)["noticed"]
    assert listed == json.loads(brand("info", tmp_path / "set", "--json").out)["noticed"]
    assert {fact["what"]: (fact["count"], fact["example"]) for fact in listed} == {
        "unknown_durations": (1, "one/7.flac"),
        "empty_audio": (1, "one/2.wav"),
        "joined_audio": (1, "one/8.ogg"),
    }
    told = brand("info", tmp_path / "set").out
    assert all(fact["text"] in printed and fact["text"] in told for fact in listed)


def test_cut_files_are_counted(tmp_path: Path) -> None:
    """They decode as far as they go, as with other tools; the report says so. A damaged page is an error."""
    ogg = clip(2, "OGG")
    files = {"a.wav": clip(1), "cut.wav": clip(1)[:-1000], "cut.ogg": ogg[:-300], "cut.mp3": clip(1, "MP3")[:-300]}
    files["hole.ogg"] = ogg[:-500] + bytes([ogg[-500] ^ 1]) + ogg[-499:]
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    report = convert_audio(tmp_path / "in", tmp_path / "set", options(labels=False, validate=True, skip_errors=True))
    told = {fact.what: (fact.count, fact.text) for fact in report.noticed}
    assert told["cut_audio"] == (
        3,
        "3 audio files end before the end that they state, and decode as far as they go",
    )
    assert [problem.path for problem in report.skipped] == ["hole.ogg"]
    assert "of the Ogg file does not match its checksum" in report.skipped[0].reason


def test_mp3_files_with_a_damaged_head_are_counted(tmp_path: Path) -> None:
    """They decode, and their length may be wrong. A missing frame is an error."""
    whole = clip(1, "MP3")
    padding, frame = whole.index(b"LAME") + 21, whole.index(whole[:2], len(whole) // 2)
    files = {
        "head.mp3": whole[:padding] + bytes([whole[padding] ^ 7]) + whole[padding + 1 :],
        "hole.mp3": whole[:frame] + bytes(4) + whole[frame + 4 :],
        "whole.mp3": whole,
    }
    (tmp_path / "in").mkdir()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    report = convert_audio(tmp_path / "in", tmp_path / "set", options(labels=False, validate=True, skip_errors=True))
    told = {fact.what: (fact.count, fact.example, fact.text) for fact in report.noticed}
    assert told == {
        "damaged_audio_heads": (1, "head.mp3", "1 MP3 file has a damaged head: its length may be wrong"),
    }
    assert [problem.path for problem in report.skipped] == ["hole.mp3"]
    assert "the MP3 file has no frame at byte" in report.skipped[0].reason
