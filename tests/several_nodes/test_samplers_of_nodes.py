"""Which samplers of several nodes must have the same order, and which one has for itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from brand.node.decide.draws import draws
from brand.node.decide.peers import peering
from brand.node.decide.peers.announcements import disagreement
from brand.node.wire.drawing import Begin, Drawing
from brand.node.wire.numbers import NodeNumber
from brand.orders.order import Order
from tests.made_orders import order_of
from tests.several_nodes.support import all_open
from tests.support import LIMIT_S, wait_until
from tests.tools.cluster import running_cluster

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that never begins is not waited for as long as storage is."""
    for module in (draws, peering):
        monkeypatch.setattr(module, "LONGEST_WAIT_S", 1.0)


def sampled(path: Path, ranks: Sequence[tuple[str, str]], epochs: int) -> list[Any]:
    """What two ranks say, each on a node of its own, that have these seeds, and these seeds of one more sampler.

    Rank 1 begins its epoch while rank 0 has not begun the same one.
    """
    with ExitStack() as stack, running_cluster(path, nodes=len(ranks), memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        processes = []
        for rank, (address, seeds) in enumerate(zip(cluster.addresses, ranks, strict=True)):
            job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
            program = [sys.executable, "-W", "error", "-m", "tests.several_nodes.sampling"]
            process = subprocess.Popen(
                [*program, str(path), address, str(epochs), *seeds],
                cwd=REPOSITORY,
                env=os.environ | job,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert _hear(process) == "ready"
        begun = []
        for process in reversed(processes):
            assert process.stdin is not None
            process.stdin.write("go on\n")
            process.stdin.flush()
            begun.append(_hear(process))
        told = zip(processes, reversed(begun), strict=True)
        return [_hear(process) if said == "begun" else said for process, said in told]


def _hear(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_sampler_that_only_one_rank_has_is_no_disagreement(texts: Path) -> None:
    """Rank 0 draws from one more sampler when rank 1 begins the epoch that both draw."""
    first, second = sampled(texts, [("0", "7"), ("0", "")], epochs=1)
    assert sorted(first + second) == list(range(1200))


def test_the_same_sampler_with_another_seed_is_refused(texts: Path) -> None:
    """A sampler that the program makes at one place has the same order on all nodes, also beside another sampler."""
    for told in sampled(texts, [("0", "7"), ("1", "")], epochs=100_000):
        assert re.search(r"^UsageError: .* disagree: seed is [01] on node [01] and [01] on node [01]$", told)


@pytest.mark.parametrize(
    ("ours", "theirs", "disagree"),
    [(None, None, False), (None, 1, False), (1, None, False), (1, 2, False), (1, 1, True)],
)
def test_only_orders_with_one_number_can_disagree(
    texts: Path, ours: int | None, theirs: int | None, disagree: bool
) -> None:
    """Samplers that a program makes at one place have one number; the others of a name are other samplers."""
    order = order_of(texts)
    here = Drawing("run", ours, order, 0, Begin(0, 2, (0,)), 0)
    there = replace(here, turn=theirs, order=replace(order, seed=order.seed + 1))
    assert (disagreement(NodeNumber(0), [here], NodeNumber(1), there) is not None) == disagree


BY_HAND = """
import json, sys
from brand.errors import BrandError
from brand.torch import BrandDataset, BrandLoader, BrandSampler

path, server, order, ranks, rank, job = sys.argv[1:]
ds = BrandDataset(path, fields=("index",), server=server, order=order, job=job or None)
found = []
try:
    sampler = BrandSampler(ds, seed=1, num_replicas=int(ranks), rank=int(rank))
    loader = BrandLoader(ds, 16, sampler=sampler)
    for epoch in range(2):
        for (batch,) in loader:
            found += batch.tolist()
    print(json.dumps([found, ds.stats(), sampler.state_dict()["order"]]))
except BrandError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def by_hand(path: Path, jobs: Sequence[str], order: str = "stripes", nodes: int = 2) -> list[Any]:
    """Return what each rank prints. No launcher starts the ranks, and they attach to the nodes in turn."""
    with running_cluster(path, nodes=nodes, memory=0.5) as cluster, ExitStack() as stack:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", BY_HAND, path, address, order, str(len(jobs)), str(rank), job],
                    cwd=REPOSITORY,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank, (address, job) in enumerate(zip(cycle(cluster.addresses), jobs, strict=False))
        ]
        return [json.loads(process.communicate(timeout=LIMIT_S)[0]) for process in processes]


def test_ranks_by_hand_need_a_name_for_their_job(texts: Path) -> None:
    """Without one, a node would wait in each epoch for ranks that it could not know; the hint helps."""
    for kind, said in by_hand(texts, ["", ""]):
        assert kind == "UsageError"
        assert 'job="' in said
    (first, counts, _), (second, others, _) = by_hand(texts, ["lr-0.1", "lr-0.1"])
    assert counts["timeouts"] == others["timeouts"] == 0
    assert sorted(first[:600] + second[:600]) == sorted(first[600:] + second[600:]) == list(range(1200))


def test_slots_are_planned_for_the_ranks_that_are_given(texts: Path) -> None:
    """Three ranks on three nodes request what the plan says, and read nothing directly. Four or one are refused."""
    said = by_hand(texts, ["a"] * 3, "slots", nodes=3)
    plan = said[0][2]
    assert (plan["nodes"], plan["ranks"]) == (3, 3)
    assert sorted(index for found, *_ in said for index in found[:400]) == list(range(1200))
    order = Order.from_json(plan)
    requests = [order.plan(epoch).requests for epoch in range(2)]
    assert sum(counts["requests"] for _, counts, _ in said) == sum(len(of.positions) for of in requests if of)
    assert [counts["remote_reads"] for _, counts, _ in said] == [0, 0, 0]
    for ranks in (4, 1):
        for kind, why in by_hand(texts, ["a"] * ranks, "slots", nodes=3):
            assert kind == "UsageError"
            assert f"equally many of {ranks} rank" in why
            assert "order='stripes'" in why
