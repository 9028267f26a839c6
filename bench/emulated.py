"""Which storage and which data do benchmarks of real servers share, if no device is to decide the times?"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np

import brand
from brand.simulate.storages import BUILT_IN, Storage
from brand.testing.storage import Habit, _Pending


class EmulatedStorage(Habit):
    """A storage that serves one read after the other, for all its readers together. `nas`: 120 MB/s, 400 reads/s."""

    def __init__(self, storage: Storage = BUILT_IN["nas"]) -> None:
        super().__init__(None)
        self._storage, self._lock, self._free_s = storage, threading.Lock(), 0.0

    def _read(self, pending: _Pending) -> None:
        takes_s = float(self._storage.seconds(np.array([float(pending.call.size)]), np.ones(1))[0])
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + takes_s
            end_s = self._free_s
        time.sleep(max(0.0, end_s - time.monotonic()))
        pending.do()


def pack(work: Path, name: str, samples: int, sizes: range = range(66_000, 74_000), chunk_size: int = 64) -> Path:
    """Return a data set of samples of these sizes in bytes, which is made if it is missing."""
    target, rng = work / f"{name}-{samples}.brand", np.random.default_rng(0)
    if not target.exists():
        rows = ({"data": rng.bytes(sizes[number * 997 % len(sizes)])} for number in range(samples))
        brand.pack(rows, target, {"data": "bytes"}, chunk_size=chunk_size, compression="none", jobs=1)
    return target
