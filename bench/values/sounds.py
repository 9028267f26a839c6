"""Audio files: does Brand yield the samples and lengths of soundfile and FFmpeg?"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import soundfile

from bench.values import media
from bench.values.compare import WHOLE, Case, Sample, Sound

SOUNDFILE: Final = "soundfile"
FFMPEG: Final = "FFmpeg"
_SAID: Final = {**dict.fromkeys(("audio", "duration"), "of several recordings"), WHOLE: "libsndfile cannot decode"}
_LOSSY: Final = 2e-3
"""Largest difference of a sample between two decoders of a lossy format."""


def cases(root: Path) -> Iterator[Case]:
    """Yield the cases; their sources are made below `root`."""
    for name, data in _by_soundfile().items():
        folder = media.write(root / f"soundfile/{name.replace(' ', '-')}", {f"a.{name.rpartition('.')[2]}": data})
        yield Case(
            SOUNDFILE, name.replace(".", ", ."), partial(_alone, _soundfile, data), ["audio", str(folder)], said=_SAID
        )
        yield Case(
            FFMPEG,
            name.replace(".", ", ."),
            partial(_alone, _ffmpeg, data),
            ["audio", str(folder)],
            second=partial(_alone, _soundfile, data),
            said=_SAID,
        )
    for name, data in _by_ffmpeg().items():
        folder = media.write(root / f"ffmpeg/{name.replace(' ', '-')}", {f"a.{name.rpartition('.')[2]}": data})
        yield Case(FFMPEG, name.replace(".", ", ."), partial(_alone, _ffmpeg, data), ["audio", str(folder)], said=_SAID)


def _by_soundfile() -> dict[str, bytes]:
    """Return files that libsndfile writes: name -> bytes."""
    kinds = [
        ("wav", "WAV", subtype)
        for subtype in (
            "PCM_U8",
            "PCM_16",
            "PCM_24",
            "PCM_32",
            "FLOAT",
            "DOUBLE",
            "ALAW",
            "ULAW",
            "IMA_ADPCM",
            "MS_ADPCM",
            "GSM610",
        )
    ]
    kinds += [
        ("flac", "FLAC", "PCM_16"),
        ("flac", "FLAC", "PCM_24"),
        ("ogg", "OGG", "VORBIS"),
        ("opus", "OGG", "OPUS"),
        ("mp3", "MP3", "MPEG_LAYER_III"),
    ]
    kinds += [
        ("aiff", "AIFF", "PCM_16"),
        ("au", "AU", "PCM_16"),
        ("caf", "CAF", "PCM_16"),
        ("wav", "WAVEX", "PCM_16"),
        ("w64", "W64", "PCM_16"),
        ("rf64", "RF64", "PCM_16"),
    ]
    made = {}
    for ending, form, subtype in kinds:
        for rate, channels in ((16_000, 1), (48_000, 2)):
            if subtype == "GSM610" and channels == 2:
                continue
            buffer = io.BytesIO()
            soundfile.write(buffer, media.wave(0.7, rate, channels), rate, format=form, subtype=subtype)
            made[f"{form} {subtype} {rate} Hz {channels}.{ending}"] = buffer.getvalue()
    first, second = made["MP3 MPEG_LAYER_III 16000 Hz 1.mp3"], made["MP3 MPEG_LAYER_III 16000 Hz 1.mp3"]
    made["two MP3 files in one.mp3"] = first + second
    made["two Ogg files in one.ogg"] = made["OGG VORBIS 16000 Hz 1.ogg"] * 2
    return made


def _by_ffmpeg() -> dict[str, bytes]:
    """Return files that only FFmpeg reads: name -> bytes."""
    made = {}
    for name, container, codec, rate, options in (
        ("AAC in MP4.m4a", "mp4", "aac", 44_100, {}),
        ("AAC in MP4.mp4", "mp4", "aac", 48_000, {}),
        ("AAC in ADTS.aac", "adts", "aac", 44_100, {}),
        ("ALAC in MP4.m4a", "mp4", "alac", 44_100, {}),
        ("Opus in WebM.webm", "webm", "libopus", 48_000, {}),
        ("Vorbis in Matroska.mka", "matroska", "libvorbis", 44_100, {}),
        ("FLAC in Ogg.oga", "ogg", "flac", 44_100, {}),
        ("MP3 VBR.mp3", "mp3", "libmp3lame", 44_100, {"q": "4"}),
        ("MP3 VBR without a Xing head.mp3", "mp3", "libmp3lame", 44_100, {"q": "2"}),
        ("WMA.wma", "asf", "wmav2", 44_100, {}),
        ("AC-3.ac3", "ac3", "ac3", 48_000, {}),
    ):
        try:
            made[name] = media.by_ffmpeg(container, codec, media.wave(1.3, rate, 2), rate, **options)
        except (av.FFmpegError, ValueError) as error:  # this build of FFmpeg lacks the encoder
            print(f"not made: {name}: {error}")
    if "MP3 VBR without a Xing head.mp3" in made:
        made["MP3 VBR without a Xing head.mp3"] = _without_xing(made["MP3 VBR without a Xing head.mp3"])
    return made


def _without_xing(data: bytes) -> bytes:
    """Return an MP3 file without its tag and its first frame, which holds the head of VBR files."""
    at = data.find(b"Xing") if b"Xing" in data else data.find(b"Info")
    following = data.find(b"\xff\xfb", at)
    return data[following:] if at > 0 and following > 0 else data


def _alone(read: Callable[[bytes], Sample], data: bytes) -> list[Sample]:
    return [read(data)]


def _soundfile(data: bytes) -> Sample:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return {"audio": Sound(samples.T, rate), "duration": len(samples) / rate}


def _ffmpeg(data: bytes) -> Sample:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with av.open(file.name) as container:
            stream = container.streams.audio[0]
            resampler = av.AudioResampler("fltp", stream.layout, stream.rate)
            pieces: list[Any] = [
                each.to_ndarray() for frame in container.decode(stream) for each in resampler.resample(frame)
            ]
            pieces += [each.to_ndarray() for each in resampler.resample(None)]
            samples = np.concatenate(pieces, axis=1)
            return {"audio": Sound(samples, stream.rate, _LOSSY), "duration": samples.shape[1] / stream.rate}
