"""Audio files as people have them: cut, joined, written to a pipe, without a length in their head.

All are made from what libsndfile writes; FFmpeg (package `av`) makes the kinds that libsndfile does not open.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from brand.formats.audiostreams import _mpeg

RATE = 16_000
Samples = NDArray[np.float32]


def tone(seconds: float, rate: int = RATE, channels: int = 1) -> Samples:
    """A tone with noise, so that bit rates vary; shape (frames, channels)."""
    at = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(7).standard_normal(len(at)) * (at % 2 > 1)
    wave = 0.3 * np.sin(2 * np.pi * 440 * at) + 0.1 * noise
    return np.stack([wave] * channels, axis=1).astype(np.float32)


def written(wave: Samples, kind: str, subtype: str | None = None, rate: int = RATE, **more: Any) -> bytes:
    """The file that libsndfile writes."""
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format=kind, subtype=subtype, **more)
    return file.getvalue()


def mp3(seconds: float, rate: int = RATE, **more: Any) -> bytes:
    return written(tone(seconds, rate), "MP3", rate=rate, **more)


def without_xing(data: bytes) -> bytes:
    """The frames of an MP3 without the Xing head; one of a low bit rate has none."""
    facts = _mpeg(data[:4])
    assert facts is not None
    return data[facts.size :] if data[facts.xing_at : facts.xing_at + 4] in (b"Xing", b"Info") else data


def varying_mp3() -> bytes:
    """An MP3 of a low, then a high bit rate, without a Xing head: its length cannot be estimated from its begin."""
    low, high = (mp3(4.0, bitrate_mode="CONSTANT", compression_level=level) for level in (0.9, 0.0))
    return without_xing(high) + without_xing(low)


def id3(size: int) -> bytes:
    """A tag as it stands before an MP3, with `size` bytes in it that look like frames."""
    seven = bytes(size >> shift & 127 for shift in (21, 14, 7, 0))
    return b"ID3\4\0\0" + seven + (b"\xff\xfb\x90\xc4" * size)[:size]


def piped_flac(data: bytes) -> bytes:
    """A FLAC file whose writer could not go back to its head: the number of samples is unknown."""
    head = bytearray(data[:42])
    head[21] &= 0xF0
    head[22:42] = bytes(20)
    return bytes(head) + data[42:]


def stating(data: bytes, frames: int) -> bytes:
    """A file of FLAC in Ogg whose head states the number of frames, as the program `flac` writes it."""
    size = 28 + data[27]
    page = bytearray(data[:size])
    page[59:63] = struct.pack(">I", frames)
    page[22:26] = bytes(4)
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x04C11DB7 if checksum >> 31 else 0)) & 0xFFFFFFFF
    page[22:26] = struct.pack("<I", checksum)
    return bytes(page) + data[size:]


def unfinished_wav(data: bytes, riff: int = 0) -> bytes:
    """A WAV file whose writer was stopped before it wrote the sizes."""
    return data[:4] + struct.pack("<I", riff) + data[8:40] + bytes(4) + data[44:]


def by_ffmpeg(wave: Samples, container: str, codec: str, rate: int = RATE, **options: str) -> bytes:
    """The file that FFmpeg writes."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as target:
        stream: Any = target.add_stream(codec, rate=rate, options=options)
        stream.layout = "mono" if wave.shape[1] == 1 else "stereo"
        stream.codec_context.open(strict=False)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave.T), format="fltp", layout=stream.layout.name)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        converter = av.AudioResampler(stream.codec_context.format.name, stream.layout, rate)
        queue, at = av.AudioFifo(), 0
        for converted in (*converter.resample(frame), *converter.resample(None)):
            converted.pts = None
            queue.write(converted)
        while (some := queue.read(stream.codec_context.frame_size or 1024, partial=True)) is not None:
            some.pts, some.time_base, at = at, Fraction(1, rate), at + some.samples
            target.mux(stream.encode(some))
        target.mux(stream.encode(None))
    return file.getvalue()
