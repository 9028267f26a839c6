"""Which files does a cache folder have, and what is their format? Names and bytes, without I/O.

    DIR/brand-cache/<id of the data set>/
        LOCK                    the one server that writes holds a lock on it (flock)
        cache.json              the identity of the cached data
        chunks/00000017.part    pieces of chunk file 17, at the offsets that they have there
        held.bits               the samples that the part files hold, as bits

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
"""Maximum bytes of a `cache.json`."""

_FORMAT: Final = "brand cache"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 8
_CACHE: Final = re.compile(r"[0-9a-f]{32}")


def part_name(number: int) -> str:
    """Return the name of the file with pieces of this chunk."""
    return f"{number:08d}.part"


def is_cache_name(name: str) -> bool:
    """Return whether a folder's name is the id of a data set."""
    return _CACHE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Identity of the cached data. If any field differs, the cached bytes are useless."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    digest: str
    """Digest of the index, which gives the position of each sample in the chunks."""

    def pack(self) -> bytes:
        """Return the bytes of `cache.json`."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> CacheFacts | None:
        """Parse the bytes of `cache.json`. Return None for any other bytes."""
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
    """Return the bytes of `held.bits`: a bit for each sample, then their checksum."""
    bits = np.packbits(held).tobytes()
    return bits + xxhash.xxh3_64_digest(bits)


def unpack_held(data: bytes, samples: int) -> NDArray[np.bool_]:
    """Return which samples are held, shape (samples,); none if these bytes were not made by `pack_held`."""
    bits, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(bits) != held_bytes(samples) - _DIGEST_BYTES or xxhash.xxh3_64_digest(bits) != digest:
        return np.zeros(samples, np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=samples).astype(np.bool_)


def held_bytes(samples: int) -> int:
    """Return the size of `held.bits`."""
    return -(-samples // 8) + _DIGEST_BYTES
