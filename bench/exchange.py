"""How many samples and requests do three nodes send each other? Counted, not timed.

    python -m bench.exchange --data train.brand

Three data servers are joined by gRPC on loopback. A rank on each draws epochs in batches of 256, in step with the other
ranks. Rows: `stripes` with positions split in turn, `stripes` with `locality`, and `slots`. Columns: samples and bytes
of one epoch that crossed between nodes; on-demand requests (for `slots` also the number in the plan); late samples,
which a node had to ask for or read directly when a rank drew them, without each epoch's first global batch; reads of
stripes or chunks.
"""

from __future__ import annotations

import argparse
import os
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import show, table
from brand.node.setup.choose import Nodes, choose_order, facts_of
from brand.node.wire.drawing import Announcement
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import attached
from tests.tools.cluster import RunningCluster, running_cluster

NODES = 3
BATCH = 256


def draw(cluster: RunningCluster, order: Order, epochs: int, *, locality: bool) -> list[dict[str, Any]]:
    """Draw epochs on all nodes. Return the sums of all nodes' counters after the first batch and after each epoch."""
    step, counted = threading.Barrier(NODES), []
    names = ("fetched", "sent", "sent_bytes", "requests", "on_demand", "timeouts", "direct", "reads")

    def count() -> None:
        facts = [cluster.facts(node) for node in range(NODES)]
        counted.append({name: sum(fact[name] for fact in facts) for name in names})

    with ExitStack() as stack:
        clients = [stack.enter_context(closing(attached(cluster.servers[node], "bench"))) for node in range(NODES)]

        def run(rank: int) -> None:
            for epoch in range(epochs):
                batch = BATCH if locality else 0
                mine = clients[rank].begin(order, 1, Announcement(epoch, 0, rank, NODES, batch), turn=0)
                positions = np.arange(rank, order.samples, NODES) if mine is None else mine
                for first in range(0, -(-order.samples // NODES), BATCH):
                    if len(some := positions[first : first + BATCH]):
                        clients[rank].draw(order, epoch, some, owner=os.getpid())
                    last = first + BATCH >= -(-order.samples // NODES)
                    if step.wait(120) == 0 and (last or epoch == first == 0):
                        count()
                    step.wait(120)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(NODES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return counted


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--memory", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    data, rows = StoredDataSet(options.data), []
    kinds: list[tuple[str, OrderOption, bool]] = [
        ("stripes, in turn", "stripes", False),
        ("stripes, locality", "stripes", True),
        ("slots", "slots", False),
    ]
    for name, protocol, locality in kinds:
        order = choose_order(facts_of(data), 0, protocol, None, options.memory, Nodes(NODES, NODES, 0.1))
        with running_cluster(options.data, nodes=NODES, memory=options.memory) as cluster:
            counted = draw(cluster, order, options.epochs, locality=locality)
        first, last = counted[-2], counted[-1]
        late = sum(last[name] - counted[0][name] for name in ("on_demand", "timeouts", "direct"))
        epoch = {key: last[key] - first[key] for key in last}
        table_of = order.plan(options.epochs - 1).requests
        foreseen = "" if table_of is None else f" (foreseen {len(table_of.positions):,})"
        rows.append(
            (
                name,
                f"{epoch['sent']:,} = {100 * epoch['sent'] / epoch['draws']:.1f} %",
                f"{epoch['sent_bytes'] / 1e6:.1f} MB",
                f"{epoch['requests']:,}{foreseen}",
                f"{late:,} of {last['draws'] - counted[0]['draws']:,}",
                f"{epoch['reads']:,}",
            )
        )
    show(table(("", "samples that crossed", "bytes", "requests", "late, after the first global batch", "reads"), rows))


if __name__ == "__main__":
    main()
