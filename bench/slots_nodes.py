"""Do three real servers count what the plans of `slots` foresee, and do epochs take as long as Brand's own paper says?

    python -m bench.slots_nodes --work SCRATCH [--only "Table 4"] [--out FILE]

The paper's tables 4 to 6 and figures 12 to 14 in small. Three data servers are joined by gRPC on loopback and share an
emulated storage, which serves one read after the other: 24 MB/s and 390 reads a second, in the ratio that the simulator
fits to the paper's storage. A rank on each node fetches epochs in batches of 32, in step; nothing is decoded. There are
2,400 samples of 4 to 4.5 kB. The window and the limits are the same fractions of the data as the paper's limits and the
window that is fitted to its Table 5. As in a training, memory, `peer_memory=` and `Slots(...)` decide the order.

    Table 4     four variants: with and without samples sent ahead, by fill rate or at random
    Table 6     limits of the remote abstract memory (figure 12), which is a part of a node's fixed memory
    Figure 14   samples of a chunk (and figure 13)

The rows of a table run three times, in turns; each run has three epochs. Counts are those of all epochs, first that of
the plans, then that of the servers. `reads`: reads of chunks, the paper's misses. The reads of the storage are compared
with the plans chunk by chunk; those that are left must be in the plan of the next epoch (`next`). `n`: chunks of a
group. `requests`: samples for which a node asks another node. `ahead`: samples that were sent ahead. `direct`: samples
that clients read past the servers. `used`: the most samples in the remote abstract memory of a node in the plans, of
its limit. `loads`: planned reads of a chunk in an epoch. `late`: samples that a node asked for again, or read itself.
Times are seconds of an epoch, without the first one. As a fraction of the first row, they are divided round by round.
The prediction is that of `brand simulate`. Cells have the median of the rounds, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.emulated import EmulatedStorage, pack
from bench.harness import progress, save, show, table
from bench.papers.breakdown import BREAKDOWN, most_ahead
from bench.papers.epoch_times import TABLE_4, TABLE_6
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.setup.measure import stored_sizes
from brand.orders.base.plan import EpochPlan
from brand.orders.order import Order
from brand.orders.policies.slot_policy import SlotPolicy, Slots
from brand.simulate.pace import Machine, pace
from brand.simulate.running import SimulatedRun, work_of
from brand.simulate.storages import Storage, StorageLimits
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.storage import CountedStorage, ReadCall
from tests.several_nodes.support import Rank, all_open, check_epoch, draw_in_step, node_of
from tests.support import wait_until
from tests.tools.cluster import running_cluster

NODES: Final = 3
EPOCHS: Final = 3
BATCH: Final = 32
SAMPLE_BYTES: Final = 4000
STORAGE: Final = StorageLimits("the paper's NAS in small", 24e6, 390)
QUIET_S: Final = 0.3
"""A server that starts no read for so long has read ahead what its memory has space for."""
MEMORY: Final = 0.12
"""Memory of a node as a fraction of the data: n is 4, as it is by section 5.2 of the paper."""
DATA_MB: Final = 134_500
"""ImageNet-1k in MB."""
WINDOW: Final = 16_800 / 1_281_167
"""The window that is fitted to Table 5, as a fraction of the samples."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of a table."""

    shown: str
    """The table that has the row."""
    name: str
    printed: float | None
    """The hours that the paper prints. None if it prints none."""
    slots: Slots
    memory: float = MEMORY
    peer_memory: float = 1500 / DATA_MB / MEMORY
    """As a fraction of the node's memory. The default is the limit of Table 5."""
    chunk_size: int = 64


def arms(samples: int) -> list[Arm]:
    """Return the rows of all tables for a data set of so many samples."""
    window = round(WINDOW * samples)
    found = []
    for (setting, hours), row in zip(TABLE_4.items(), BREAKDOWN.values(), strict=True):
        slots = Slots(refill=setting.refill, window=0 if setting.window == 0 else window)
        found.append(Arm("Table 4", row.name, hours, slots))
    for limit in (500, 1000, 1500, 2000, 3000):
        share = limit / DATA_MB / MEMORY
        found.append(Arm("Table 6", f"{limit:,} MB", TABLE_6[limit], Slots(window=window), peer_memory=share))
    found += [
        Arm("Figure 14", f"{size}", None, Slots(window=window), chunk_size=size) for size in (2, 4, 8, 16, 32, 64)
    ]
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of all nodes in all epochs."""

    reads: int
    requests: int
    ahead: int
    direct: int


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The counts of the plans, and the prediction of `brand simulate`."""

    counts: Counts
    used: int
    """The most samples in the remote abstract memory of one node at a time, in the plan of any epoch."""
    seconds: float
    """Predicted seconds of an epoch after the first one."""


@dataclass(frozen=True, slots=True)
class Served:
    """A run of the servers."""

    counts: Counts
    next_reads: int
    """Reads that the servers did for the next epoch, in addition."""
    late: int
    """Samples that a node asked for again or for which it read itself, because they had not arrived in time."""
    bytes: int
    """Bytes of the reads of the epochs."""
    seconds: list[float]
    """By epoch."""

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch, without the first one."""
        return statistics.mean(self.seconds[1:])


def order_for(data: StoredDataSet, arm: Arm) -> Order:
    """Return the order that a training with the options of a row has."""
    nodes = Nodes(NODES, NODES, arm.peer_memory)
    return choose_order(facts_of(data), 0, arm.slots, None, arm.memory, nodes)


def foresee(data: StoredDataSet, order: Order, arm: Arm) -> Foreseen:
    """Return the counts of the plans, and the prediction of `brand simulate`."""
    run = SimulatedRun(stored_sizes(data), order, arm.memory, arm.peer_memory, NODES, NODES, BATCH)
    works = list(work_of(run, range(EPOCHS)))
    seconds = [each.seconds for each in pace(run, works, Machine(STORAGE))]
    reads = requests = ahead = used = 0
    for epoch in range(EPOCHS):
        plan = order.plan(epoch)
        assert plan.requests is not None
        reads, requests = reads + plan.read_count, requests + len(plan.requests.positions)
        ahead, used = ahead + len(plan.requests.prefetched), max(used, most_ahead(plan.requests, NODES, order.samples))
    direct = sum(work.direct for nodes in works for work in nodes)
    return Foreseen(Counts(reads, requests, ahead, direct), used, statistics.mean(seconds[1:]))


def serve(path: Path, order: Order, arm: Arm, storage: Storage = STORAGE) -> Served:
    """Fetch the epochs on all nodes. Raises `AssertionError` if a sample or a read is in no plan."""
    shared, seconds = EmulatedStorage(storage), list[float]()
    storages = {node: CountedStorage(shared) for node in range(NODES)}
    options: dict[str, Any] = {"memory": arm.memory, "peer_memory": arm.peer_memory, "storage": storages}
    with ExitStack() as stack, running_cluster(path, nodes=NODES, **options) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(path, address))) for address in cluster.addresses]
        ranks = [Rank(client, order, rank, NODES, batch=BATCH) for rank, client in enumerate(clients)]
        for epoch in range(EPOCHS):
            began_s = time.monotonic()
            draw_in_step(ranks, [epoch])
            seconds.append(time.monotonic() - began_s)
            check_epoch(ranks, epoch)
        _wait_for_quiet(storages.values())
        facts = [cluster.facts(node) for node in range(NODES)]
        # Before the servers end: a node reads for the next epoch what another node that has ended would have read.
        calls = [call for storage in storages.values() for call in storage.reads if not call.exact]
    total = {name: sum(fact[name] for fact in facts) for name in ("requests", "received", "direct")}
    late = sum(fact[name] for fact in facts for name in ("on_demand", "timeouts", "remote_reads"))
    plans = [order.plan(epoch) for epoch in range(EPOCHS + 1)]
    reads, following = divide(calls, plans)
    size = Counter[int]()
    for call in calls:
        size[call.chunk] = max(size[call.chunk], call.size)
    read_bytes = sum(size[chunk] for plan in plans[:-1] for chunk in chunks_of(plan))
    counts = Counts(reads, total["requests"], total["received"] - total["requests"], total["direct"])
    return Served(counts, following, late, read_bytes, seconds)


def chunks_of(plan: EpochPlan) -> list[int]:
    """Return the chunk of each read of a plan, by deadline."""
    assert plan.reads is not None
    chunks: list[int] = plan.reads["chunk"].tolist()
    return chunks


def divide(calls: Sequence[ReadCall], plans: Sequence[EpochPlan]) -> tuple[int, int]:
    """Return how many reads are those of the plans, and how many are for the last plan, whose epoch has not begun.

    At the end of an epoch, a server leaves out a read for the next one whose samples are all still in memory. A read
    for the last plan can hide that a read of the same chunk was left out. Raises `AssertionError` if a read is in no
    plan.
    """
    found, foreseen = Counter(call.chunk for call in calls), Counter[int]()
    for plan in plans[:-1]:
        foreseen.update(chunks_of(plan))
    more = found - foreseen
    assert more <= Counter(chunks_of(plans[-1])), "a read is in no plan"
    return (found & foreseen).total(), more.total()


def _wait_for_quiet(storages: Iterable[CountedStorage]) -> None:
    """Wait until no server starts a read."""
    before = -1
    while (now := sum(len(storage.reads) for storage in storages)) != before:
        before = now
        time.sleep(QUIET_S)


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its order, its prediction and its runs."""

    arm: Arm
    order: Order
    foreseen: Foreseen
    runs: list[Served]

    @property
    def policy(self) -> SlotPolicy:
        """The numbers of the order."""
        assert isinstance(self.order.policy, SlotPolicy)
        return self.order.policy

    @property
    def loads(self) -> float:
        """Reads of a chunk in an epoch of the plans."""
        return self.foreseen.counts.reads / EPOCHS / self.order.mapping.chunks


def tables(found: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the title, the columns and the rows of the counts and of the times, for each table of the paper."""
    for shown in dict.fromkeys(row.arm.shown for row in found):
        rows = [row for row in found if row.arm.shown == shown]
        columns = ["", "n", "reads", "requests", "ahead", "direct", "used", "loads", "next", "late"]
        yield f"{shown}: counts of {EPOCHS} epochs: plan; servers", columns, [_counts(row) for row in rows]
        columns = ["", "printed", "predicted", "measured", "predicted s", "measured s", "MB/s"]
        yield (
            f"{shown}: epochs, as a fraction of the first row; seconds",
            columns,
            [_times(row, rows[0]) for row in rows],
        )


def _counts(row: Row) -> list[str]:
    cells = [
        f"{plan:,}; {_spread([asdict(run.counts)[name] for run in row.runs], ',')}"
        for name, plan in asdict(row.foreseen.counts).items()
    ]
    more = [_spread([run.next_reads for run in row.runs], ","), _spread([run.late for run in row.runs], ",")]
    used = f"{row.foreseen.used} of {row.policy.remote}"
    return [row.arm.name, str(row.policy.group_chunks), *cells, used, f"{row.loads:.2f}", *more]


def _times(row: Row, first: Row) -> list[str]:
    ratios = [run.epoch_s / one.epoch_s for run, one in zip(row.runs, first.runs, strict=True)]
    printed = None if row.arm.printed is None or first.arm.printed is None else row.arm.printed / first.arm.printed
    rate = statistics.median(run.bytes / EPOCHS / run.epoch_s for run in row.runs)
    return [
        row.arm.name,
        "" if printed is None else f"{printed:.2f}",
        f"{row.foreseen.seconds / first.foreseen.seconds:.2f}",
        _spread(ratios, ".2f"),
        f"{row.foreseen.seconds:.2f}",
        _spread([run.epoch_s for run in row.runs], ".2f"),
        f"{rate / 1e6:.0f}",
    ]


def _spread(values: Sequence[float], form: str) -> str:
    """Return the median, with the smallest and the largest value if they differ."""
    low, middle, high = (format(value, form) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def make_data(work: Path, samples: int, chunk_size: int) -> Path:
    """Return the data set for a size of chunks, which is made if it is missing."""
    sizes = range(SAMPLE_BYTES, SAMPLE_BYTES * 9 // 8)
    return pack(work, f"slots-nodes-{chunk_size}", samples, sizes, chunk_size)


def measure(work: Path, samples: int, rows: Sequence[Arm], rounds: int) -> list[Row]:
    """Run all rows in turns, beside what is foreseen for them."""
    found = list[Row]()
    for arm in rows:
        data = StoredDataSet(make_data(work, samples, arm.chunk_size))
        order = order_for(data, arm)
        found.append(Row(arm, order, foresee(data, order, arm), []))
    for turn in range(rounds):
        for row in found:
            served = serve(make_data(work, samples, row.arm.chunk_size), row.order, row.arm)
            row.runs.append(served)
            told = f"{served.counts}, foreseen {row.foreseen}, {np.round(served.seconds, 2)} s, late {served.late}"
            progress(f"{row.arm.shown}, {row.arm.name}, {turn + 1} of {rounds}: {told}")
    return found


def main() -> None:
    """Run all rows, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a scratch folder, for 150 MB")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--samples", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row, in turns (%(default)s)")
    parser.add_argument("--only", nargs="*", help="tables, such as 'Table 4'")
    given = parser.parse_args()
    rows = [arm for arm in arms(given.samples) if not given.only or arm.shown in given.only]
    found = measure(given.work, given.samples, rows, given.rounds)
    for title, columns, cells in tables(found):
        show(f"\n{title}\n{table(columns, cells)}")
    if given.out:
        settings = {"samples": given.samples, "rounds": given.rounds, "epochs": EPOCHS, "batch": BATCH}
        settings |= {"storage": asdict(STORAGE)}
        results = [
            {
                "arm": asdict(row.arm),
                "order": row.order.to_json(),
                "foreseen": asdict(row.foreseen),
                "runs": [asdict(run) for run in row.runs],
            }
            for row in found
        ]
        save(given.out, __doc__, settings, [], results)


if __name__ == "__main__":
    main()
