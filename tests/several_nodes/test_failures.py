"""Nodes die, hang, come back and lie: every sample still comes once, or an error says why not, and nobody hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.cluster.process import server_of
from brand.errors import UnreachableError, UsageError
from brand.node.decide.draws import fetches
from brand.node.setup.server_spec import Member, ServerSpec
from brand.orders.base.policy import Policy
from brand.orders.policies.stripe_policy import StripePolicy
from brand.orders.policies.uniform import UniformPolicy
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import random_address, running
from brand.testing.storage import Fault, FaultyStorage
from brand.torch import BrandDataset, BrandSampler
from tests import places
from tests.made_orders import SLOTS, STRIPES, order_of, slots_across
from tests.rounds import Chance, rounds
from tests.several_nodes.support import (
    Rank,
    all_open,
    all_reachable,
    check_epoch,
    draw_in_step,
    node_of,
    servers,
)
from tests.support import LIMIT_S, wait_until
from tests.tools.cluster import running_cluster

pytestmark = [places.EVERYWHERE, pytest.mark.slow]


@rounds(2)
def test_a_node_is_killed_at_any_moment(texts: Path, chance: Chance) -> None:
    """By `kill -9`, and sometimes it comes back: the others draw every sample once, from the shared storage."""
    rng, order = chance.rng, order_of(texts)
    with ExitStack() as stack, servers(texts, 3, memory=rng.choice([0.3, 0.6])) as found:
        clients = [stack.enter_context(closing(node_of(texts, server.address))) for server in found[:2]]
        drawing = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]

        def disturb() -> None:
            time.sleep(rng.uniform(0, 1.5))
            found[2].kill()
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.5))
                found[2].start()
                found[2].tell([server.listens_at for server in found])

        thread = threading.Thread(target=disturb)
        thread.start()
        draw_in_step(drawing, range(4))
        thread.join()
        for epoch in range(4):
            check_epoch(drawing, epoch)


@pytest.mark.parametrize("policy", [STRIPES, slots_across(3, 3), UniformPolicy(4)], ids=["stripes", "slots", "uniform"])
@pytest.mark.usefixtures("patient")
def test_a_server_that_takes_the_place_of_another_one_goes_on_with_the_epoch(texts: Path, policy: Policy) -> None:
    """Its rank tells it where it is: it reads ahead from there, and other nodes send. Few samples are read directly."""
    order = order_of(texts, policy)
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 3) for rank, client in enumerate(clients)]
        draw_in_step(drawing, [0])
        before = sum(rank.late for rank in drawing)

        def replace_server(batches: int) -> None:
            if batches == 8:
                cluster.kill(2)
                cluster.restart(2)
                wait_until(lambda: all_open(cluster), "all nodes can be reached again")

        draw_in_step(drawing, [1], replace_server)
        draw_in_step(drawing, [2])
        for epoch in range(3):
            check_epoch(drawing, epoch)
        rest = 400 - 8 * 16
        assert sum(rank.late for rank in drawing) - before < rest / 4
        assert cluster.facts(2)["received"] > rest / 4


def test_a_node_that_hangs(texts: Path) -> None:
    """It is stopped, not ended: its samples are read from storage, and when it goes on it takes part again."""
    order = order_of(texts)
    with ExitStack() as stack, servers(texts, 3, memory=0.5) as found:
        wait_until(lambda: all_reachable(found), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, server.address))) for server in found[:2]]
        drawing = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]
        draw_in_step(drawing, [0])
        os.kill(found[2].process, signal.SIGSTOP)
        try:
            draw_in_step(drawing, [1])
        finally:
            os.kill(found[2].process, signal.SIGCONT)
        wait_until(lambda: all_reachable(found), "all nodes can be reached again")
        before = found[2].facts()["sent"]
        draw_in_step(drawing, [2])
        for epoch in range(3):
            check_epoch(drawing, epoch)
        assert found[2].facts()["sent"] > before


def test_a_link_is_cut_and_mended(texts: Path) -> None:
    """Both ways, in the middle of epochs."""
    order = order_of(texts)
    with ExitStack() as stack, running_cluster(texts, nodes=3, memory=0.5) as cluster:
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 3) for rank, client in enumerate(clients)]

        def disturb(batches: int) -> None:
            pair = ((0, 1), (2, 0), (1, 2))[batches // 20 % 3]
            if batches % 20 == 5:
                cluster.links[pair].cut()
            elif batches % 20 == 15:
                cluster.links[pair].mend()

        draw_in_step(drawing, range(3), disturb)
        for epoch in range(3):
            check_epoch(drawing, epoch)


def test_a_link_that_swallows_everything(texts: Path) -> None:
    """A cable is pulled: nothing is said any more, and nothing ends. What should have come is read from storage."""
    order = order_of(texts)
    with ExitStack() as stack, running_cluster(texts, nodes=2, memory=0.5) as cluster:
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]
        draw_in_step(drawing, [0])
        for link in cluster.links.values():
            link.hold()
        draw_in_step(drawing, [1])
        for link in cluster.links.values():
            link.release()
        draw_in_step(drawing, [2])
        for epoch in range(3):
            check_epoch(drawing, epoch)


def test_slow_links(texts: Path) -> None:
    """What comes late is asked for, or read from storage."""
    order = order_of(texts)
    with ExitStack() as stack, running_cluster(texts, nodes=2, memory=0.5) as cluster:
        for link in cluster.links.values():
            link.bytes_per_s = 300_000
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]
        draw_in_step(drawing, range(2))
        for epoch in range(2):
            check_epoch(drawing, epoch)
        assert sum(link.relayed for link in cluster.links.values()) > 300_000


def test_a_chunk_that_one_node_cannot_read(texts: Path) -> None:
    """Its owner leaves its samples out; who draws them reads them from storage, where they are whole."""
    order = order_of(texts)
    broken = FaultyStorage(Fault(chunk=35))
    with ExitStack() as stack, running_cluster(texts, nodes=2, memory=0.5, storage={1: broken}) as cluster:
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        drawing = [Rank(client, order, rank, 2) for rank, client in enumerate(clients)]
        draw_in_step(drawing, range(2))
        for epoch in range(2):
            check_epoch(drawing, epoch)
        assert cluster.facts(1)["failed_reads"] > 0
        assert sum(rank.late for rank in drawing) >= 32


@pytest.mark.usefixtures("one_job")
def test_shares_on_three_nodes(shares: list[Path]) -> None:
    """No node has all chunks; `BrandDataset` draws every sample, and reads by index those of other nodes."""
    with servers(shares, 3, memory=0.5) as found:
        data_sets = [BrandDataset(server.path, server=server.address) for server in found]
        samplers = [BrandSampler(d, num_replicas=3, rank=rank) for rank, d in enumerate(data_sets)]
        seen: list[list[int]] = [[], [], []]

        def draw(rank: int) -> None:
            tickets = list(samplers[rank])
            for first in range(0, len(tickets), 16):
                for sample in data_sets[rank].__getitems__(tickets[first : first + 16]):
                    assert sample["text"].startswith(f"{sample['number']}:")
                    seen[rank].append(sample["index"])

        threads = [threading.Thread(target=draw, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert sorted(seen[0] + seen[1] + seen[2]) == list(range(1200))
        wanted = np.random.default_rng(0).permutation(1200)[:200].tolist()
        assert [sample["number"] for sample in data_sets[1].__getitems__(wanted)] == wanted
        for data_set in data_sets:
            data_set._source.port.client.close()


def test_a_share_whose_node_is_gone_is_an_error_that_names_it(
    shares: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has its chunks: the draw fails, and says which node, group and position."""
    order = order_of(shares[0])
    monkeypatch.setattr(fetches, "LIMIT_S", 1.0)
    with running_cluster(shares, nodes=3, memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        data_set = BrandDataset(shares[0], server=cluster.addresses[0])
        sampler = BrandSampler(data_set)
        tickets = list(sampler)
        data_set.__getitems__(tickets[:16])
        cluster.kill(2)
        lost = StoredDataSet(shares[2])
        mine = lost.chunks_here
        with pytest.raises(
            UnreachableError, match=r"position [\d,]+ of epoch 0 \(group \d+\), of rank 0 of 1, .*node 2 cannot be"
        ):
            data_set.__getitems__(tickets[16:])
        elsewhere = int(lost.indices(np.array([mine.start * order.chunk_size]))[0])
        with pytest.raises(UnreachableError, match="node 2 cannot be reached"):
            data_set[elsewhere]
        here = int(StoredDataSet(shares[0]).indices(np.array([0]))[0])
        assert data_set[here]["number"] == here
        data_set._source.port.client.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed is [01] on node [01] and [01] on node [01]"),
        ({"policy": StripePolicy(4, stripe=2)}, "stripe is [24] on node [01] and [24] on node [01]$"),
        (
            {"policy": StripePolicy(2, stripe=4)},
            "group_chunks is .*; group_chunks follows from the memory: give all nodes",
        ),
        ({"policy": SLOTS}, "protocol is (stripes|slots) on node [01] and (stripes|slots) on node [01]; stripe is"),
        ({}, "begins epoch"),
    ],
)
@pytest.mark.usefixtures("patient")
def test_nodes_that_disagree_are_refused_at_once(texts: Path, change: dict[str, Any], said: str) -> None:
    """About the order, or where it begins: the error names both nodes and what differs."""
    orders = [order_of(texts), order_of(texts, **change)]
    with ExitStack() as stack, running_cluster(texts, nodes=2, memory=0.5) as cluster:
        wait_until(lambda: all_open(cluster), "all nodes can be reached")
        clients = [stack.enter_context(closing(node_of(texts, address))) for address in cluster.addresses]
        starts = [0, 0] if change else [0, 64]
        drawing = [Rank(c, orders[r], r, 2, start=starts[r]) for r, c in enumerate(clients)]
        with pytest.raises(UsageError, match=said):
            draw_in_step(drawing, range(3))


def test_a_node_with_another_memory_is_refused(texts: Path) -> None:
    """Both say which memory each has, and what to do; no rank draws."""
    token, found = "a token for tests only, 32 bytes", []
    with ExitStack() as stack:
        for node, memory in enumerate((0.5, 0.25)):
            made = server_of(ServerSpec(texts, random_address(), memory, member=Member(node, 2, token)))
            found.append(stack.enter_context(running(str(texts), made)))
        for node, server in enumerate(found):
            server.node.connect({1 - node: found[1 - node].node.listens_at or ""})
        for server in found:
            client = stack.enter_context(closing(node_of(texts, server.address)))
            rank = Rank(client, order_of(texts), 0, 1)
            with pytest.raises(UsageError, match=r"memory for 0\.\d+ of the data, .*give all nodes the same --memory"):
                draw_in_step([rank], range(1000))  # it hears so as soon as the nodes have met
