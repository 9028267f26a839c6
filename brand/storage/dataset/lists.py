"""The files of a collection that hold numbers: lists of indices, and the values of overlays. Are they intact?

A version of a collection names each of these files with its length and its checksum (`Listed`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import ChecksumError, LayoutError, MissingFileError, UnreadableError
from brand.formats.version import Listed

VERIFY_HINT: Final = "`brand verify` checks all segments"


def read_list(folder: Path, listed: Listed | None, end: int) -> NDArray[np.int64]:
    """Return the indices of a list, each smaller than `end`; none if there is no list. Raises a `FormatError`."""
    if listed is None:
        return np.empty(0, np.int64)
    values: NDArray[np.int64] = read_values(folder, listed, np.dtype("<u8")).astype(np.int64)
    if len(values) and (int(values[-1]) >= end or int(values[0]) < 0 or (np.diff(values) < 1).any()):
        raise LayoutError("the indices do not rise, or are out of range", path=folder / listed.name, hint=VERIFY_HINT)
    return values


def read_values(folder: Path, listed: Listed, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the numbers in a list's file, compared with its checksum. Raises a `FormatError`."""
    path, size = folder / listed.name, 0
    try:
        size = path.stat().st_size
        # Checked before the file is read, so that a damaged file cannot exhaust memory.
        if size > listed.count * dtype.itemsize + (1 << 16):
            raise LayoutError("a list larger than it should be", path=path, found=size, hint=VERIFY_HINT)
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError("a list is missing", path=path, hint=VERIFY_HINT) from None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=VERIFY_HINT) from error
    found = xxhash.xxh3_128_hexdigest(data)
    if found != listed.digest:
        raise ChecksumError("checksum of the list", path=path, expected=listed.digest, found=found, hint=VERIFY_HINT)
    start = size - listed.count * dtype.itemsize
    if start < 0 or data[:6] != b"\x93NUMPY":
        raise LayoutError("a list of another length", path=path, expected=listed.count, hint=VERIFY_HINT)
    return np.frombuffer(data, dtype, listed.count, start)
