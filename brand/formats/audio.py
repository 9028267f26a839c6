"""How long is an audio file, and what does it decode to?

libsndfile (package `soundfile`) decodes, stream by stream (`audiostreams`), so that no part of a file is lost. Kinds
that it does not open, such as MP4, are decoded by FFmpeg (package `av`) if that is installed. Both are imported when
the first file is decoded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError, MissingExtraError, cause_of, missing_extra
from brand.formats.audiostreams import Stream, check_frames, check_pages, streams
from brand.formats.values import Buffer

_FFMPEG: Final[tuple[tuple[int, bytes, str], ...]] = (
    (4, b"ftyp", "mov"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (28, b"Speex   ", "ogg"),
    (28, b"\x7fFLAC", "ogg"),
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
_STATING: Final = ("mov", "matroska", "tta", "wv")
"""Demuxers of files whose head states the length, which FFmpeg does not estimate; a cut file keeps it."""
_CUT_S: Final = 0.1
"""Seconds by which a file may be shorter than its head states, for delay and padding of its encoder."""
_OGG_FLAC_INFO: Final = 45
"""Offset of the facts about a stream of FLAC in Ogg; the last 36 bits of the first 18 bytes state the frames."""
_UNKNOWN: Final = 1 << 48
"""libsndfile states at least this many frames if it does not know the number."""
_AT_ONCE: Final = 1 << 20
_HEAD_BYTES: Final = 64
_NAMED: Final = "libsndfile cannot decode it: "
_ESTIMATED: Final = ("MPEG_LAYER_I", "MPEG_LAYER_II")
"""Subtypes whose length libsndfile estimates, and in which it does not find a frame exactly."""
_OPENED_AGAIN: Final = (*_ESTIMATED, "GSM610", "VORBIS")
"""Subtypes of which only the first read is right: they do not seek, or libsndfile then seeks to other frames."""
_BEFORE: Final = {"MP3": 64 * 1152}
"""Format -> frames that are decoded before a stretch, because a frame depends on those before it."""
_CHECKS: Final = {"OGG": check_pages, "MP3": check_frames}
"""Format -> how to find that pages or frames are missing."""
_COUNTED: Final = ("OGG", "MP3")
"""Formats whose frames `audiostreams` counts, and whose last frame is slow to find."""
_PLAIN: Final = (b"fmt \x10\0\0\0\1\0", b"fmt \x10\0\0\0\3\0")
"""Heads of WAV files of integers and floats: libsndfile states the frames that are there. To ask it is slow."""


class Waveform(NamedTuple):
    """A decoded audio file."""

    samples: NDArray[np.float32]
    """Shape (channels, frames), -1 to 1."""
    rate: int
    """Frames a second."""


def decode_audio(
    data: Buffer, offset: float = 0.0, seconds: float | None = None, *, chance: float | None = None
) -> Waveform:
    """Return the frames of a file as float32, from `offset` seconds on, `seconds` of them or all.

    With `chance`, from 0 to below 1, the stretch of `seconds` lies anywhere in the file: 0 is the first one that it can
    be, and each is equally likely. A stretch that the end of the file cuts is shorter. Raises ValueError if no decoder
    can read all of it, or if `offset` is not within the file; `MissingExtraError` if a package is missing.
    """
    with opened(bytes(data)) as audio:
        count = audio.frames if seconds is None else round(seconds * audio.rate)
        begin = round(offset * audio.rate)
        if chance is not None:
            begin = int(chance * max(1, audio.frames - count + 1))
        elif offset and begin >= audio.frames:
            raise ValueError(f"it has no frames from {offset:g} s on")
        end = min(audio.frames, begin + count)
        return Waveform(np.ascontiguousarray(audio.read(begin, end).T), audio.rate)


def duration(data: Buffer) -> float:
    """Return the seconds that `decode_audio` returns; nan if the file opens and does not decode to its end.

    Decodes nothing, unless the last frame does not decode by itself, or FFmpeg has to. Raises ValueError if no decoder
    opens it, and `MissingExtraError`.
    """
    with opened(bytes(data)) as audio:
        if audio.ends():
            return audio.frames / audio.rate
    try:
        whole = decode_audio(data)  # libsndfile decodes some damaged FLAC files, in which it cannot seek
    except ValueError:
        return math.nan
    return float(whole.samples.shape[1] / whole.rate)


class OpenAudio:
    """An open audio file, whose streams are one sequence of frames."""

    def __init__(self, library: Any, parts: list[Stream]) -> None:
        self._library, self._parts = library, parts
        self._files: list[Any] = []
        self._checked: set[int] = set()
        """Numbers of the streams of which no page or frame is missing."""
        try:
            self._files += map(self._open, parts)
            self._lengths = [_count(file, part) for file, part in zip(self._files, parts, strict=True)]
        except Exception:
            self.close()
            raise
        self.rate, self.channels = self._files[0].samplerate, self._files[0].channels
        self.frames = sum(self._lengths)

    def _open(self, part: Stream) -> Any:
        source = part.data if isinstance(part.data, mmap) else _Contents(part.data)
        source.seek(0)  # a mapped file may have been read
        return self._library.SoundFile(source)

    @property
    def subtype(self) -> str:
        """The name that libsndfile gives the coding of the samples."""
        return str(self._files[0].subtype)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def ends(self) -> bool:
        """Whether the last frame decodes, and all streams have one rate and number of channels."""
        try:
            last = self._files[-1]
            if not self.frames:
                self.read(0, 0)
            elif not _is_plain(self._parts[-1]) and last.format not in _COUNTED and last.seekable():
                self.read(self.frames - 1, self.frames)
            self._check_alike()
        except ValueError:
            return False
        return True

    def read(self, begin: int, end: int, dtype: str = "float32") -> NDArray[Any]:
        """Return frames, shape (frames, channels). Raises ValueError if one of them does not decode."""
        with libsndfile_errors():
            self._check_alike()
            found, at = [], 0
            for number, (file, part, length) in enumerate(zip(self._files, self._parts, self._lengths, strict=True)):
                low, high = max(begin - at, 0), min(end - at, length)
                check = _CHECKS.get(file.format)
                if check and number not in self._checked and (high > low or not length):  # none: a damaged last page
                    check(part.data)
                    self._checked.add(number)
                if high > low and file.subtype in _OPENED_AGAIN:
                    with self._open(part) as again:
                        found.append(_read(again, part.skip + low, high - low, dtype))
                elif high > low:
                    found.append(_read(file, part.skip + low, high - low, dtype))
                at += length
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros((0, self.channels), dtype)

    def _check_alike(self) -> None:
        if any((file.samplerate, file.channels) != (self.rate, self.channels) for file in self._files):
            raise ValueError("libsndfile cannot decode it: its streams differ in rate or channels")


class DecodedAudio:
    """A file that FFmpeg has decoded, with the interface of `OpenAudio`."""

    subtype = "FFMPEG"

    def __init__(self, samples: NDArray[np.float32], rate: int) -> None:
        self._samples, self.rate = samples, rate
        self.frames, self.channels = samples.shape

    def ends(self) -> bool:
        """Whether the last frame decodes: it did."""
        return True

    def read(self, begin: int, end: int, dtype: str = "float32") -> NDArray[Any]:
        """Return frames, shape (frames, channels)."""
        return self._samples[begin:end].astype(dtype, copy=False)


@contextmanager
def opened(data: bytes | mmap) -> Iterator[OpenAudio | DecodedAudio]:
    """Open an audio file that is in memory or mapped. Raises ValueError, `MissingExtraError`."""
    library = soundfile()
    demuxer = demuxer_of(data[:_HEAD_BYTES])
    if demuxer is not None:
        yield DecodedAudio(*_by_ffmpeg(bytes(data), demuxer))
        return
    with libsndfile_errors():
        audio = OpenAudio(library, streams(data))
    try:
        yield audio
    finally:
        audio.close()


def demuxer_of(data: Buffer) -> str | None:
    """Return the name of FFmpeg's demuxer for a file of a kind that libsndfile does not open; None for other files."""
    head = bytes(data[:_HEAD_BYTES])
    return next((name for at, signature, name in _FFMPEG if head.startswith(signature, at)), None)


def missing_decoder(data: Buffer) -> str:
    """Return in words which package is missing to decode a file; empty if none is missing."""
    name = demuxer_of(data)
    if name is None or ffmpeg() is not None:
        return ""
    return f"libsndfile does not open this kind of audio ({name}), and FFmpeg is missing: {INSTALL_FFMPEG}"


def soundfile() -> Any:
    """Return the library that decodes audio. Raises `MissingExtraError`."""
    try:
        import soundfile as library
    except (ImportError, OSError) as error:  # OSError: the package is installed, and libsndfile is not
        raise missing_extra(error, "decoding audio needs the package soundfile", "'brand-data[audio]'") from error
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


class _Contents(io.BytesIO):
    """A file in memory for libsndfile, which seeks anywhere in a damaged one.

    An exception in a callback would be printed to standard error.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move as `BytesIO` does; do nothing if the place is before the beginning."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return -1


@contextmanager
def libsndfile_errors() -> Iterator[None]:
    """Turn every error of libsndfile into a ValueError."""
    library = soundfile()
    try:
        yield
    except library.SoundFileError as error:  # its text may hold a memory address
        why = str(getattr(error, "error_string", error)).removeprefix("Error : ").strip().rstrip(".")
        raise ValueError(f"libsndfile cannot decode it: {why}") from error
    except BrandError:
        raise
    except Exception as error:
        why = cause_of(error).removeprefix(_NAMED)
        raise ValueError(f"{_NAMED}{why}") from error


def _is_plain(part: Stream) -> bool:
    return part.data[12:22] in _PLAIN


def _count(file: Any, part: Stream) -> int:
    """Return the number of frames of a stream; decodes it if the head does not state them."""
    stated: int = file.frames
    if stated >= _UNKNOWN or (not _is_plain(part) and file.subtype in _ESTIMATED):
        stated = 0
        while count := len(file.read(_AT_ONCE, dtype="float32", always_2d=True)):
            stated += count
        file.seek(0)
    return max(0, stated - part.skip)


def _read(file: Any, begin: int, count: int, dtype: str) -> NDArray[Any]:
    """Return `count` frames from `begin` on, shape (frames, channels). Raises ValueError if there are fewer."""
    before = begin
    if file.seekable() and file.subtype not in _ESTIMATED:
        before = min(begin, _BEFORE.get(file.format, 0))
        file.seek(begin - before)
    samples: NDArray[Any] = file.read(before + count, dtype=dtype, always_2d=True)[before:]
    if len(samples) < count:
        missing_s = (count - len(samples)) / file.samplerate
        raise ValueError(f"it ends {missing_s:.3f} s before the end that its head states")
    return samples


def _by_ffmpeg(data: bytes, demuxer: str) -> tuple[NDArray[np.float32], int]:
    """Return all frames of a file, shape (frames, channels), and the rate. Raises `MissingExtraError`, ValueError."""
    library = ffmpeg()
    if library is None:
        raise MissingExtraError(missing_decoder(data))
    try:
        with library.open(io.BytesIO(data), format=demuxer) as file:
            if not file.streams.audio:
                raise ValueError("it has no audio")
            same, stream = library.AudioResampler(format="fltp"), file.streams.audio[0]
            frames = (converted for frame in file.decode(stream) for converted in same.resample(frame))
            found = [frame.to_ndarray().T for frame in frames]
            if not found:
                raise ValueError("it has no frames")
            samples, rate = np.concatenate(found), int(stream.codec_context.sample_rate)
            missing_s = _stated_s(data, demuxer, file, rate) - len(samples) / rate
            if missing_s > _CUT_S:
                raise ValueError(f"it ends {missing_s:.3f} s before the end that its head states")
            return samples, rate
    except Exception as error:
        raise ValueError(f"FFmpeg cannot decode it: {error}") from error


def _stated_s(data: bytes, demuxer: str, file: Any, rate: int) -> float:
    """Return the seconds that the head of a file states, before FFmpeg decodes it; 0 if it states none."""
    if data[28:33] == b"\x7fFLAC":
        return (int.from_bytes(data[_OGG_FLAC_INFO + 10 : _OGG_FLAC_INFO + 18]) & ((1 << 36) - 1)) / rate
    stream = file.streams.audio[0]
    if demuxer not in _STATING:
        return 0.0
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return file.duration / 1e6 if file.duration and len(file.streams) == 1 else 0.0
