"""Persistent numbers and names (docs/reference/format.md): never change one, never reuse one for another meaning."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

MAGIC: Final = b"\x89BRAND\r\n"
VERSION_MAJOR: Final = 1
VERSION_MINOR: Final = 0
VERSION_OF_COLLECTIONS: Final = 1
"""Minor version of the files of a collection; chunks and manifests have `VERSION_MINOR`."""
VERSION_OF_MERGES: Final = 3
"""Minor version of a collection's files with segments that several were merged into."""
VERSION_OF_LISTS: Final = 2
"""Minor version of chunks and manifests whose schema has a list codec."""
VERSION_OF_FACTS: Final = 2
"""Minor version of manifests with facts that were noticed, and of data sets whose fields have decode defaults."""

PREAMBLE_SIZE: Final = 64
PREAMBLE_CHECKSUM_AT: Final = 56

MAX_HEADER: Final = 16 << 20
MAX_HEADER_UNPACKED: Final = 64 << 20
MAX_DICTIONARY: Final = 1 << 20
MAX_MANIFEST: Final = 64 << 20
MAX_SHARE: Final = 1 << 20
MAX_SAMPLE: Final = (1 << 32) - 1
MAX_CHUNK_SAMPLES: Final = 1 << 24
MAX_SAMPLES: Final = 1 << 48
MAX_CHUNKS: Final = 10**8
MAX_NODES: Final = 1 << 16
MAX_PARTS: Final = 1 << 16
MAX_VERSIONS: Final = (1 << 32) - 1
MAX_FIELDS: Final = 64
MAX_DIMENSIONS: Final = 32

ROW: Final = np.dtype([("offset", "<u8"), ("size", "<u4"), ("raw_size", "<u4"), ("checksum", "<u8"), ("index", "<u8")])
"""One row of a chunk's table and of `index/samples.npy`."""

NOTHING: Final[Mapping[str, float]] = MappingProxyType({"int": np.iinfo(np.int64).min, "float": np.nan})
"""Value of a column for a deleted sample, and of an overlay for a sample without a value, by codec."""

CHUNK_ROW: Final = np.dtype([("file_size", "<u8"), ("checksum", "<u8")])
"""One row of `index/chunks.npy`."""

ARRAY_DTYPES: Final[dict[int, np.dtype[np.generic]]] = {
    1: np.dtype("|b1"),
    2: np.dtype("|i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("|u1"),
    7: np.dtype("<u2"),
    8: np.dtype("<u4"),
    9: np.dtype("<u8"),
    10: np.dtype("<f2"),
    11: np.dtype("<f4"),
    12: np.dtype("<f8"),
    13: np.dtype("<c8"),
    14: np.dtype("<c16"),
}
"""dtype numbers of `ndarray` payloads."""

MANIFEST_NAME: Final = "brand.json"
SHARE_NAME: Final = "share.json"
VERSIONS_NAME: Final = "versions"
"""Folder of the versions of a collection."""
WORK_NAME: Final = ".brand-work"
SHARED_PLAN_NAME: Final = "plan"
"""Folder in the work folder: the plan of a conversion that several machines work on."""
SHARE_WORK_NAME: Final = ".brand-partition"
COPY_WORK_NAME: Final = ".brand-copy"
EXTRAS_NAME: Final = "extras.zip"
SKIPPED_NAME: Final = "skipped.tsv"
SAMPLES_NAME: Final = "index/samples.npy"
PLACE_NAME: Final = "index/place.npy"
CHUNKS_NAME: Final = "index/chunks.npy"

EXTRAS_METHODS: Final = (0, 8)
"""Compression methods of files in `extras.zip`: `zipfile.ZIP_STORED` and `ZIP_DEFLATED`."""
_EXTRAS_FREE_BYTES: Final = 1 << 20
_EXTRAS_RATIO: Final = 64
"""Maximum compression ratio. Texts reach a tenth of it; only repetition exceeds it."""

# Names in states and plans that keep the spelling of earlier versions, so that states stay equal:
#   order of a state      `protocol` (the order's name), `part` (digest of the subset)
#   batches of a state    `size`, `most`, `row`, `rows` (the limits of `LengthBatchSampler` and `PackedBatchSampler`)
#   plan of a conversion  `parts` (number of tasks)
# Names that are read, and no longer written:
OLD_ORDERS: Final[Mapping[str, str]] = MappingProxyType({"minio": "uniform"})
"""The order of an earlier version -> the order that has the same plans."""


def chunk_name(number: int) -> str:
    """Return the path of a chunk below the data set's directory."""
    return f"chunks/{number:08d}.brand"


def column_name(field: str) -> str:
    """Return the path of a field's column below the data set's directory."""
    return f"columns/{field}.npy"


def most_unpacked(size: int) -> int:
    """Return the maximum bytes to which an `extras.zip` of `size` bytes may unpack; larger files are stored.

    The manifest has the size of the archive, so a reader knows the limit beforehand.
    """
    return _EXTRAS_FREE_BYTES + _EXTRAS_RATIO * size
