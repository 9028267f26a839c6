"""Which epoch times does the what-if simulator give for the tables and figures of Brand's own paper?

`python -m bench.papers brand` prints them after the counts (`breakdown.py`):

    Table 4     the four variants of section 5.3
    Table 6     limits of the remote abstract memory
    Figures 13, 14  throughput of the storage and epoch time, by the samples of a chunk

The clock is `brand.simulate.pace`, over the work of three simulated nodes. The paper's storage cannot be had, so its
bandwidth is *fitted*: one cell of each table comes out as printed, and the others are predicted. Training, decoding and
the network cost no time that the storage does not hide. A run has a tenth of the samples, of the window and of the
limit, and its hours are multiplied by ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from bench.harness import progress, show, table
from bench.papers.breakdown import BREAKDOWN, DERIVED_CHUNKS, LIMITS_MB, LOADS, SAMPLE_BYTES, SAMPLES, Setting
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy
from brand.simulate.pace import Machine, pace
from brand.simulate.running import EpochWork, SimulatedRun, work_of
from brand.simulate.storages import StorageLimits

PART: Final = 10
"""One in so many samples is simulated."""
TABLE_4: Final[dict[Setting, float]] = dict(zip(BREAKDOWN, (0.93, 0.87, 0.76, 0.71), strict=True))
"""Hours of an epoch of ResNet50 by variant; "Brand", the last, fits the bandwidth."""
PYTORCH_HOURS: Final = 1.61
"""Table 4: an epoch that reads each sample by itself. It fits the operations per second of the storage."""
TABLE_6: Final[dict[int, float]] = dict(zip(LIMITS_MB, (0.77, 0.71, 0.65, 0.63, 0.66, 0.68), strict=True))
"""Hours of an epoch of SqueezeNet by limit of the remote abstract memory in MB."""
FITTED_MB: Final = 1500
"""The limit whose cell of Table 6 fits the bandwidth."""
_MEMORY: Final = 0.5
"""Memory of a node as a fraction of the data: more than any plan here needs, so no draw is read directly."""
_PEER_MEMORY: Final = 0.2
_BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class SimulatedEpochs:
    """Two epochs of the nodes of a setting, at a `PART` of its size."""

    run: SimulatedRun
    works: list[list[EpochWork]]

    @property
    def read_bytes(self) -> int:
        """Bytes of the second epoch's reads, at full size."""
        return PART * sum(work.read_bytes for work in self.works[-1])

    @property
    def direct(self) -> int:
        """Samples that ranks read one by one in the second epoch."""
        return sum(work.direct for work in self.works[-1])

    def hours(self, bytes_per_s: float, operations_per_s: float = math.inf) -> float:
        """Return the hours of the second epoch at full size on a storage with these limits."""
        storage = StorageLimits("the paper's NAS", bytes_per_s, operations_per_s)
        return PART * pace(self.run, self.works, Machine(storage))[-1].seconds / 3600

    def bandwidth(self, hours: float) -> float:
        """Return the bytes per second with which the reads of the second epoch take so many hours."""
        return self.read_bytes / (3600 * hours)


@cache
def simulate(setting: Setting) -> SimulatedEpochs:
    """Return two epochs of a setting, one rank on each node."""
    nodes, samples = setting.nodes, setting.samples // PART
    ahead = setting.window // PART, setting.remote // PART
    policy = SlotPolicy(setting.group_chunks, setting.refill, nodes, nodes, window=ahead[0], remote=ahead[1])
    order = Order("0" * 32, samples, setting.chunk_size, 0, policy)
    sizes = np.full(samples, SAMPLE_BYTES, np.uint32)
    run = SimulatedRun(sizes, order, _MEMORY, _PEER_MEMORY, nodes, nodes, _BATCH)
    return SimulatedEpochs(run, list(work_of(run, range(2))))


def variants(group_chunks: int) -> list[float]:
    """Return the hours of Table 4 in its order, for so many chunks of a group. The last is fitted."""
    found = [simulate(replace(setting, group_chunks=group_chunks)) for setting in TABLE_4]
    bandwidth = found[-1].bandwidth(TABLE_4[Setting()])
    return [each.hours(bandwidth) for each in found]


def limits(group_chunks: int) -> list[float]:
    """Return the hours of Table 6 in its order, for so many chunks of a group. That of `FITTED_MB` is fitted."""
    wide = Setting(window=17_000, group_chunks=group_chunks)
    found = {limit: simulate(replace(wide, remote=limit * 10**6 // SAMPLE_BYTES)) for limit in TABLE_6}
    bandwidth = found[FITTED_MB].bandwidth(TABLE_6[FITTED_MB])
    return [each.hours(bandwidth) for each in found.values()]


def chunk_sizes() -> dict[int, tuple[float, float]]:
    """Return the throughput in bytes per second (figure 13) and the hours (figure 14), by the samples of a chunk.

    The storage has two limits: bytes per second, by which "Brand" of Table 4 takes its hours, and operations per
    second, by which PyTorch does.
    """
    bandwidth = simulate(Setting()).bandwidth(TABLE_4[Setting()])
    operations = SAMPLES / (3600 * PYTORCH_HOURS)
    found = {}
    for size in LOADS:
        progress(f"brand: epoch times for chunks of {size}")
        each = simulate(Setting(chunk_size=size))
        hours = each.hours(bandwidth, operations)
        found[size] = each.read_bytes / (3600 * hours), hours
    return found


def print_all() -> None:
    """Print all tables."""
    heads = ["", "printed", "n = 10", "%", f"n = {DERIVED_CHUNKS}", "%"]
    readings = variants(10), variants(DERIVED_CHUNKS)
    names = [row.name for row in BREAKDOWN.values()]
    show("\nTable 4 of Brand: hours of an epoch; the bandwidth is fitted to the row Brand\n")
    show(table(heads, _rows(names, list(TABLE_4.values()), readings, fitted=len(names) - 1)))
    readings = limits(10), limits(DERIVED_CHUNKS)
    show(f"\nTable 6 of Brand: hours by limit in MB; the bandwidth is fitted to the row {FITTED_MB:,}\n")
    names, fitted = [f"{limit:,}" for limit in TABLE_6], list(TABLE_6).index(FITTED_MB)
    show(table(heads, _rows(names, list(TABLE_6.values()), readings, fitted)))
    rows = [[f"{size}", f"{rate / 1e6:.0f}", f"{hours:.2f}"] for size, (rate, hours) in chunk_sizes().items()]
    show("\nFigures 13 and 14 of Brand: a storage with two limits, both fitted to Table 4; n = 10\n")
    show(table(["samples of a chunk", "MB/s", "hours"], rows))


def _rows(
    names: list[str], printed: list[float], readings: tuple[list[float], list[float]], fitted: int
) -> list[list[str]]:
    rows = []
    for number, (name, theirs, *ours) in enumerate(zip(names, printed, *readings, strict=True)):
        off = ["fitted" if number == fitted else f"{100 * (hours / theirs - 1):+.0f}" for hours in ours]
        cells = [cell for hours, each in zip(ours, off, strict=True) for cell in (f"{hours:.2f}", each)]
        rows.append([name, f"{theirs:.2f}", *cells])
    return rows
