"""In which stages does a `BrandLoader` spend its time, and which stage should be made faster?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

NAMES: Final = {
    "storage": "waiting for the data server or for exact reads, that is for storage",
    "gather": "copying samples out of the shared memory and checking them",
    "decode": "decoding and transforming, all threads together",
    "collate": "putting batches together, all threads together",
    "full": "waiting for the training loop to take a batch",
    "loop_waits": "the training loop waiting for a batch",
    "training": "the training loop itself",
}


class Stages:
    """Seconds spent in each stage (`NAMES`), of all threads, since the loader was made."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        """Number of threads that decode at a time."""
        self._seconds = dict.fromkeys(NAMES, 0.0)
        self._decoded = 0
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """Add seconds spent in a stage."""
        with self._lock:
            self._seconds[stage] += seconds

    def count(self, samples: int) -> None:
        """Add samples that have been decoded."""
        with self._lock:
            self._decoded += samples

    def totals(self) -> dict[str, float]:
        """Return the seconds by stage, and the number of samples that have been `decoded`."""
        with self._lock:
            return {**self._seconds, "decoded": self._decoded}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time of the `with` block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    @property
    def slowest(self) -> str:
        """The stage that limits the throughput: `training` if the loop hardly waits."""
        with self._lock:
            seconds = dict(self._seconds)
        if seconds["loop_waits"] <= 0.05 * (seconds["loop_waits"] + seconds["training"]):
            return "training"
        work = {"storage": seconds["storage"], "gather": seconds["gather"]}
        work |= {stage: seconds[stage] / self.threads for stage in ("decode", "collate")}
        return max(work, key=work.__getitem__)

    def to_json(self) -> dict[str, Any]:
        """Return the seconds by stage, and the slowest stage."""
        with self._lock:
            seconds = {f"{stage}_s": round(value, 3) for stage, value in self._seconds.items()}
        return {**seconds, "slowest": self.slowest}

    def __repr__(self) -> str:
        with self._lock:
            lines = [f"{value:10.2f} s  {stage:10}  {NAMES[stage]}" for stage, value in self._seconds.items()]
        return "\n".join([*lines, f"slowest: {self.slowest}"])
