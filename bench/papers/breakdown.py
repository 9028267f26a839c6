"""Do the plans of order `slots` give the misses, requests and reads that Brand's own paper prints?

`python -m bench.papers brand` prints four tables, each from real plans of one epoch of ImageNet-1k:

    Table 5     misses and remote requests on three nodes, without each of the paper's two optimisations and with both
    Figure 12   how much remote abstract memory is used, by its limit
    Figure 13   how often a chunk is loaded on average, by its size
    Theorem     how well the access sequence of Table 5 is shuffled (`brand.testing.shuffling`)

A miss is a read of a chunk. The paper prints the numbers of Table 5 (`BREAKDOWN`; `tests/orders` checks them), and
neither the chunks of a group nor the window with which they were measured. Two readings stand beside each other: both
numbers *fitted* to the table, and the chunks of a group *derived* from the memory that section 5.2 gives the nodes. The
curves of its figures are not in its text: there, the column "first model" has the figures of this project's own first
model of the paper. The plans do not depend on each other, so two processes make them.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import progress, show, table
from brand.orders.base.mapping import Mapping
from brand.orders.base.owners import drawer_of
from brand.orders.base.plan import EpochPlan, PeerRequests
from brand.orders.policies.slot_policy import plan_slots_across_nodes
from brand.orders.policies.slots import Refill
from brand.testing.shuffling import Shuffling, measure

SAMPLES: Final = 1_281_167
"""Samples of ImageNet-1k."""
SAMPLE_BYTES: Final = 105_000
"""Mean size of a sample of ImageNet-1k, in bytes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The numbers of one plan. The defaults are fitted to the paper's Table 5: three nodes with one GPU each."""

    refill: Refill = "fill_rate"
    window: int = 16_800
    """Draws that an owner looks ahead; 0 if nothing is sent ahead."""
    chunk_size: int = 64
    group_chunks: int = 10
    """Chunks of a group: memory holds one part in so many of the samples."""
    remote: int = 14_300
    """Limit of a node's remote abstract memory in samples: 1.5 GB."""
    nodes: int = 3
    samples: int = SAMPLES


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of reads and requests in the plan of a setting."""

    reads: int
    """Reads of chunks: the paper's misses."""
    loads: float
    """Reads of a chunk, on average."""
    requests: int
    """Draws for which a node asks another node."""
    ahead: int
    """The most samples that were in the remote abstract memory of one node at a time."""


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the paper's Table 5."""

    name: str
    misses: float
    requests: float


BREAKDOWN: Final[dict[Setting, Published]] = {
    Setting("random", window=0): Published("Brand-no-optimization", 1.91e5, 8.54e5),
    Setting(window=0): Published("Brand-no-prefetching", 1.78e5, 8.54e5),
    Setting("random"): Published("Brand-random-selection", 1.33e5, 0.46e5),
    Setting(): Published("Brand", 1.26e5, 0.41e5),
}
"""Table 5. With the fitted chunks of a group and window, all eight numbers are within 4 % of the paper's."""

DERIVED_CHUNKS: Final = 4
"""Chunks of a group by section 5.2: one of its nodes holds 8 % of ImageNet-1k, three hold 24 %."""

LIMITS_MB: Final[dict[int, tuple[float, float]]] = {
    50: (1.72e5, 1.12e5),
    500: (1.41e5, 0.65e5),
    1000: (1.27e5, 0.42e5),
    1500: (1.265e5, 0.40e5),
    2000: (1.265e5, 0.40e5),
    3000: (1.265e5, 0.40e5),
}
"""Figure 12: limits of the remote abstract memory, with misses and requests of the first model."""

LOADS: Final[dict[int, tuple[float, float]]] = {
    2: (1.29, 1.27),
    4: (1.82, 1.78),
    8: (2.49, 2.50),
    16: (3.41, 3.55),
    32: (4.65, 5.06),
    64: (6.32, 7.22),
    128: (8.63, 10.3),
    256: (11.9, 14.7),
}
"""Figure 13: samples of a chunk, with loads of a chunk on three nodes and on one node in the first model."""

_WIDE: Final = Setting(window=17_000)
"""The first model looked 17,000 draws ahead for both figures."""


def counts(setting: Setting) -> Counts:
    """Plan an epoch of a setting and count its reads and requests."""
    mapping, nodes, plan = _mapping(setting), setting.nodes, _plan(setting)
    requests = 0 if plan.requests is None else len(plan.requests.positions)
    ahead = 0 if plan.requests is None else most_ahead(plan.requests, nodes, setting.samples)
    return Counts(plan.read_count, plan.read_count / mapping.chunks, requests, ahead)


def shuffling(setting: Setting) -> Shuffling:
    """Plan an epoch of a setting and measure its order, in batches of 256."""
    return measure(_plan(setting).sample_of, chunk_size=setting.chunk_size, batch=256)


def most_ahead(requests: PeerRequests, nodes: int, samples: int) -> int:
    """Return the most samples that wait in the remote abstract memory of one node, if each node has one rank.

    A sample arrives with the answer to a request, and is removed when it is drawn.
    """
    came = np.repeat(requests.positions.astype(np.int64), np.diff(requests.ends, prepend=0))
    drawn: NDArray[Any] = requests.prefetched.astype(np.int64)
    most = 0
    for node in range(nodes):
        mine = drawer_of(drawn, nodes, nodes) == node
        change = np.bincount(came[mine], minlength=samples) - np.bincount(drawn[mine], minlength=samples)
        most = max(most, int(np.cumsum(change).max()))
    return most


def print_all() -> None:
    """Print all tables."""
    limits = [replace(_WIDE, remote=limit * 10**6 // SAMPLE_BYTES) for limit in LIMITS_MB]
    derived = [replace(setting, group_chunks=DERIVED_CHUNKS) for setting in BREAKDOWN]
    several = [_part(replace(_WIDE, chunk_size=size)) for size in LOADS]
    alone = [_part(Setting(window=0, chunk_size=size, group_chunks=4, nodes=1)) for size in LOADS]
    found = _all([*BREAKDOWN, *derived, *limits, *several, *alone])
    _print_breakdown("n = 10 (fitted): memory for a tenth", [found[setting] for setting in BREAKDOWN])
    _print_breakdown("n = 4 (section 5.2): memory for a quarter", [found[setting] for setting in derived])
    _print_limits([found[setting] for setting in limits])
    _print_loads([found[setting] for setting in several], [found[setting] for setting in alone])
    _print_shuffling([Setting(), replace(Setting(), group_chunks=DERIVED_CHUNKS)])


def _mapping(setting: Setting) -> Mapping:
    return Mapping(setting.samples, setting.chunk_size, setting.group_chunks)


def _plan(setting: Setting) -> EpochPlan:
    nodes, ahead = setting.nodes, (setting.window, setting.remote)
    return plan_slots_across_nodes(_mapping(setting), nodes, nodes, *ahead, setting.refill, 0, 0)


def _part(setting: Setting) -> Setting:
    """Return the setting for a quarter of all samples if chunks are small.

    A chunk is loaded as often as with all samples, and the plan is quick.
    """
    if setting.chunk_size > 8:
        return setting
    return replace(setting, window=setting.window // 4, remote=setting.remote // 4, samples=setting.samples // 4)


def _all(settings: Iterable[Setting]) -> dict[Setting, Counts]:
    found = {}
    wanted = sorted(set(settings), key=lambda setting: setting.chunk_size)  # small chunks take longest
    with ProcessPoolExecutor(2) as pool:
        for setting, each in zip(wanted, pool.map(counts, wanted), strict=True):
            progress(f"brand: {setting}")
            found[setting] = each
    return found


def _print_breakdown(reading: str, found: list[Counts]) -> None:
    rows = []
    for row, ours in zip(BREAKDOWN.values(), found, strict=True):
        rows.append([row.name, *_pair(ours.reads, row.misses), *_pair(ours.requests, row.requests)])
    show(f"\nTable 5 of Brand: three nodes, chunks of 64, window of 16,800 draws (fitted), {reading}; in 100,000\n")
    show(table(["variant", "misses", "printed", "%", "requests", "printed", "%"], rows))


def _print_limits(found: list[Counts]) -> None:
    rows = []
    for (limit, first), ours in zip(LIMITS_MB.items(), found, strict=True):
        used = f"{ours.ahead * SAMPLE_BYTES / 1e6:,.0f}"
        rows.append([f"{limit:,}", used, *_pair(ours.reads, first[0]), *_pair(ours.requests, first[1])])
    show("\nFigure 12 of Brand: limit and peak of a node's remote abstract memory; in 100,000\n")
    show(table(["limit, MB", "used, MB", "misses", "first model", "%", "requests", "first model", "%"], rows))


def _print_loads(several: list[Counts], alone: list[Counts]) -> None:
    rows = []
    for (size, first), three, one in zip(LOADS.items(), several, alone, strict=True):
        rows.append([f"{size}", f"{three.loads:.2f}", f"{first[0]:g}", f"{one.loads:.2f}", f"{first[1]:g}"])
    show("\nFigure 13 of Brand: average loads of a chunk in an epoch, by its samples\n")
    show(table(["chunk", "three nodes, n = 10", "first model", "one node, n = 4", "first model"], rows))


def _print_shuffling(settings: list[Setting]) -> None:
    rows = [["uniform", "1.00", "0.333", "0.333"]]
    for setting in settings:
        progress(f"brand: order of {setting}")
        found = shuffling(setting)
        figures = found.batch_collisions, found.chunk_distance, found.adjacent_distance
        rows.append([f"n = {setting.group_chunks}", f"{figures[0]:.2f}", *(f"{each:.3f}" for each in figures[1:])])
    show("\nTheorem of Brand: the order of slots on three nodes, in batches of 256\n")
    show(table(["", "batch collisions", "chunk distance", "adjacent distance"], rows))


def _pair(ours: float, theirs: float) -> list[str]:
    return [f"{ours / 1e5:.3f}", f"{theirs / 1e5:.4g}", f"{100 * (ours / theirs - 1):+.1f}"]
