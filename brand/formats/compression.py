"""Is compression worthwhile for these samples, and how is one record stored?

`choose` evaluates a probe, which holds records of randomly chosen samples. If samples are small, half of the probe
trains a dictionary. The other half measures the savings of zstandard with and without the dictionary. A data set is
stored raw if compression saves less than 10 %. In a compressed data set, a sample that saves less than 10 % is also
stored raw, so JPEG files next to captions cost nothing to decompress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.record import Records
from brand.formats.values import Buffer, lengths
from brand.native import CORE, borrowed

Mode = Literal["auto", "none", "zstd"]
MODES: Final[tuple[Mode, ...]] = ("auto", "none", "zstd")

LEVEL: Final = 3
DICTIONARY_BYTES: Final = 16 << 10
SMALL_SAMPLE_BYTES: Final = 16 << 10
"""Samples with a smaller mean size get a dictionary: each is too short to compress well by itself."""
_TRUSTED_BYTES: Final = 1 << 20
_TRUSTED_RATIO: Final = 256
_BULK: Final = {"multi_compress_to_buffer", "multi_decompress_to_buffer"} <= zstandard.backend_features
"""Whether zstandard can pack and unpack many frames in one call. It cannot if it was built for the system's zstd."""
_LARGEST_KEPT: Final = (32 << 20) - (64 << 10)
"""Maximum block size from which glibc adapts its threshold (mallopt(3), M_MMAP_THRESHOLD)."""

_MAX_BLOCK: Final = 128 << 10
"""Maximum bytes of one block of a frame."""

_DESCRIPTOR_AT: Final = 4
_LONGEST_HEADER: Final = 18
_BLOCK_HEADER: Final = 3
_CHECKSUM: Final = 4
_REPEATED: Final = 1
"""Kind of a block that is one repeated byte."""

WORTH: Final = 0.9
"""A data set is compressed if the result is at most this share of the raw bytes."""


@dataclass(frozen=True)
class Compression:
    """Compression settings of a data set."""

    codec: Literal["none", "zstd"]
    dictionary: bytes = b""
    worth: float = WORTH
    """A sample is stored compressed if that takes at most this share of its raw size."""
    expected_ratio: float = 1.0
    """Stored over raw bytes, as measured on the probe."""


class Compressor:
    """Packs records. Not thread-safe: each worker has its own."""

    def __init__(self, compression: Compression) -> None:
        self._worth = compression.worth
        self._zstd = _compressor(compression.dictionary) if compression.codec == "zstd" else None

    def pack(self, records: Records) -> list[Buffer]:
        """Return the stored bytes of each record: a zstd frame if that is worthwhile, else the record itself.

        One call packs all records if zstandard supports that. It makes the same frames as one call for each record.
        """
        if self._zstd is None:
            return records.pieces()
        packed = _frames(self._zstd, records)
        sizes = lengths(packed)
        for number in np.flatnonzero((sizes >= records.sizes) | (sizes > self._worth * records.sizes)).tolist():
            packed[number] = records.view(number)
        return packed


class Decompressor:
    """Unpacks stored bytes. Not thread-safe: each thread has its own. Raises ValueError for an invalid `dictionary`."""

    def __init__(self, dictionary: bytes = b"") -> None:
        try:
            data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
            self._zstd = zstandard.ZstdDecompressor(dict_data=data)
        except zstandard.ZstdError as error:
            raise ValueError(f"not a zstd dictionary: {error}") from error
        lent = borrowed.zstd() if CORE is not None else ()
        self._core = CORE.unpacker(lent, dictionary) if CORE is not None and lent else None

    def unpack(self, stored: Buffer, raw_size: int) -> Buffer:
        """Return the record. Raises ValueError, before it allocates, if `stored` is no frame of `raw_size` bytes."""
        if len(stored) == raw_size:
            return stored
        try:
            if zstandard.frame_content_size(stored) != raw_size:
                raise ValueError(f"the zstd frame does not hold {raw_size} bytes")
            # A damaged size must not allocate gigabytes.
            if raw_size > _TRUSTED_BYTES + _TRUSTED_RATIO * len(stored):
                return self._unpack_in_steps(stored, raw_size)
            return self._zstd.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"not a zstd frame of this data set: {error}") from error

    def unpack_all(self, stored: Records, raw_sizes: NDArray[np.int64]) -> Records:
        """Return the records of samples, from the stored bytes of each.

        One call unpacks all frames of a plausible size, or, without the core, all simple frames; other frames are
        unpacked one by one. Raises ValueError as `unpack` does, but the message does not name the sample at fault.
        """
        packed = stored.sizes != raw_sizes
        if not packed.any():
            return stored
        if self._core is not None:
            in_bulk = packed & (raw_sizes <= _TRUSTED_BYTES)
        else:
            in_bulk = packed & _BULK & (raw_sizes <= _MAX_BLOCK)
            in_bulk[in_bulk] = _simple_frames(stored[in_bulk])
        together, alone, raw = (np.flatnonzero(some) for some in (in_bulk, packed & ~in_bulk, ~packed))
        pieces = [self.unpack(stored.view(number), int(raw_sizes[number])) for number in alone.tolist()]
        order = np.concatenate([together, alone])
        unpacked_at = np.empty(len(stored), np.int64)
        unpacked_at[order] = np.cumsum(raw_sizes[order]) - raw_sizes[order]
        if len(raw):  # raw records are copied in one piece, with the bytes between them
            starts, sizes = stored.starts[raw], stored.sizes[raw]
            first, end = int(starts.min()), int((starts + sizes).max())
            unpacked_at[raw] = int(raw_sizes[order].sum()) + starts - first
            pieces.append(stored.memory.data[first:end])
        unpacked = self._unpack_together(stored[together], raw_sizes[together])
        if not isinstance(unpacked, np.ndarray) or pieces:
            parts: Any = (unpacked,) if isinstance(unpacked, np.ndarray) else unpacked
            unpacked = np.frombuffer(bytearray().join(chain(parts, pieces)), np.uint8)
        return Records(unpacked, unpacked_at, raw_sizes)

    def _unpack_together(self, frames: Records, raw_sizes: NDArray[np.int64]) -> Any:
        """Return the records of frames, one after the other. Releases the interpreter's lock once for all of them."""
        if not len(frames):  # zstandard divides by their number
            return ()
        _keep_freed_memory()
        if CORE is not None and self._core is not None:
            made = np.empty(int(raw_sizes.sum()), np.uint8)
            CORE.unpack(self._core, frames.memory, frames.starts, frames.sizes, raw_sizes, made)
            return made
        try:
            return self._zstd.multi_decompress_to_buffer(
                _segments(frames), raw_sizes.astype("=u8").tobytes(), threads=1
            )
        except zstandard.ZstdError as error:
            raise ValueError(f"not zstd frames of this data set: {error}") from error

    def _unpack_in_steps(self, stored: Buffer, raw_size: int) -> bytes:
        """Unpack a frame that announces an implausible size: memory grows with the bytes that are actually unpacked."""
        pieces, size = [], 0
        with self._zstd.stream_reader(stored) as reader:
            while piece := reader.read(1 << 20):
                size += len(piece)
                if size > raw_size:
                    break
                pieces.append(piece)
        if size != raw_size:
            raise ValueError(f"the zstd frame does not hold {raw_size} bytes")
        return b"".join(pieces)


@cache
def _keep_freed_memory() -> None:
    """Make glibc keep memory that this process frees, up to 64 MB a thread, as after any array of this size.

    Each call that unpacks many frames takes some MB and soon frees them. By default glibc returns them to the kernel,
    which clears each page again for the next call: a fifth of the time.
    """
    np.empty(_LARGEST_KEPT, np.uint8)


def choose(mode: Mode, probe: Sequence[bytes], samples: int, chunks: int) -> Compression:
    """Choose the compression from a probe. `samples` and `chunks` weigh the dictionary, which is in every chunk."""
    if mode not in MODES:
        raise UsageError(f"compression {mode!r}: there are {', '.join(MODES)}")
    raw = sum(map(len, probe))
    if mode == "none" or raw == 0:
        return Compression("none")
    worth = WORTH if mode == "auto" else 1.0
    # Judged on records that the dictionary was not trained on, which would flatter it.
    learn, judge = probe[::2], probe[1::2] or probe
    dictionary = train(learn) if raw / len(probe) < SMALL_SAMPLE_BYTES else b""
    candidates = [Compression("zstd", d, worth, _ratio(d, worth, judge)) for d in dict.fromkeys((b"", dictionary))]
    total = raw / len(probe) * samples

    def cost(candidate: Compression) -> float:
        return candidate.expected_ratio * total + chunks * len(candidate.dictionary)

    best = min(candidates, key=cost)
    if mode == "auto" and cost(best) > WORTH * total:
        return Compression("none")
    return best


def _compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    if data is not None:
        data.precompute_compress(level=LEVEL)
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=data, write_content_size=True)


def _frames(zstd: zstandard.ZstdCompressor, records: Records) -> list[Any]:
    if not _BULK or not records.sizes.any():  # zstandard refuses to pack nothing at all
        return [zstd.compress(record) for record in records.pieces()]
    frames: Any = zstd.multi_compress_to_buffer(_segments(records), threads=1)
    return list(frames)


def _segments(records: Records) -> zstandard.BufferWithSegments:
    segments = np.stack([records.starts, records.sizes], axis=1).astype("=u8").tobytes()
    return zstandard.BufferWithSegments(records.memory.data, segments)


def train(records: Sequence[bytes]) -> bytes:
    """Return a dictionary for samples like these. It holds pieces of them. It is empty if they are too few."""
    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, list(records), k=256, d=8, level=LEVEL).as_bytes()
    except zstandard.ZstdError:  # too few or too uniform samples to train a dictionary
        return b""


def _ratio(dictionary: bytes, worth: float, records: Sequence[bytes]) -> float:
    packed = Compressor(Compression("zstd", dictionary, worth)).pack(Records.of(records))
    return sum(map(len, packed)) / max(1, sum(map(len, records)))


def _header_bytes(descriptor: int) -> int:
    """Return the length of a frame's header, by its fifth byte; 0 if the header states no content size."""
    single = descriptor >> 5 & 1
    content_size = (single, 2, 4, 8)[descriptor >> 6]
    return 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + content_size if content_size else 0


_HEADER_BYTES: Final = np.array([_header_bytes(descriptor) for descriptor in range(256)])


def _simple_frames(stored: Records) -> NDArray[np.bool_]:
    """Return whether the stored bytes of each sample, if they are a zstd frame, are a simple one. Shape (samples,).

        magic (4) | descriptor (1) | window (0 or 1) | dictionary id (0 to 4) | content size (1 to 8) | block | checksum

    (RFC 8878, section 3.1.1.) A simple frame states its content size, and its first block ends at the end of its stored
    bytes. So it has one block, holds at most 128 KiB, and nothing follows it; the call that unpacks many frames at once
    checks none of this. The bytes may be anything: zstd checks the magic and the content.
    """
    if not stored.memory.size:
        return np.zeros(len(stored), np.bool_)
    front = stored.memory.take(stored.starts[:, None] + np.arange(_LONGEST_HEADER + _BLOCK_HEADER), mode="clip")
    descriptors = front[:, _DESCRIPTOR_AT]
    headers = _HEADER_BYTES[descriptors]
    low, middle, high = (_column(front, headers + number) for number in range(_BLOCK_HEADER))
    block = low | middle << 8 | high << 16
    kind, length = block >> 1 & 3, block >> 3
    ends = headers + _BLOCK_HEADER + np.where(kind == _REPEATED, 1, length) + (descriptors >> 2 & 1) * _CHECKSUM
    simple: NDArray[np.bool_] = (headers > 0) & (ends == stored.sizes)
    return simple


def _column(front: NDArray[np.uint8], at: NDArray[Any]) -> NDArray[np.int64]:
    """Return one byte of each row."""
    column: NDArray[np.int64] = front[np.arange(len(front)), at].astype(np.int64)
    return column
