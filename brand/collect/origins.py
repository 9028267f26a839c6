"""Which samples were added already? A segment remembers the checksums of its samples as they were when they were added.

`PartOf.origin` is one value for each append. A segment that several were merged into has the first 64 bits of theirs in
a list (`PartOf.merged`), so the memory of 10,000 appends takes 80 kB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import LayoutError
from brand.formats.version import PartOf, Version
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.segments import VERIFY_HINT, read_values


def origin_of(data: StoredDataSet) -> str:
    """Return a text that identifies these samples, whatever their order on storage and the names of later classes."""
    rows = data.rows(0, len(data))
    by_index = np.empty(len(rows), "<u8")
    by_index[rows["index"]] = rows["checksum"]
    return xxhash.xxh3_128_hexdigest(by_index.tobytes())


def merged_origins(folder: Path, parts: Sequence[PartOf]) -> NDArray[np.uint64]:
    """Return, ascending, the numbers of all origins of some segments, which become one. Raises a `FormatError`."""
    own = np.array([_number(part.origin) for part in parts], np.uint64)
    return np.unique(np.concatenate([own, *(_earlier(folder, part) for part in parts)]))


def holder_of(folder: Path, version: Version, origin: str) -> PartOf | None:
    """Return the segment to which these samples were added; None if there is none. Raises a `FormatError`."""
    number = np.uint64(_number(origin))
    for part in version.parts:
        if part.origin == origin or number in _earlier(folder, part):
            return part
    return None


def _number(origin: str) -> int:
    return int(origin[:16], 16)


def _earlier(folder: Path, part: PartOf) -> NDArray[np.uint64]:
    """Return the numbers of the origins of the segments that were merged into this one, ascending."""
    if part.merged is None:
        return np.empty(0, np.uint64)
    values: NDArray[np.uint64] = read_values(folder, part.merged, np.dtype("<u8"))
    if (values[1:] <= values[:-1]).any():
        raise LayoutError("the origins do not rise", path=folder / part.merged.name, hint=VERIFY_HINT)
    return values
