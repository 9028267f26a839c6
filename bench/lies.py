"""Does the memory of servers grow, round by round, while another node of their cluster lies to them?

    python -m bench.lies --rounds 1000 --every 50 --out bench/results/lies.json

Three servers of a cluster, each in its own process, live as long as the run. Node 1 lies as `tests.tools.liar` does: in
each round with other lies and in another share of its messages. In each round ranks of nodes 0 and 2 take two epochs
of 600 samples with `stripes` and, at the same time, with `slots`, under a job name of all rounds or a new one. One
cluster has a folder that all nodes see, the other one has partitions. A rank gets what its plan has, with the right
values, or an error that names node 1. `--honest` is the control group: the same rounds without a lie.

The columns are private memory of the servers of nodes 0 and 2 (`smaps_rollup`, MB), their threads and their descriptors
in the cluster that sees one folder (`whole`), and in the one of partitions (`parts`). The growth is the slope of a line
through the second half of the samples.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np

from bench import harness
from bench.system import memory_of
from brand.cluster.peers import PeerStreams
from brand.cluster.process import server_of
from brand.node.serve.process import tune_server_process
from brand.node.setup.server_spec import Member, ServerSpec
from brand.testing.node import random_address, running
from tests.tools.liar import (
    EPOCHS,
    LIAR,
    LIES,
    LIMIT_S,
    NODES,
    SHORT,
    Liar,
    LyingRound,
    OrderName,
    make_sets,
    ranks,
    run_ranks,
)

COLUMNS: Final = tuple(f"{cluster} {node}" for cluster in ("whole", "parts") for node in (0, 2))
"""The servers that do not lie, by cluster."""
ORDERS: Final[tuple[OrderName, ...]] = ("stripes", "slots")
HONEST: Final = tuple(node for node in range(NODES) if node != LIAR)


def serve_node(folder: Path, address: str, node: int, token: str, line: Connection) -> None:
    """Serve a node in this process until the line ends. Node 1 lies as the line says."""
    liars: list[Liar] = []

    def network(greeting: Any, token: str, bind: str, tls: Any = None) -> Any:
        inner = PeerStreams(greeting, token, bind, tls)
        if node != LIAR:
            return inner
        liars.append(Liar(inner, greeting.page, random.Random(0), sorted(LIES), 0.0))
        return liars[0]

    logging.getLogger("brand").addHandler(logging.NullHandler())
    logging.getLogger("brand").propagate = False
    tune_server_process()
    with ExitStack() as stack:
        for name, limit in SHORT.items():
            stack.enter_context(mock.patch(name, limit))
        stack.enter_context(mock.patch("brand.cluster.process.PeerStreams", network))
        member = Member(node, NODES, token, "127.0.0.1:0", None, None)
        server = server_of(ServerSpec(os.fspath(folder), address, 0.5, member=member, page_cache=True))
        stack.enter_context(running(os.fspath(folder), server))
        line.send(server.listens_at)
        server.connect(line.recv())
        while True:
            try:
                lies, share = line.recv()
            except EOFError:
                return
            for liar in liars:
                liar.turn(lies, share)
            line.send(Counter() if not liars else liars[0].told)


class Cluster:
    """Three servers in processes of their own."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders, self.addresses = folders, [random_address() for _ in range(NODES)]
        context, token = multiprocessing.get_context("spawn"), secrets.token_hex(16)
        self._lines, self.processes = list[Connection](), list[Any]()
        for node in range(NODES):
            ours, theirs = context.Pipe()
            given = (folders[node], self.addresses[node], node, token, theirs)
            self.processes.append(context.Process(target=serve_node, args=given, daemon=True))
            self.processes[-1].start()
            theirs.close()
            self._lines.append(ours)
        places = [line.recv() for line in self._lines]
        for node, line in enumerate(self._lines):
            line.send({other: places[other] for other in range(NODES) if other != node})

    def turn(self, lies: Sequence[str], share: float) -> Counter[str]:
        """Let node 1 lie in another way. Return its lies up to now."""
        self._lines[LIAR].send((lies, share))
        told: Counter[str] = self._lines[LIAR].recv()
        return told

    def close(self) -> None:
        """End the servers."""
        for line in self._lines:
            line.close()
        for process in self.processes:
            process.join(LIMIT_S)


@contextmanager
def clusters(folder: Path) -> Iterator[list[Cluster]]:
    """Two clusters: of a folder that all nodes see, and of partitions."""
    whole, outs = make_sets(folder)
    with ExitStack() as stack:
        found = []
        for folders in ([whole] * NODES, outs):
            found.append(Cluster(folders))
            stack.callback(found[-1].close)
        yield found


def play(both: Sequence[Cluster], number: int, seed: int, *, honest: bool) -> LyingRound:
    """Let ranks of the other nodes of both clusters take two epochs, in both orders at a time."""
    rng, result = random.Random(f"{seed}/{number}"), LyingRound(number)
    lies, share = rng.sample(sorted(LIES), rng.choice([1, 2, len(LIES)])), rng.choice([0.05, 0.3, 1.0])
    epochs, began_s = range(EPOCHS * number, EPOCHS * (number + 1)), time.monotonic()
    threads = []
    for cluster, order in product(both, ORDERS):
        cluster.turn(lies, 0.0 if honest else share)
        job = f"{order} {rng.choice([0, number])}"
        threads += ranks(cluster.folders, cluster.addresses, order, result, epochs, job)
    run_ranks(threads, result)
    if not all(process.is_alive() for cluster in both for process in cluster.processes):
        result.wrong.append("a node has ended")
    result.wrong += [f"does not name the node: {error}" for error in result.errors if f"node {LIAR}" not in error]
    result.outcome = "wrong" if result.wrong else "refused" if result.errors else "right"
    result.seconds = time.monotonic() - began_s
    return result


def measure(cluster: Cluster) -> list[dict[str, float]]:
    """Return memory, threads and descriptors of the servers that do not lie."""
    found = []
    for node in HONEST:
        pid = cluster.processes[node].pid
        memory, place = memory_of(pid), Path(f"/proc/{pid}")
        assert memory is not None
        found.append(
            {
                "private_mb": round(memory.private_bytes / 1e6, 2),
                "threads": len(list((place / "task").iterdir())),
                "descriptors": len(list((place / "fd").iterdir())),
            }
        )
    return found


def growth(rows: Sequence[dict[str, Any]], cluster: int, server: int) -> float:
    """Return the slope of private memory in the second half of the samples, in MB in a thousand rounds."""
    later = rows[len(rows) // 2 :]
    if len(later) < 2:
        return 0.0
    values = [row["clusters"][cluster][server]["private_mb"] for row in later]
    return float(np.polyfit([row["round"] for row in later], values, 1)[0] * 1000)


def main() -> None:
    """Play rounds, and print a line for each sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="rounds from sample to sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--honest", action="store_true", help="no lies")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}  # the threads are ranks of one job
    logging.getLogger("brand").addHandler(logging.NullHandler())
    logging.getLogger("brand").propagate = False
    rows, outcomes, wrong, told = list[dict[str, Any]](), Counter[str](), list[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="brand-lies-") as folder, clusters(Path(folder)) as both:
        for number in range(given.rounds + 1):
            if number % given.every == 0 or number == given.rounds:
                told = sum((cluster.turn([], 0.0) for cluster in both), Counter[str]())
                rows.append({"round": number, "clusters": [measure(cluster) for cluster in both]})
                cells = [" ".join(map(str, each.values())) for found in rows[-1]["clusters"] for each in found]
                _say(f"| {number} | {told.total():,} | {' | '.join(cells)} | {dict(outcomes)} |")
            if number < given.rounds:
                result = play(both, number, given.seed, honest=given.honest)
                outcomes[result.outcome] += 1
                if result.wrong:
                    wrong.append(str(result))
                    _say(wrong[-1])
    show(rows, told, outcomes, wrong, given.out)
    sys.exit(bool(wrong))


def show(
    rows: Sequence[dict[str, Any]], told: Counter[str], outcomes: Counter[str], wrong: Sequence[str], out: Path | None
) -> None:
    """Print the result, and write it as JSON."""
    columns = ["round", *(f"{server} {what}" for server in COLUMNS for what in ("MB", "threads", "descriptors"))]
    cells = [[each for found in row["clusters"] for server in found for each in server.values()] for row in rows]
    table = [[str(row["round"]), *map(str, each)] for row, each in zip(rows, cells, strict=True)]
    harness.show("Servers that do not lie\n" + harness.table(columns, table))
    slopes = {name: f"{growth(rows, at // 2, at % 2):+.1f}" for at, name in enumerate(COLUMNS)}
    facts = {
        "rounds": rows[-1]["round"],
        "lies": told.total(),
        **{f"rounds {outcome}": outcomes[outcome] for outcome in ("right", "refused", "wrong")},
        **{f"growth of {name}, MB in 1,000 rounds": slope for name, slope in slopes.items()},
    }
    harness.show("All\n" + harness.table(["figure", "value"], [[name, str(value)] for name, value in facts.items()]))
    if out is not None:
        settings = {"rounds": rows[-1]["round"], "wrong": list(wrong)}
        harness.save(out, __doc__, settings, [], facts | {"lies by kind": dict(told)})


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
