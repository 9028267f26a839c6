"""How long does a storage take to read a number of bytes in a number of operations?

Built-in storages have two limits: bytes and operations per second, for all nodes together. A measured profile (`brand
profile`) has a curve over the size of a read. In a few built-in storages small reads cost as much as large ones, which
makes plain random reading slow.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.publish import storage_errors
from brand.storage.profile.profile import (
    DEFAULT_STRIPE_BYTES,
    Profile,
    bandwidth,
    busy_bytes,
    gap_bytes,
    is_assumed,
    load_profile,
    stripe_bytes,
)


class Storage(Protocol):
    """A storage that all nodes share.

    Brand reads `stripe_bytes` at once from it, and `busy_bytes` in flight keep it busy (0 if that is not known).
    """

    @property
    def name(self) -> str: ...
    @property
    def stripe_bytes(self) -> int: ...
    @property
    def busy_bytes(self) -> int: ...
    def gap_bytes(self, read_bytes: float) -> int:
        """Return the bytes that are read in the time of one more read of `read_bytes`, as a server assumes."""
        ...

    def seconds(self, size: NDArray[np.float64], operations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds for `size` bytes in `operations` operations, many in flight, same shape."""
        ...


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """A storage with two limits: a read takes the longer of its two times. Nothing was measured."""

    name: str
    bytes_per_s: float
    operations_per_s: float = math.inf

    @property
    def stripe_bytes(self) -> int:
        return DEFAULT_STRIPE_BYTES

    @property
    def busy_bytes(self) -> int:
        return 0

    def gap_bytes(self, read_bytes: float) -> int:
        return gap_bytes(None, read_bytes)

    def seconds(self, size: NDArray[np.float64], operations: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(size / self.bytes_per_s, operations / self.operations_per_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """A storage that `brand profile` has measured."""

    name: str
    profile: Profile

    @property
    def stripe_bytes(self) -> int:
        """The smallest read that reaches 90 % of the sequential bandwidth."""
        return stripe_bytes(self.profile)

    @property
    def busy_bytes(self) -> int:
        """Bytes of the largest number of parallel reads of that size that still adds bandwidth."""
        return busy_bytes(self.profile)

    def gap_bytes(self, read_bytes: float) -> int:
        return gap_bytes(self.profile, read_bytes)

    def seconds(self, size: NDArray[np.float64], operations: NDArray[np.float64]) -> NDArray[np.float64]:
        return size / bandwidth(self.profile, size / np.maximum(operations, 1.0))


BUILT_IN: Final[dict[str, Storage]] = {
    each.name: each
    for each in (
        StorageLimits("nvme", 2.2e9, 60_000),
        StorageLimits("nas", 120e6, 400),
        StorageLimits("hdd", 160e6, 150),
        StorageLimits("s3", 1.2e9, 5_500),
    )
}
"""Bytes and operations per second: a good local SSD, a NAS at 1 Gbit/s, a disk, one prefix of an object store."""
DEFAULT: Final = "nas"
ASSUMED_STORE: Final = "store (assumed)"
"""The name of a store that nobody has measured."""


def storage_named(text: str, option: str) -> Storage:
    """Return the storage that the user names in an option.

    A built-in name, MB/s, `MB/s:operations/s`, or a profile's file. Raises `UsageError` if it is none of these.
    """
    if text in BUILT_IN:
        return BUILT_IN[text]
    numbers = text.split(":")
    if all(_positive(number) for number in numbers) and len(numbers) <= 2:
        speed = float(numbers[0])
        return StorageLimits(text, speed * 1e6, float(numbers[1]) if numbers[1:] else math.inf)
    if Path(text).is_file():
        return Measured(Path(text).stem, _profile_in(Path(text), option))
    raise UsageError(
        f"{option} {text}: give {', '.join(BUILT_IN)}, MB/s as in 500, MB/s and operations/s as in 500:2000, or a "
        "file that `brand profile` has stored"
    )


def storage_below(where: Path | str) -> Storage | None:
    """Return the storage that holds a data set, if `brand profile` has measured it; else None.

    `where`: its path, or its URL. A store that nobody has measured is assumed to be a typical one.
    """
    profile = load_profile(where)
    if profile is None:
        return None
    return Measured(ASSUMED_STORE if is_assumed(profile) else "as measured", profile)


def _profile_in(file: Path, option: str) -> Profile:
    with storage_errors(file, "cannot read"):
        text = file.read_bytes()
    try:
        return Profile.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} {file}: {error}") from None


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
