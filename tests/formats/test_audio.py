"""Audio files decode whole, are as long as `duration` says, and a stretch of one has the frames of the whole."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from brand.errors import MissingExtraError
from brand.formats.audio import decode_audio, duration, missing_decoder, opened
from brand.formats.audiostreams import has_damaged_head, is_cut, streams
from tests.tools.audiofiles import (
    RATE,
    by_ffmpeg,
    id3,
    mp3,
    piped_flac,
    stating,
    tone,
    unfinished_wav,
    varying_mp3,
    without_xing,
    written,
)

WAV, FLAC, OGG = written(tone(4), "WAV"), written(tone(4), "FLAC"), written(tone(4), "OGG")
RF64 = written(tone(4), "RF64")
OPUS = [written(tone(seconds, 48_000), "OGG", "OPUS", 48_000) for seconds in (1.5, 2.5, 1)]
MP3 = mp3(4, bitrate_mode="VARIABLE")
FRAME_S = 576 / RATE
"""An MP3 without a Xing head is this much longer: delay and padding of the encoder are unknown."""

WHOLE = {
    "wav": (WAV, 4.0),
    "wav, cut": (WAV[: len(WAV) // 2], 2.0),
    "wav, size of a pipe": (WAV[:4] + b"\xff" * 4 + WAV[8:40] + b"\xff" * 4 + WAV[44:], 4.0),
    "wav, size 0": (unfinished_wav(WAV), 4.0),
    "wav, size 0 in a RIFF of its head": (unfinished_wav(WAV, 36), 4.0),
    "wav, empty, with a tag": (written(tone(0), "WAV")[:4] + b"\x38\0\0\0" + written(tone(0), "WAV")[8:44]
                               + b"LIST\x0c\0\0\0INFOISFT\0\0\0\0", 0.0),
    "wav, size 0 in a RIFF of its size": (WAV[:40] + bytes(4) + WAV[44:], 4.0),
    "rf64, piped": (RF64[:20] + bytes(24) + RF64[44:], 4.0),
    "wav, GSM": (written(tone(4, 8000), "WAV", "GSM610", 8000), 4.0),
    "wav, ADPCM": (written(tone(4), "WAV", "IMA_ADPCM"), 4.0),
    "wav, with junk behind": (WAV + b"junk" * 100, 4.0),
    "aiff, cut": (written(tone(4), "AIFF")[:-64_000], 2.0),
    "au, size unknown": (written(tone(4), "AU")[:8] + b"\xff" * 4 + written(tone(4), "AU")[12:], 4.0),
    "flac": (FLAC, 4.0),
    "flac, with a tag before": (id3(3000) + FLAC, 4.0),
    "flac, with a tag behind": (FLAC + b"TAG" + bytes(125), 4.0),
    "flac, piped": (piped_flac(FLAC), 4.0),
    "flac, piped, with a tag before": (id3(300) + piped_flac(FLAC), 4.0),
    "ogg, with a tag before": (id3(300) + OGG, 4.0),
    "flac, piped, 24 bits, stereo": (piped_flac(written(tone(4, 48_000, 2), "FLAC", "PCM_24", 48_000)), 4.0),
    "flac, piped, of one frame": (piped_flac(written(tone(0.1), "FLAC")), 0.1),
    "ogg": (OGG, 4.0),
    "ogg, with zeros behind": (OGG + bytes(5000), 4.0),
    "ogg, chained": (OGG + written(tone(3), "OGG"), 7.0),
    "opus, three chained": (b"".join(OPUS), 5.0),
    "mp3": (MP3, 4.0),
    "mp3, with a tag before": (id3(200_000) + MP3, 4.0),
    "mp3, with a tag behind": (MP3 + b"TAG" + bytes(125), 4.0),
    "mp3, with an APE tag behind": (MP3 + b"APETAGEX" + bytes(3000), 4.0),
    "mp3, without a Xing head": (without_xing(MP3), 4.0),
    "mp3, of two bit rates without a Xing head": (varying_mp3(), 8.0),
    "mp3, two in one": (MP3 + mp3(2), 6.0),
    "mp3, two in one, with tags": (id3(500) + MP3 + b"TAG" + bytes(125) + id3(30_000) + mp3(2), 6.0),
    "mp3, two in one, the second without a head": (MP3 + without_xing(mp3(2)), 6.0),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_is_as_long_as_it_decodes(name: str) -> None:
    """All that was written into it, and `duration` says the same."""
    data, seconds = WHOLE[name]
    wave = decode_audio(data)
    assert duration(data) == wave.samples.shape[1] / wave.rate
    assert wave.samples.shape[1] / wave.rate == pytest.approx(seconds, abs=6 * FRAME_S if "mp3" in name else 0.04)
    if seconds:
        loud = np.abs(wave.samples[0]) > 0.05  # nothing is filled up with silence
        assert loud[-wave.rate // 8 :].any()


@pytest.mark.parametrize("name", [name for name, (_, seconds) in WHOLE.items() if seconds])
def test_a_stretch_has_the_frames_of_the_whole(name: str) -> None:
    """Wherever it lies: across streams, up to the end, and beyond it."""
    data, _ = WHOLE[name]
    whole = decode_audio(data)
    total = whole.samples.shape[1] / whole.rate
    for low, seconds in ((0, 0.05), (0.3, 0.4), (0.62, 0.2), (0.1, 0.8), (0.9, None), (0.95, 5), (0, None)):
        begin = round(low * total * whole.rate)
        end = None if seconds is None else begin + round(seconds * total * whole.rate)
        found = decode_audio(data, low * total, None if seconds is None else seconds * total)
        np.testing.assert_allclose(found.samples, whole.samples[:, begin:end], atol=1e-5)


@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "mp3", "mp3, without a Xing head", "wav, ADPCM"])
def test_whole_files_have_the_values_of_soundfile(name: str) -> None:
    """Where libsndfile reads all of a file, corrections change nothing."""
    samples, rate = soundfile.read(io.BytesIO(WHOLE[name][0]), dtype="float32", always_2d=True)
    found = decode_audio(WHOLE[name][0])
    assert found.rate == rate
    np.testing.assert_allclose(found.samples.T[: len(samples)], samples, atol=1e-5)


@pytest.mark.parametrize(
    "data",
    [
        FLAC[: len(FLAC) // 2],
        FLAC[:-3],
        piped_flac(FLAC)[: len(FLAC) // 2],
        OGG + written(tone(2, 8000), "OGG", rate=8000),
        MP3 + mp3(2, 44_100),
    ],
)
def test_a_file_that_does_not_decode_to_its_end_is_refused_and_has_no_length(data: bytes) -> None:
    """Cut within, or of streams that do not fit together; never a part of it."""
    assert np.isnan(duration(data))
    with pytest.raises(ValueError, match="libsndfile cannot decode it"):
        decode_audio(data)


def pages(data: bytes) -> list[bytes]:
    """The pages of an Ogg file."""
    ends = [at.start() for at in re.finditer(b"OggS", data)]
    return [data[begin:end] for begin, end in zip(ends, [*ends[1:], len(data)], strict=True)]


@pytest.mark.parametrize("name", ["ogg", "ogg, chained", "opus, three chained"])
def test_a_hole_is_refused(name: str) -> None:
    """A page that is damaged takes a stretch of time with it: later words would move forward. Its checksum tells."""
    data, _ = WHOLE[name]
    rng = np.random.default_rng(0)
    for _ in range(12):
        bad = bytearray(data)
        bad[rng.integers(200, len(data))] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match=r"Ogg file|libsndfile cannot decode it"):
            decode_audio(bytes(bad))
    parts = pages(data)
    for missing in range(3, len(parts) - 1):
        if not parts[missing][5] & 6:  # the first or last page of a link, without which it is another file
            with pytest.raises(ValueError, match=r"Ogg file (is|are) missing|libsndfile cannot decode it"):
                decode_audio(b"".join(parts[:missing] + parts[missing + 1 :]))


@pytest.mark.parametrize("name", WHOLE)
def test_only_a_file_that_is_cut_counts_as_such(name: str) -> None:
    """Where its head, or the mark of a last page, says so."""
    data, _ = WHOLE[name]
    assert is_cut(data) == (name == "wav, cut")
    if name in ("wav", "ogg", "opus, three chained", "mp3", "ogg, chained"):
        assert is_cut(data[:-1])
        assert is_cut(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("name", ["mp3", "mp3, with a tag before", "mp3, with a tag behind"])
def test_a_frame_that_is_missing_is_refused(name: str) -> None:
    """The decoder would leave it out, and later words would move forward: each frame ends where another begins."""
    data, _ = WHOLE[name]
    for at in (len(MP3) // 3, len(MP3) * 2 // 3):
        frame = data.index(MP3[:2], data.index(MP3) + at)
        bad = data[:frame] + bytes(4) + data[frame + 4 :]
        with pytest.raises(ValueError, match="the MP3 file has no frame at byte"):
            decode_audio(bad)
        with opened(bad) as audio, pytest.raises(ValueError, match="the MP3 file has no frame at byte"):
            audio.read(0, 10)


@pytest.mark.parametrize("name", WHOLE)
def test_only_a_damaged_head_counts_as_such(name: str) -> None:
    """LAME's head has a checksum; of another one only the name of the encoder tells."""
    data, _ = WHOLE[name]
    assert not has_damaged_head(data)
    if name in ("mp3", "mp3, two in one", "mp3, with a tag behind"):
        xing = data.index(b"Xing")
        for at in (xing, xing + 8, xing + 12, xing + 60, xing + 141, xing + 142, xing + 154):
            assert has_damaged_head(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert has_damaged_head(data[: xing + 120] + b"\xc3\x5a" * 18 + data[xing + 156 :])
        other = data[: xing + 120] + b"Lavf60.16" + bytes(27) + data[xing + 156 :]
        assert not has_damaged_head(other), "no checksum of LAME"


def test_a_flac_file_in_which_libsndfile_does_not_seek_is_as_long_as_it_decodes() -> None:
    """The head states a smallest block above the largest one: a stretch is refused, the whole file is right."""
    bad = FLAC[:8] + b"\x7f" + FLAC[9:]
    np.testing.assert_array_equal(decode_audio(bad).samples, decode_audio(FLAC).samples)
    assert duration(bad) == 4.0
    with pytest.raises(ValueError, match="libsndfile cannot decode it"):
        decode_audio(bad, 2.0)


@pytest.mark.parametrize("data", [b"", b"RIFF\0\0\0\0WAVEfmt ", b"OggS" + bytes(60), bytes(1000), b"fLaC" + bytes(99)])
def test_other_bytes_have_no_length(data: bytes) -> None:
    with pytest.raises(ValueError, match="libsndfile cannot decode it"):
        duration(data)


def test_a_stretch_behind_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"it has no frames from 4\.5 s on"):
        decode_audio(WAV, 4.5, 1)
    assert decode_audio(written(tone(0), "WAV")).samples.shape == (1, 0)


FFMPEG_KINDS = {
    "m4a": ("ipod", "aac", RATE),
    "mp4": ("mp4", "aac", RATE),
    "opus in mp4": ("mp4", "libopus", 48_000),
    "webm": ("webm", "libopus", 48_000),
    "aac": ("adts", "aac", RATE),
    "alac": ("ipod", "alac", RATE),
    "wavpack": ("wv", "wavpack", RATE),
    "flac in ogg": ("ogg", "flac", RATE),
}
HEADS = {
    "m4a": b"\0\0\0\x1cftypM4A \0\0\2\0",
    "webm": b"\x1aE\xdf\xa3\x9fB\x86\x81",
    "aac": b"\xff\xf1P@\x02\x7f\xfc",
    "speex": b"OggS" + bytes(24) + b"Speex   1.2",
    "flac in ogg": b"OggS" + bytes(24) + b"\x7fFLAC\1\0",
}


@pytest.mark.parametrize("name", FFMPEG_KINDS)
def test_ffmpeg_decodes_what_libsndfile_does_not_open(name: str) -> None:
    pytest.importorskip("av")
    container, codec, rate = FFMPEG_KINDS[name]
    data = by_ffmpeg(tone(4, rate), container, codec, rate)
    wave = decode_audio(data)
    assert wave.rate == rate
    assert duration(data) == wave.samples.shape[1] / rate == pytest.approx(4, abs=0.2)
    stretch = decode_audio(data, 1, 2)
    np.testing.assert_array_equal(stretch.samples, wave.samples[:, rate : 3 * rate])
    assert missing_decoder(data) == ""


@pytest.mark.parametrize("name", HEADS)
def test_without_ffmpeg_such_files_name_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    data = HEADS[name] + bytes(200)
    for view in (data, memoryview(data), bytearray(data)):
        assert missing_decoder(view).endswith("pip install 'brand-data[av]'")
    for read in (decode_audio, duration):
        with pytest.raises(MissingExtraError, match=r"pip install 'brand-data\[av\]'"):
            read(data)


@pytest.mark.parametrize("kind", [("ogg", "flac"), ("webm", "libopus"), ("matroska", "flac")])
def test_a_cut_file_for_ffmpeg_is_refused(kind: tuple[str, str]) -> None:
    """Never a part of it: its head states the length of the whole. Joined files are longer than that."""
    pytest.importorskip("av")
    data = by_ffmpeg(tone(4, 48_000), *kind, 48_000)
    data = stating(data, 4 * 48_000) if kind[0] == "ogg" else data
    assert duration(data) == pytest.approx(4, abs=0.05)
    for read in (decode_audio, duration):
        with pytest.raises(ValueError, match=r"it ends .* s before the end that its head states"):
            read(data[: len(data) * 6 // 10])
    if kind[0] == "ogg":
        assert duration(data + data) == pytest.approx(8, abs=0.05)


@pytest.mark.parametrize("name", HEADS)
def test_damaged_files_for_ffmpeg_are_a_value_error(name: str) -> None:
    pytest.importorskip("av")
    with pytest.raises(ValueError, match="FFmpeg cannot decode it"):
        decode_audio(HEADS[name] + bytes(200))


@settings(deadline=None)
@given(
    name=st.sampled_from(["flac, piped", "mp3", "mp3, two in one", "ogg, chained", "wav, size 0"]),
    at=st.floats(0, 1),
    bytes_=st.binary(min_size=1, max_size=8),
    cut=st.booleans(),
)
def test_a_damaged_file_has_streams(name: str, at: float, bytes_: bytes, cut: bool) -> None:
    """Nothing is raised; and a file that decodes is as long as `duration` says, or has none."""
    data = WHOLE[name][0]
    place = int(at * (len(data) - 1))
    data = data[:place] if cut else data[:place] + bytes_ + data[place + len(bytes_) :]
    assert streams(data)
    try:
        seconds, wave = duration(data), decode_audio(data)
    except ValueError:
        return
    assert seconds == wave.samples.shape[1] / wave.rate


def test_real_files_are_returned_as_they_are(clips: Path) -> None:
    """All that ship with the repository: nothing is copied, and durations are those of soundfile."""
    for path in sorted(path for path in clips.rglob("*.*") if path.suffix != ".tsv"):
        data = path.read_bytes()
        assert [stream.data is data for stream in streams(data)] == [True]
        assert duration(data) == soundfile.info(str(path)).duration


@pytest.mark.parametrize(
    "kind", [("OGG", "VORBIS", RATE), ("OGG", "OPUS", 48_000), ("FLAC", None, RATE), ("MP3", None, RATE)]
)
@pytest.mark.parametrize("seconds", [0.7, 4, 9])
def test_an_open_file_has_the_frames_of_the_whole(kind: tuple[str, str | None, int], seconds: float) -> None:
    """In any order: libsndfile itself finds other frames of an Ogg file after it has read some."""
    form, subtype, rate = kind
    data = written(tone(seconds, rate), form, subtype, rate)
    whole = decode_audio(data).samples
    chance = np.random.default_rng(3)
    with opened(data) as audio:
        for _ in range(20):
            begin, end = sorted(int(at) for at in chance.integers(0, audio.frames, 2))
            np.testing.assert_allclose(audio.read(begin, end).T, whole[:, begin:end], atol=1e-5)


def test_a_gap_that_reaches_into_the_last_page_of_an_ogg_file() -> None:
    """The page before the gap seems to reach past the end of the file, as if the file were cut there."""
    whole = written(tone(20.0), "OGG", "VORBIS")
    pages = [each.start() for each in re.finditer(b"OggS", whole)]
    damaged = whole[: pages[-3] + 200] + whole[pages[-1] :]
    with pytest.raises(ValueError, match="a page of the Ogg file is cut, and other pages follow it"):
        decode_audio(damaged)
    assert len(decode_audio(whole[: pages[-3] + 200]).samples[0]) < 20 * RATE, "a cut file decodes as far as it goes"
