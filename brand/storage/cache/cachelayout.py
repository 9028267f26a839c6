"""What lies in a cache folder, and how is it written down? Names and bytes, without I/O.

    DIR/brand-cache/<id of the data set>/
        LOCK                    the one server that writes has a lock on it (flock)
        cache.json              what the cache is of
        chunks/00000017.part    pieces of chunk file 17, at the offsets that they have there
        held.bits               which samples the parts hold

A file that is damaged, of another version or of another data set counts as missing. A cache may always be empty.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

CACHES_NAME: Final = "brand-cache"
"""The folder, below the one that the user gives, with one cache for each data set."""
LOCK_NAME: Final = "LOCK"
FACTS_NAME: Final = "cache.json"
HELD_NAME: Final = "held.bits"
PARTS_NAME: Final = "chunks"
MOST_FACTS: Final = 1 << 12
"""The most bytes of a `cache.json`."""

_FORMAT: Final = "brand cache"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 8
_CACHE: Final = re.compile(r"[0-9a-f]{32}")


def part_name(number: int) -> str:
    """Name of the file with pieces of this chunk."""
    return f"{number:08d}.part"


def is_cache_name(name: str) -> bool:
    """Whether a folder's name is the id of a data set."""
    return _CACHE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What a cache is of. Where any of this differs, its bytes are of no use."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    digest: str
    """Digest of the index: it says where in the chunks each sample lies."""

    def pack(self) -> bytes:
        """The bytes of `cache.json`."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> CacheFacts | None:
        """Inverse of `pack`; None for any other bytes."""
        try:
            value = json.loads(data)
            if (value.pop("format"), value.pop("version")) != (_FORMAT, _VERSION):
                return None
            found = cls(**value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        texts, numbers = (found.data_set, found.digest), (found.samples, found.chunk_size)
        right = all(isinstance(text, str) for text in texts) and all(type(number) is int for number in numbers)
        return found if right else None


def pack_held(held: NDArray[np.bool_]) -> bytes:
    """The bytes of `held.bits`: a bit for each sample, then their checksum."""
    bits = np.packbits(held).tobytes()
    return bits + xxhash.xxh3_64_digest(bits)


def unpack_held(data: bytes, samples: int) -> NDArray[np.bool_]:
    """Which samples are held, shape (samples,); none where these bytes are not what `pack_held` makes."""
    bits, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(bits) != held_bytes(samples) - _DIGEST_BYTES or xxhash.xxh3_64_digest(bits) != digest:
        return np.zeros(samples, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=samples).astype(np.bool_)


def held_bytes(samples: int) -> int:
    """Size of `held.bits`."""
    return -(-samples // 8) + _DIGEST_BYTES
