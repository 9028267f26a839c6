"""How fast is a storage, by read size and reads in flight, and how long is a stripe on it?

    measured table -> a curve for each number of reads in flight, smoothed so that it never falls
                   -> the smallest sufficient number of reads in flight (`best_depth`)
                   -> the smallest read that reaches 90 % of the sequential bandwidth (`stripe_bytes`)
                   -> samples (`stripe_length`)
                   -> minimum memory for read-ahead (`busy_bytes`)

All of this is pure. Each storage has one file for its profile below the user's cache folder (`load_profile`,
`save_profile`). A profile only makes reads faster, so a file that is damaged, foreign or of another version is ignored,
with a line in the log. `brand.storage.profile.probe` measures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import BrandError
from brand.formats.publish import publish_bytes, storage_errors
from brand.printable import printable
from brand.storage.io.device import device_name, mount_of
from brand.stores.url import is_url, parse_url
from brand.usercache import user_cache

DEFAULT_STRIPE_BYTES: Final = 512 << 10
"""Read size in bytes for an unknown storage: large enough for most networks and solid-state disks."""
ENOUGH: Final = 0.9
"""Share of the sequential bandwidth that a stripe has to reach."""
ABOUT_AS_FAST: Final = 0.95
"""Fewer reads in flight are preferred if they reach this share of the best bandwidth: more would cost memory."""

_FORMAT: Final = "brand storage profile"
_VERSION: Final = 1
_MOST_FILE: Final = 1 << 16
_MOST_BYTES: Final = 1 << 40
_MOST_BANDWIDTH: Final = 1e15

_log: Final = logging.getLogger("brand.storage")
_FIRST_BYTE_S: Final = 0.05
_STREAM_S: Final = 60e6
_STORE_S: Final = 1.2e9


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured bandwidth of one storage. Raises ValueError if the numbers contradict each other."""

    device: str
    """The storage in plain words."""
    sizes: tuple[int, ...]
    """Read sizes in bytes, rising."""
    depths: tuple[int, ...]
    """Numbers of reads in flight, rising."""
    bytes_per_s: tuple[tuple[float, ...], ...]
    """Bandwidth, [depth][size]; 0.0 if a cell was not measured."""
    sequential: float
    """Bytes/s of large reads."""

    def __post_init__(self) -> None:
        for name, axis in (("sizes", self.sizes), ("depths", self.depths)):
            if not axis or not 1 <= axis[0] <= axis[-1] <= _MOST_BYTES or list(axis) != sorted(set(axis)):
                raise ValueError(f"{name} are not positive and rising")
        if [len(row) for row in self.bytes_per_s] != [len(self.sizes)] * len(self.depths):
            raise ValueError(f"not a table of {len(self.depths)} rows of {len(self.sizes)}")
        if not all(0 <= value <= _MOST_BANDWIDTH for row in self.bytes_per_s for value in row):
            raise ValueError("a bandwidth is out of range")
        if not 0 < self.sequential <= _MOST_BANDWIDTH or not any(map(any, self.bytes_per_s)):
            raise ValueError("nothing was measured")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "device": self.device,
            "sizes": list(self.sizes),
            "depths": list(self.depths),
            "bytes_per_s": [list(row) for row in self.bytes_per_s],
            "sequential": self.sequential,
        }

    @classmethod
    def from_json(cls, value: Any) -> Profile:
        """Parse the values of `to_json`. Raises ValueError for any other values."""
        try:
            if (value["format"], value["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"not version {_VERSION} of a storage profile")
            if not isinstance(value["device"], str):
                raise ValueError("the device has no name")
            return cls(
                device=value["device"],
                sizes=tuple(map(_natural, value["sizes"])),
                depths=tuple(map(_natural, value["depths"])),
                bytes_per_s=tuple(tuple(map(_number, row)) for row in value["bytes_per_s"]),
                sequential=_number(value["sequential"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a storage profile: {error!r}") from error


def best_depth(profile: Profile) -> int:
    """Return the number of reads to keep in flight.

    Small reads mix best. So the read size that counts is the smallest one with which any number of reads in flight
    reaches 90 % of the sequential bandwidth. Among the numbers within 5 % of the best one at that size, this is the
    smallest: more reads would use memory without a gain.
    """
    curves = _curves(profile)
    target = ENOUGH * profile.sequential
    reached = [size for curve in curves.values() if (size := curve.reaches(target)) is not None]
    region = min(reached, default=float(profile.sizes[-1]))
    speeds = {depth: curve.at(region) for depth, curve in curves.items()}
    return min(depth for depth, speed in speeds.items() if speed >= ABOUT_AS_FAST * max(speeds.values()))


def bandwidth(profile: Profile, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bytes/s of reads of these sizes (bytes), same shape, with `best_depth` reads in flight.

    Between two measured sizes the bandwidth rises evenly with the logarithm of the size. Outside the measured sizes, it
    is that of the nearest one.
    """
    curve = _curves(profile)[best_depth(profile)]
    return np.interp(np.log(np.maximum(sizes, 1.0)), np.log(curve.sizes), curve.speeds)


def stripe_bytes(profile: Profile | None) -> int:
    """Return the smallest read, in bytes, that reaches 90 % of the sequential bandwidth, with `best_depth` in flight.

    Between two measured sizes the bandwidth is assumed to rise evenly with the logarithm of the size. If no size
    reaches 90 %, this is the largest size. For an unknown storage (None) it is 512 KiB.
    """
    if profile is None:
        return DEFAULT_STRIPE_BYTES
    curve = _curves(profile)[best_depth(profile)]
    reached = curve.reaches(ENOUGH * profile.sequential)
    return curve.sizes[-1] if reached is None else min(math.ceil(reached), curve.sizes[-1])


def busy_bytes(profile: Profile | None) -> int:
    """Return the bytes in flight that keep the storage busy: `best_depth` reads of `stripe_bytes`; 0 if unknown."""
    return 0 if profile is None else best_depth(profile) * stripe_bytes(profile)


def gap_bytes(profile: Profile | None, read_bytes: float) -> int:
    """Return how many bytes the storage reads in the overhead time of one more read of `read_bytes`.

    This is with `best_depth` reads in flight. For an unknown storage (None) it is the planned loss of a stripe.
    """
    if profile is None:
        return int(DEFAULT_STRIPE_BYTES * (1 / ENOUGH - 1))
    speed = float(bandwidth(profile, np.array([float(read_bytes)]))[0])
    return int(read_bytes * max(0.0, profile.sequential / speed - 1))


def stripe_length(read_bytes: int, mean_sample_bytes: float, chunk_size: int) -> int:
    """Return the samples of a stripe: enough for `read_bytes`, at least 1, and at most a quarter of a chunk."""
    most = max(1, chunk_size // 4)
    if mean_sample_bytes * most <= read_bytes:
        return most
    return max(1, math.ceil(read_bytes / mean_sample_bytes))


def sequential_of(sizes: Sequence[int], depths: Sequence[int], table: Sequence[Sequence[float]]) -> float:
    """Return the bandwidth of large reads in a measured table [depth][size]. Pure.

    It is the median of the figures for large reads (at least a quarter of the largest) with many bytes in flight (at
    least half of the maximum). So a single outlier does not decide.
    """
    measured = [
        (size, size * depth, speed)
        for depth, row in zip(depths, table, strict=True)
        for size, speed in zip(sizes, row, strict=True)
        if speed
    ]
    large = [row for row in measured if 4 * row[0] >= max(measured)[0]]
    most = max(in_flight for _, in_flight, _ in large)
    return float(np.median([speed for _, in_flight, speed in large if 2 * in_flight >= most]))


@dataclass(frozen=True, slots=True)
class _Curve:
    """Bandwidth by read size: measured sizes and, for each, a bandwidth that never falls."""

    sizes: tuple[int, ...]
    speeds: tuple[float, ...]

    def reaches(self, speed: float) -> float | None:
        """Return the smallest size with this bandwidth, or None."""
        at = bisect_left(self.speeds, speed)
        if at == len(self.sizes):
            return None
        if at == 0:
            return float(self.sizes[0])
        low, high = self.speeds[at - 1], self.speeds[at]
        share = (speed - low) / (high - low)
        return float(self.sizes[at - 1] * (self.sizes[at] / self.sizes[at - 1]) ** share)

    def at(self, size: float) -> float:
        """Return the bandwidth of a size; outside the measured sizes, the bandwidth of the nearest one."""
        at = bisect_left(self.sizes, size)
        if at == 0 or at == len(self.sizes):
            return self.speeds[min(at, len(self.sizes) - 1)]
        share = math.log(size / self.sizes[at - 1]) / math.log(self.sizes[at] / self.sizes[at - 1])
        return self.speeds[at - 1] + share * (self.speeds[at] - self.speeds[at - 1])


def _curves(profile: Profile) -> dict[int, _Curve]:
    rows = zip(profile.depths, profile.bytes_per_s, strict=True)
    return {depth: _curve(profile.sizes, row) for depth, row in rows if any(row)}


def _curve(sizes: Sequence[int], row: Sequence[float]) -> _Curve:
    measured = [(size, speed) for size, speed in zip(sizes, row, strict=True) if speed]
    return _Curve(tuple(size for size, _ in measured), tuple(_never_falling([speed for _, speed in measured])))


def _never_falling(values: Sequence[float]) -> list[float]:
    """Return the nearest sequence (least squares) that never falls: neighbours in the wrong order become their mean."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]


def _store_profile() -> Profile:
    """Return the profile of a typical store: 50 ms to the first byte, 60 MB/s a stream, 1,200 MB/s in all."""
    sizes, depths = tuple(1 << n for n in range(16, 25)), (1, 2, 4, 8, 16, 32, 64)
    table = tuple(
        tuple(min(_STORE_S, depth * size / (_FIRST_BYTE_S + size / _STREAM_S)) for size in sizes) for depth in depths
    )
    return Profile("a store", sizes, depths, table, _STORE_S)


STORE: Final = _store_profile()
"""Assumed profile of a store that has not been measured."""


def is_assumed(profile: Profile) -> bool:
    """Return whether a profile is that of a store that has not been measured."""
    return replace(STORE, device=profile.device) == profile


def load_profile(path: str | Path) -> Profile | None:
    """Return the stored profile of the storage of a path or URL; None if there is no usable one.

    A store that has not been measured has the profile `STORE`.
    """
    if isinstance(path, str) and is_url(path):
        device = parse_url(path).root
        return _load(device, path) or replace(STORE, device=device)
    try:
        device = device_name(mount_of(path))
    except (BrandError, OSError) as error:
        _log.info("no storage profile for %s: %s", printable(str(path)), error)
        return None
    return _load(device, path)


def _load(device: str, path: str | Path) -> Profile | None:
    """Return the stored profile of a device; None if there is no usable one."""
    try:
        file = _profile_file(device)
        with file.open("rb") as opened:
            data = opened.read(_MOST_FILE + 1)
    except FileNotFoundError:
        return None
    except (BrandError, OSError) as error:
        _log.info("no storage profile for %s: %s", printable(str(path)), error)
        return None
    try:
        if len(data) > _MOST_FILE:
            raise ValueError("too large for a storage profile")
        profile = Profile.from_json(json.loads(data))
        if profile.device != device:
            raise ValueError(f"it belongs to another storage: {profile.device}")
    except (ValueError, RecursionError) as error:
        _log.warning("%s is not used: %s. `brand profile` replaces it", file, printable(str(error)))
        return None
    return profile


def save_profile(profile: Profile) -> Path:
    """Store a profile for its storage, in place of an earlier one. Return the file. Raises `StorageError`."""
    file = _profile_file(profile.device)
    with storage_errors(file, "cannot write"):
        file.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(file, json.dumps(profile.to_json(), indent=1).encode() + b"\n")
    return file


def _profile_file(device: str) -> Path:
    digest = hashlib.sha256(device.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    words = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-")[:60]
    return user_cache("storage") / f"{words}-{digest}.json"


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
