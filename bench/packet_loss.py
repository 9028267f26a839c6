"""Do nodes draw every sample once over a network that loses, repeats, delays and reorders packets, and how fast?

    sudo python -m bench.packet_loss [--nodes 3] [--epochs 3] [--only NAME] [--partitions]

Each node runs in a network namespace of its own, with a data server and a rank. A process relays the packets between
their TUN devices, and decides about each by a seed. (`tc netem` would do the same, on a kernel that has it.) Each rank
gets what the plan has at its positions, all together each sample once, within `LIMIT_S`; with `--partitions` each node
has only a third of the chunks, so all others have to come through the network. Prints a row for each network: packets
relayed, lost, repeated and delayed; seconds; samples that were read from storage because they came too late.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import brand
from brand.cluster.namespaces import NETWORK, Namespace
from brand.cluster.process import server_of
from brand.node.client.client import Client
from brand.node.setup.server_spec import Member, ServerSpec
from brand.orders.base.owners import owner_of_chunk
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.partition import partition
from brand.testing.node import random_address, running

LIMIT_S, PORT, SAMPLES, BATCH = 300.0, 7077, 1200, 16
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _MTU = 0x400454CA, 1, 0x1000, 1 << 16
TOKEN: Final = "known to all nodes of this bench"


@dataclass(frozen=True)
class Weather:
    """Shares of packets that are lost, repeated and delayed by up to `late_s` more than the others."""

    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    late_s: float = 0.02
    delay_s: float = 0.0
    """Delay of every packet, in seconds."""


WEATHERS: Final = {
    "fair": Weather(),
    "loss 1 %": Weather(loss=0.01),
    "loss 5 %": Weather(loss=0.05),
    "loss 20 %": Weather(loss=0.2),
    "reordered 30 %": Weather(late=0.3),
    "repeated 30 %": Weather(twice=0.3),
    "delay 50 ms": Weather(delay_s=0.05),
    "all together": Weather(0.05, 0.1, 0.2, 0.05, 0.02),
}


class Relay:
    """Passes packets between TUN devices, by the address of their target, in a thread."""

    def __init__(self, devices: dict[bytes, int], weather: Weather, seed: int) -> None:
        self._devices, self._weather, self._rng = devices, weather, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._ended = threading.Event()
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            now_s = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now_s:
                _, _, device, packet = heapq.heappop(self._waiting)
                self._pass(device, packet)
            wait_s = max(0.0, self._waiting[0][0] - now_s) if self._waiting else 0.1
            for device in select.select(list(self._devices.values()), [], [], min(wait_s, 0.1))[0]:
                self._take(os.read(device, _MTU))

    def _take(self, packet: bytes) -> None:
        device = self._devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if device is None:
            return
        weather, rng = self._weather, self._rng
        self.counts["packets"] += 1
        if rng.random() < weather.loss:
            self.counts["lost"] += 1
            return
        for copy in range(1 + (rng.random() < weather.twice)):
            self.counts["repeated"] += copy
            after_s = weather.delay_s
            if rng.random() < weather.late:
                self.counts["late"] += 1
                after_s += rng.uniform(0, weather.late_s)
            if after_s:
                heapq.heappush(self._waiting, (time.monotonic() + after_s, next(self._numbers), device, packet))
            else:
                self._pass(device, packet)

    def _pass(self, device: int, packet: bytes) -> None:
        try:
            os.write(device, packet)
        except OSError:  # its queue is full
            self.counts["lost"] += 1


@contextmanager
def spaces_with(weather: Weather, nodes: int, seed: int) -> Iterator[tuple[list[Namespace], Relay]]:
    """Make network namespaces that are joined by a relay."""
    spaces = [Namespace(f"brand-{os.getpid()}-{node}", str(NETWORK[node + 1])) for node in range(nodes)]
    devices: dict[bytes, int] = {}
    with ExitStack() as made:
        for node, space in enumerate(spaces):
            _call("ip netns add", space.name)
            made.callback(_call, "ip netns delete", space.name)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            made.callback(os.close, device)
            name = f"brand{node}"
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
            _call("ip link set", name, "netns", space.name)
            _call(f"ip -n {space.name} address add {space.address}/{NETWORK.prefixlen} dev {name}")
            _call(f"ip -n {space.name} link set {name} up")
            _call(f"ip -n {space.name} link set lo up")
            devices[bytes(map(int, space.address.split(".")))] = device
        made.enter_context(closing(relay := Relay(devices, weather, seed)))
        yield spaces, relay


def _kill(children: Sequence[subprocess.Popen[str]]) -> None:
    for child in children:
        child.kill()


def _call(*words: str) -> None:
    subprocess.run(" ".join(words).split(), check=True, timeout=20)


def draw(paths: Sequence[str], addresses: Sequence[str], node: int, epochs: int, order: str) -> None:
    """Serve and draw as one node, in a process of its own; print what was drawn."""
    from tests.made_orders import order_of, slots_across
    from tests.several_nodes.support import Rank

    path, nodes = paths[node], len(addresses)
    bind = f"{addresses[node]}:{PORT}"
    server = server_of(ServerSpec(path, random_address(), 0.5, member=Member(node, nodes, TOKEN, bind)))
    server.connect({other: f"{address}:{PORT}" for other, address in enumerate(addresses) if other != node})
    data = StoredDataSet(path)
    plan = order_of(Path(path), slots_across(nodes, nodes)) if order == "slots" else order_of(Path(path))
    with running(path, server) as found:
        if data.share is None:
            with closing(
                Client(ServerSpec(path, found.address), data.id, data.mean_bytes, "run", attach=True)
            ) as client:
                rank = Rank(client, plan, node, nodes, BATCH)
                rank.run(range(epochs), threading.Barrier(1))
                if rank.error is not None:
                    raise rank.error
                drawn = [np.concatenate(rank.drawn[epoch]).tolist() for epoch in range(epochs)]
                late = rank.late
        else:
            drawn, late = _by_data_set(path, found.address, node, nodes, epochs), 0
        print(json.dumps({"drawn": drawn, "late": late}), flush=True)
        sys.stdin.read()  # other nodes may still need this one


def _by_data_set(path: str, address: str, node: int, nodes: int, epochs: int) -> list[list[int]]:
    """Draw from partitions as a training does, and compare the values."""
    from brand.torch import BrandDataset, BrandSampler

    data_set = BrandDataset(path, server=address)
    sampler, drawn = BrandSampler(data_set, num_replicas=nodes, rank=node), list[list[int]]()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        tickets, found = list(sampler), list[int]()
        for first in range(0, len(tickets), BATCH):
            for sample in data_set.__getitems__(tickets[first : first + BATCH]):
                assert sample["text"] == text(sample["index"])
                found.append(sample["index"])
        drawn.append(found)
    return drawn


def text(number: int) -> str:
    """Return the text of a sample."""
    return f"{number}:" + f"{number * 7919 % 1000}," * (number * 31 % 97)


def measure(
    weather: Weather, nodes: int, epochs: int, order: str, work: Path, *, parts: bool, seed: int
) -> dict[str, Any]:
    """Let all nodes draw over this network."""
    whole = work / "set.brand"
    paths = [str(work / f"node-{node}") for node in range(nodes)] if parts else [str(whole)] * nodes
    with spaces_with(weather, nodes, seed) as (spaces, relay):
        addresses, began_s = [space.address for space in spaces], time.monotonic()
        environment = os.environ | {"RANK": "0", "WORLD_SIZE": str(nodes), "MASTER_ADDR": "127.0.0.1"}
        arguments = json.dumps({"paths": paths, "addresses": addresses, "epochs": epochs, "order": order})
        children = [
            subprocess.Popen(
                space.command([sys.executable, "-m", "bench.packet_loss", "--node", str(node), "--given", arguments]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for node, space in enumerate(spaces)
        ]
        timer = threading.Timer(LIMIT_S, _kill, (children,))
        timer.start()
        try:
            said = [child.stdout.readline() if child.stdout else "" for child in children]
            took_s = time.monotonic() - began_s
        finally:
            timer.cancel()
            for child in children:
                if child.stdin:
                    child.stdin.close()
            for child in children:
                child.wait(120)
        found = [json.loads(line) if line else None for line in said]
        result: dict[str, Any] = {"seconds": took_s, **relay.counts}
    ended = [each for each in found if each is not None]
    if len(ended) < nodes:
        return result | {"wrong": "a node ended, or did not end within the limit"}
    result["late"] = sum(each["late"] for each in ended)
    for epoch in range(epochs):
        once = sorted(itertools.chain.from_iterable(each["drawn"][epoch] for each in ended))
        if once != list(range(SAMPLES)):
            return result | {"wrong": f"epoch {epoch} has not each sample once"}
    return result


def main() -> None:
    """Measure, or be a node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", choices=WEATHERS)
    parser.add_argument("--order", choices=("stripes", "slots"), default="stripes")
    parser.add_argument("--partitions", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--given", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.given is not None:
        draw(node=given.node, **given.given)
        return
    wrong = False
    with tempfile.TemporaryDirectory(prefix="brand-loss-") as folder:
        work = Path(folder)
        samples = [{"number": number, "text": text(number)} for number in range(SAMPLES)]
        brand.pack(samples, work / "set.brand", {"number": "int", "text": "str"}, chunk_size=32, jobs=1)
        if given.partitions:
            outs = [work / f"node-{node}" for node in range(given.nodes)]
            owners = owner_of_chunk(StoredDataSet(work / "set.brand").header.chunks, 4, given.nodes).astype(np.int64)
            partition(work / "set.brand", outs, owners, 4, copy=True)
        for name, weather in WEATHERS.items():
            if given.only in (None, name):
                more = {"parts": given.partitions, "seed": given.seed}
                found = measure(weather, given.nodes, given.epochs, given.order, work, **more)
                wrong |= "wrong" in found
                print(f"{name:16} {found}", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
