"""How long is an audio file, and what does it decode to?

libsndfile (package `soundfile`) decodes, stream by stream (`audiostreams`), so that no part of a file is lost. Kinds
that it does not open, such as MP4, are decoded by FFmpeg (package `av`) if that is installed. Both are imported when
the first file is decoded.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError
from brand.formats.audiostreams import Stream, streams
from brand.formats.values import Buffer

Samples = NDArray[np.float32]

_FFMPEG: Final[tuple[tuple[int, bytes, str], ...]] = (
    (4, b"ftyp", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (28, b"Speex   ", "ogg"),
    (0, b"\xff\xf1", "aac"),
    (0, b"\xff\xf9", "aac"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "asf"),
    (0, b"\x0bw", "ac3"),
    (0, b"#!AMR", "amr"),
    (0, b"wvpk", "wv"),
    (0, b"TTA1", "tta"),
)
"""(offset, signature, demuxer) of files that libsndfile does not open.

FFmpeg is told the demuxer, because some of its demuxers open other files, which a file names.
"""
INSTALL_FFMPEG: Final = "pip install 'brand-data[av]'"
_UNKNOWN: Final = 1 << 48
"""libsndfile states at least this many frames if it does not know the number."""
_AT_ONCE: Final = 1 << 20
_ESTIMATED: Final = ("MPEG_LAYER_I", "MPEG_LAYER_II")
"""Subtypes whose length libsndfile estimates, and in which it does not find a frame exactly."""
_BEFORE: Final = {"MP3": 64 * 1152}
"""Format -> frames that are decoded before a stretch, because a frame depends on those before it."""
_COUNTED: Final = ("OGG", "MP3")
"""Formats whose frames are counted by their heads, and whose last frame is slow to find."""


class Waveform(NamedTuple):
    """A decoded audio file."""

    samples: NDArray[np.float32]
    """Shape (channels, frames), -1 to 1."""
    rate: int
    """Frames a second."""


def decode_audio(data: Buffer, offset: float = 0.0, seconds: float | None = None) -> Waveform:
    """Return the frames of a file as float32, from `offset` seconds on, `seconds` of them or all.

    A stretch that the end of the file cuts is shorter. Raises ValueError if no decoder can read all of it, or if
    `offset` is not within the file; `MissingExtraError` if a package is missing.
    """
    library, data = soundfile(), bytes(data)
    demuxer = demuxer_of(data)
    if demuxer is None:
        with _errors("libsndfile", library.SoundFileError):
            samples, rate = _by_libsndfile(library, streams(data), offset, seconds)
    else:
        whole, rate = _by_ffmpeg(data, demuxer)
        begin, end = _stretch(rate, offset, seconds)
        samples = whole[:, begin:end]
    if offset and not samples.shape[1]:
        raise ValueError(f"it has no frames from {offset:g} s on")
    return Waveform(np.ascontiguousarray(samples), rate)


def duration(data: Buffer) -> float:
    """Return the seconds that `decode_audio` returns; nan if the file opens and does not decode to its end.

    Decodes nothing, unless FFmpeg has to. Raises ValueError if no decoder opens it, and `MissingExtraError`.
    """
    library, data = soundfile(), bytes(data)
    demuxer = demuxer_of(data)
    if demuxer is not None:
        whole, rate = _by_ffmpeg(data, demuxer)
        return float(whole.shape[1] / rate)
    with _errors("libsndfile", library.SoundFileError):
        lengths = [_length(library, part) for part in streams(data)]
    rate = lengths[0][1][0]
    return math.nan if len({kind for _, kind in lengths}) > 1 else sum(frames for frames, _ in lengths) / rate


def demuxer_of(data: bytes) -> str | None:
    """Return the name of FFmpeg's demuxer for a file of a kind that libsndfile does not open; None for other files."""
    return next((name for at, signature, name in _FFMPEG if data.startswith(signature, at)), None)


def missing_decoder(data: bytes) -> str:
    """Return in words which package is missing to decode a file; empty if none is missing."""
    name = demuxer_of(data)
    if name is None or ffmpeg() is not None:
        return ""
    return f"libsndfile does not open this kind of audio ({name}), and FFmpeg is missing: {INSTALL_FFMPEG}"


def soundfile() -> Any:
    """Return the library that decodes audio. Raises `MissingExtraError`."""
    try:
        import soundfile as library
    except ImportError as error:
        raise MissingExtraError(
            "decoding audio needs the package soundfile: pip install 'brand-data[audio]'"
        ) from error
    return library


def has_soundfile() -> bool:
    try:
        soundfile()
    except MissingExtraError:
        return False
    return True


def ffmpeg() -> Any | None:
    """Return the package `av`; None if it is not installed."""
    try:
        import av
    except ImportError:
        return None
    return av


@contextmanager
def _errors(name: str, known: type[Exception]) -> Iterator[None]:
    """Turn every error of a decoder into a ValueError that begins with its name."""
    try:
        yield
    except known as error:  # the text of libsndfile's error may hold a memory address
        why = str(getattr(error, "error_string", error)).removeprefix("Error : ").strip().rstrip(".")
        raise ValueError(f"{name} cannot decode it: {why}") from error
    except Exception as error:
        raise ValueError(f"{name} cannot decode it: {error}") from error


def _stretch(rate: int, offset: float, seconds: float | None) -> tuple[int, int]:
    """Return the first frame, and the one after the last, of a stretch; the file may end earlier."""
    begin = round(offset * rate)
    return begin, sys.maxsize if seconds is None else begin + round(seconds * rate)


def _by_libsndfile(library: Any, parts: list[Stream], offset: float, seconds: float | None) -> tuple[Samples, int]:
    """Return the frames of a stretch, shape (channels, frames), and the rate."""
    found, kind, at, begin, end = list[Samples](), (0, 0), 0, 0, 0
    for part in parts:
        with library.SoundFile(io.BytesIO(part.data)) as file:
            if not found:
                kind = (file.samplerate, file.channels)
                begin, end = _stretch(file.samplerate, offset, seconds)
            elif (file.samplerate, file.channels) != kind:
                raise ValueError("its streams differ in rate or channels")
            first, frames = max(begin - at, 0), _frames(file, part)
            found.append(_read(file, part.skip + first, max(0, min(end - at, frames) - first)))
            at += frames
        if at >= end:
            break
    return np.concatenate(found, axis=1) if len(found) > 1 else found[0], kind[0]


def _frames(file: Any, part: Stream) -> int:
    """Return the number of frames of a stream; decodes it if the head does not state them."""
    stated: int = file.frames
    if stated >= _UNKNOWN or file.subtype in _ESTIMATED:
        stated = 0
        while count := len(file.read(_AT_ONCE, dtype="float32", always_2d=True)):
            stated += count
        file.seek(0)
    return max(0, stated - part.skip)


def _read(file: Any, begin: int, count: int) -> Samples:
    """Return `count` frames from `begin` on, shape (channels, frames). Raises ValueError if there are fewer."""
    before = 0
    if begin and count:
        seeks = file.seekable() and file.subtype not in _ESTIMATED
        before = min(begin, _BEFORE.get(file.format, 0)) if seeks else begin
        if seeks:
            file.seek(begin - before)
    samples: Samples = file.read(before + count, dtype="float32", always_2d=True)[before:]
    if len(samples) < count:
        missing_s = (count - len(samples)) / file.samplerate
        raise ValueError(f"it ends {missing_s:.3f} s before the end that its head states")
    return samples.T


def _length(library: Any, part: Stream) -> tuple[float, tuple[int, int]]:
    """Return the frames of a stream, nan if the last one does not decode, and its rate and channels."""
    with library.SoundFile(io.BytesIO(part.data)) as file:
        kind, frames = (file.samplerate, file.channels), float(_frames(file, part))
        if frames and file.seekable() and file.format not in _COUNTED:
            try:
                _read(file, int(frames) - 1, 1)
            except (library.SoundFileError, ValueError):
                return math.nan, kind
        return frames, kind


def _by_ffmpeg(data: bytes, demuxer: str) -> tuple[Samples, int]:
    """Return all frames of a file, shape (channels, frames), and the rate. Raises `MissingExtraError`, ValueError."""
    library = ffmpeg()
    if library is None:
        raise MissingExtraError(missing_decoder(data))
    with _errors("FFmpeg", library.error.FFmpegError), library.open(io.BytesIO(data), format=demuxer) as file:
        if not file.streams.audio:
            raise ValueError("it has no audio")
        same = library.AudioResampler(format="fltp")
        stream = file.streams.audio[0]
        frames = (converted for frame in file.decode(stream) for converted in same.resample(frame))
        found = [frame.to_ndarray() for frame in frames]
        if not found:
            raise ValueError("it has no frames")
        return np.concatenate(found, axis=1), int(stream.codec_context.sample_rate)
