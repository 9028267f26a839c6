"""What will be written? Pure decisions from a probe and the options: compression, chunk size, header, identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from brand.errors import UsageError
from brand.formats.compression import Compression, Mode, choose
from brand.formats.constants import MAX_CHUNK_SAMPLES
from brand.formats.header import Header, Schema, canonical_json, pack_header

USUAL_SAMPLES: Final = 64
"""Samples per chunk, as the paper recommends (section 5.5)."""
LEAST_BYTES: Final = 4 << 20
"""The smallest mean chunk: if samples are small, a chunk holds more than the usual number."""
_MARGIN: Final = 0.97
"""Estimated sizes are multiplied by this factor, so that the mean chunk reaches `LEAST_BYTES` in spite of errors."""


@dataclass(frozen=True)
class Layout:
    """The size of chunks that a user asks for: in samples or in bytes, or neither.

    Raises `UsageError` if both are given.
    """

    chunk_size: int | None = None
    """Samples per chunk."""
    chunk_bytes: int | None = None
    """Target for the mean chunk, in stored bytes."""

    def __post_init__(self) -> None:
        if self.chunk_size is not None and self.chunk_bytes is not None:
            raise UsageError("give a chunk size in samples or in bytes, not both")
        if self.chunk_size is not None and not 1 <= self.chunk_size <= MAX_CHUNK_SAMPLES:
            raise UsageError(f"chunk size {self.chunk_size}: a chunk has 1 to {MAX_CHUNK_SAMPLES:,} samples")
        if self.chunk_bytes is not None and self.chunk_bytes < 1:
            raise UsageError(f"chunk bytes {self.chunk_bytes}: a chunk has at least one byte")


@dataclass(frozen=True)
class ChunkPlan:
    """All decisions that are made before the first chunk is written."""

    header: Header
    compression: Compression
    data_set_id: bytes
    packed_header: bytes
    raw_bytes: int
    """Raw bytes of all records; an estimate if the source does not know them."""

    @property
    def stored_bytes(self) -> int:
        """Estimate of the stored bytes."""
        return round(self.raw_bytes * self.compression.expected_ratio)


def make_plan(
    *,
    samples: int,
    raw_bytes: int | None,
    probe: Sequence[bytes],
    compression: Mode | Compression,
    layout: Layout,
    schema: Schema,
    classes: tuple[str, ...] | None,
    seed: int,
    source: Mapping[str, str],
    fingerprint: str,
) -> ChunkPlan:
    """Decide everything.

    `probe` holds records of randomly placed samples. `raw_bytes` is None if the source does not know it; the probe
    then gives an estimate. A mode of compression is judged by the probe.
    """
    probe_bytes = sum(map(len, probe))
    raw = raw_bytes if raw_bytes is not None else round(probe_bytes / len(probe) * samples)
    chunks = max(1, min(-(-samples // USUAL_SAMPLES), raw // LEAST_BYTES))
    compression = compression if isinstance(compression, Compression) else choose(compression, probe, samples, chunks)
    exact = raw_bytes is not None and compression.codec == "none"
    size = chunk_samples(samples, raw * compression.expected_ratio * (1 if exact else _MARGIN), layout)
    header = Header(samples, size, schema, classes, compression.codec, seed, dict(source))
    seen = xxhash.xxh3_128()
    for record in probe:
        seen.update(record)
    identity = canonical_json(
        {
            "header": header.to_json(),
            "source": fingerprint,
            "probe": seen.hexdigest(),
            "dictionary": compression.dictionary.hex(),
        }
    )
    return ChunkPlan(header, compression, xxhash.xxh3_128_digest(identity), pack_header(header), raw)


def chunk_samples(samples: int, stored_bytes: float, layout: Layout) -> int:
    """Return the number of samples in a chunk.

    Chunks are filled evenly: the last one is never a small rest if the others can be a little larger.
    """
    if layout.chunk_size is not None:
        return layout.chunk_size
    if layout.chunk_bytes is not None:
        chunks = max(1, round(stored_bytes / layout.chunk_bytes))
        return min(MAX_CHUNK_SAMPLES, -(-samples // chunks))
    chunks = max(1, int(stored_bytes / LEAST_BYTES))
    return min(MAX_CHUNK_SAMPLES, max(USUAL_SAMPLES, -(-samples // chunks)))
