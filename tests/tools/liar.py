"""A node that knows the token, and lies: what its server says to the other nodes is changed on the way.

    python -m tests.tools.liar [--messages 10000] [--seed N] [--first N] [--kind LIE]

`Liar` is the `Network` of a real server: the server says the right thing at the right time, and the liar sends
something else over real gRPC. Node 1 of three lies, and ranks of nodes 0 and 2 take two epochs: of a folder that all
nodes see, or of partitions, of which node 1 has some chunks alone. A round is right if each rank gets what the plan has
at its positions, with the right values, or an error of Brand's that names node 1; within `LIMIT_S`; and if the memory
of the process stays below `LARGEST_BYTES`. Prints the messages by lie, and the rounds by outcome.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal
from unittest import mock

import numpy as np

import brand
from brand.cluster.options import MAX_MESSAGE
from brand.cluster.peers import PeerStreams
from brand.errors import BrandError, ProtocolError
from brand.node.decide.peers.parts import MESSAGE_BYTES
from brand.node.memory.pages import ROW_BYTES
from brand.node.wire import peer_messages as wire
from brand.node.wire.network import PeerStream
from brand.node.wire.numbers import NodeNumber
from brand.orders.base.owners import owner_of_chunk
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.partition import partition
from brand.torch import BrandDataset, BrandSampler
from tests.tools.cluster import running_cluster

LIAR: Final = 1
NODES, EPOCHS, BATCH, SAMPLES = 3, 2, 40, 600
LIMIT_S: Final = 120.0
"""Seconds that a round may take. Most limits of a server are a tenth of the real ones (`SHORT`)."""
SHORT: Final = {
    "brand.node.decide.draws.draws.LONGEST_WAIT_S": 3.0,
    "brand.node.decide.peers.peering.LONGEST_WAIT_S": 3.0,
    "brand.node.decide.peers.receiving.HURRY_S": 0.02,
    "brand.node.decide.peers.receiving.SILENCE_S": 0.2,
    "brand.node.decide.peers.peering.SILENCE_S": 0.2,
    "brand.node.decide.peers.parts.PART_S": 0.3,
    "brand.cluster.asking.FIRST_PAUSE_S": 0.02,
    "brand.cluster.asking.LONGEST_PAUSE_S": 0.2,
}
LARGEST_BYTES: Final = 1_200_000_000
"""Peak memory of the process, in which three servers, the ranks and PyTorch live."""

OrderName = Literal["stripes", "slots"]
Lie = Callable[[random.Random, bytes, "Liar"], list[bytes]]
"""What is sent in place of a message."""


def _flipped(rng: random.Random, message: bytes, __: Liar) -> list[bytes]:
    changed = bytearray(message)
    for _ in range(rng.choice([1, 1, 3])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return [bytes(changed)]


def _truncated(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    return [message[: rng.randrange(len(message))]]


def _extended(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    return [message + rng.randbytes(rng.choice([1, 8, 128, 4096]))]


def _huge(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    return [message[: rng.choice([4, 16, len(message)])].ljust(MAX_MESSAGE, bytes([rng.randrange(256)]))]


def _counted_wrong(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    """A number of the head is another one: a length, a size, an offset, an epoch."""
    at = rng.choice([4, 8, 12, 16, 20])
    number = rng.choice([0, 1, 2, 255, 1 << 16, (1 << 31) - 1, (1 << 32) - 1])
    return [message[:at] + number.to_bytes(4, "little") + message[at + 4 :]]


def _repeated(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    return [message] * rng.choice([2, 3, 50])


def _dropped(_: random.Random, message: bytes, __: Liar) -> list[bytes]:
    return []


def _stale(rng: random.Random, message: bytes, liar: Liar) -> list[bytes]:
    """Something that was said before, in this epoch or another one."""
    return [rng.choice(liar.said)] if rng.random() < 0.5 else [message, rng.choice(liar.said)]


def _swapped(_: random.Random, message: bytes, liar: Liar) -> list[bytes]:
    """Two messages change places."""
    if liar.held is None:
        liar.held = message
        return []
    held, liar.held = liar.held, None
    return [message, held]


def _other(rng: random.Random, message: bytes, _: Liar) -> list[bytes]:
    return [rng.randbytes(rng.choice([0, 1, 4, 40, 4000]))]


def _other_samples(rng: random.Random, message: bytes, liar: Liar) -> list[bytes]:
    """The right form, with a lie in it: other places, other bytes, another epoch, nothing at all."""
    try:
        said = wire.unpack_reply(message, liar.page)
    except ProtocolError:
        return _other_question(rng, message, liar)
    match said:
        case wire.Push():
            data = said.data.copy()
            data[:, ROW_BYTES:] = rng.choice([data[::-1, ROW_BYTES:], data[:, ROW_BYTES:] ^ 1, 0 * data[:, ROW_BYTES:]])
            lies: list[dict[str, Any]] = [
                {"data": data},
                {"places": said.places[::-1]},
                {"places": said.places + 1},
                {"places": np.full_like(said.places, rng.choice([-1, SAMPLES, 1 << 62, 0]))},
                {"number": rng.choice([0, said.number + 1, 1 << 31])},
                {"places": said.places[:0], "missed": said.places, "data": said.data[:0]},
                {"places": said.places[:0], "data": said.data[:0]},
                {"missed": said.places},
            ]
            return [wire.pack(replace(said, **rng.choice(lies)))]
        case wire.PushPart():
            changes: list[dict[str, Any]] = [
                {"data": said.data ^ 1},
                {"data": said.data[:1]},
                {"data": said.data.repeat(2, axis=0)},
                {"place": rng.choice([said.place + 1, SAMPLES, (1 << 64) - 1])},
                {"first": rng.choice([0, said.first + 1, (1 << 32) - 1])},
                {"number": said.number + 1},
            ]
            return [wire.pack(replace(said, **rng.choice(changes)))]
        case wire.FetchReply():
            part = bytes(said.part)
            other = bytes(255 - byte if at > 8 else byte for at, byte in enumerate(part))
            replies: list[dict[str, Any]] = [
                {"part": memoryview(other)},
                {"part": memoryview(part[:0]), "size": 0},
                {"part": memoryview(part[: len(part) // 2]), "size": len(part) // 2},
                {"part": memoryview(bytes(len(part)))},
                {"part": memoryview(b"\2" * len(part))},
                {"number": said.number + 1},
                {"size": said.size + 1},
                {"size": 1 << 60},
                {"part": memoryview(part[:0])},
            ]
            return [wire.pack(replace(said, **rng.choice(replies)))]
    return [message]


def _other_question(rng: random.Random, message: bytes, liar: Liar) -> list[bytes]:
    try:
        said = wire.unpack_question(message, NodeNumber(LIAR))
    except ProtocolError:
        return [message]
    numbers = np.array([rng.choice([-1, 0, 1, SAMPLES - 1, SAMPLES, 1 << 62]) for _ in range(rng.choice([1, 3]))])
    more: list[Any] = [
        wire.PeerCapacity(rng.choice([0, 1, wire.MAX_ROOM])),
        wire.SampleRequest(rng.choice([0, 1, 2, 9]), rng.choice([0, wire.MAX_ROOM]), numbers),
        wire.Fetch(rng.choice([0, 1, 1 << 40]), np.arange(rng.choice([1, SAMPLES]))),
        wire.Fetch(1, numbers),
        wire.LeadingOffset(rng.choice([0, 1, 2]), 1 << 40, 1 << 40),
    ]
    if isinstance(said, wire.EpochAnnounced):
        begin = replace(said.drawing.begin, front=rng.choice([0, SAMPLES, 1 << 40]))
        more += [
            replace(said, drawing=replace(said.drawing, epoch=said.drawing.epoch + rng.choice([1, 1000]))),
            replace(said, drawing=replace(said.drawing, begin=begin)),
            replace(said, drawing=replace(said.drawing, name=f"run {rng.random()}")),
            replace(said, asks=not said.asks),
            wire.EpochReleased(said.drawing.name, said.drawing.order, None),
        ]
    return [message, *(wire.pack(each) for each in rng.sample(more, 2))]


LIES: Final[dict[str, Lie]] = {
    "flipped": _flipped,
    "truncated": _truncated,
    "extended": _extended,
    "huge": _huge,
    "counted wrong": _counted_wrong,
    "repeated": _repeated,
    "dropped": _dropped,
    "stale": _stale,
    "swapped": _swapped,
    "random": _other,
    "other samples": _other_samples,
}


class Liar:
    """The network of a node that lies in a `share` of what it says, with `lies`."""

    def __init__(self, inner: PeerStreams, page: int, rng: random.Random, lies: Sequence[str], share: float) -> None:
        self._inner, self._rng, self._lies, self._share = inner, rng, lies, share
        self.page, self.wake, self.address = page, inner.wake, inner.address
        self.held: bytes | None = None
        self.said: list[bytes] = []
        """Some right messages."""
        self.told: Counter[str] = Counter()
        """Messages that were changed, by lie."""
        self.connect, self.events, self.unsent = inner.connect, inner.events, inner.unsent
        self.hang_up, self.close = inner.hang_up, inner.close

    def turn(self, lies: Sequence[str], share: float) -> None:
        """Lie in other ways, and in another share of the messages."""
        self._lies, self._share = lies, share

    def send(self, stream: PeerStream, message: bytes) -> None:
        """Send this message, or something else."""
        if len(self.said) < 200:
            self.said.append(message)
        messages = [message]
        if self._rng.random() < self._share:
            lie = self._rng.choice(self._lies)
            self.told[lie] += 1
            messages = LIES[lie](self._rng, message, self)
        for each in messages:
            self._inner.send(stream, each)


@dataclass
class LyingRound:
    """What one round led to."""

    number: int
    told: Counter[str] = field(default_factory=Counter)
    outcome: str = "right"
    right: int = 0
    """Samples that were delivered, and right."""
    errors: list[str] = field(default_factory=list)
    """Of Brand's."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def make_sets(folder: Path) -> tuple[Path, list[Path]]:
    """A data set, and its partitions for three nodes."""
    whole = folder / "whole.brand"
    samples = [{"number": k, "text": f"{k}:" + f"{k * 7919 % 1000}," * (k * 31 % 97)} for k in range(SAMPLES)]
    brand.pack(samples, whole, {"number": "int", "text": "str"}, chunk_size=16, compression="none", jobs=1)
    outs = [folder / f"node-{node}" for node in range(NODES)]
    owners = owner_of_chunk(StoredDataSet(whole).header.chunks, 4, NODES).astype(np.int64)
    partition(whole, outs, owners, 4, copy=True)
    return whole, outs


def run_round(whole: Path, outs: list[Path], seed: int, number: int, lie: str | None = None) -> LyingRound:
    """Let node 1 lie while the others train."""
    rng = random.Random(f"{seed}/{number}")
    result = LyingRound(number)
    lies = [lie] if lie else rng.sample(sorted(LIES), rng.choice([1, 2, len(LIES)]))
    share, divided = rng.choice([0.05, 0.3, 1.0]), rng.choice([False, True])
    folders = outs if divided else [whole] * NODES
    liars: list[Liar] = []

    def network(greeting: Any, token: str, bind: str, tls: Any = None) -> Any:
        inner = PeerStreams(greeting, token, bind, tls)
        if greeting.node != LIAR:
            return inner
        liars.append(Liar(inner, greeting.page, rng, lies, share))
        return liars[-1]

    started = time.monotonic()
    order: OrderName = rng.choice(["stripes", "slots"])
    with ExitStack() as stack:
        for name, limit in SHORT.items():
            stack.enter_context(mock.patch(name, limit))
        # In messages of two pages, many samples are sent in parts.
        message_bytes = rng.choice([256, MESSAGE_BYTES])
        stack.enter_context(mock.patch("brand.node.decide.peers.parts.MESSAGE_BYTES", message_bytes))
        stack.enter_context(mock.patch("brand.cluster.process.PeerStreams", network))
        cluster = stack.enter_context(running_cluster(folders, nodes=NODES, memory=0.5))
        run_ranks(ranks(folders, cluster.addresses, order, result), result)
        result.wrong += [
            f"node {node} has ended" for node, server in cluster.servers.items() if not server.thread.is_alive()
        ]
    result.told = liars[0].told
    result.seconds = time.monotonic() - started
    result.wrong += [f"does not name the node: {error}" for error in result.errors if f"node {LIAR}" not in error]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if most > LARGEST_BYTES:
        result.wrong.append(f"{most / 1e6:,.0f} MB")
    result.outcome = "wrong" if result.wrong else "refused" if result.errors else "right"
    return result


def ranks(
    folders: Sequence[Path],
    addresses: Sequence[str],
    order: OrderName,
    result: LyingRound,
    epochs: range = range(EPOCHS),
    job: str | None = None,
) -> list[threading.Thread]:
    """Return the ranks of a round, one on each node. The one on the node that lies is started, and does not count."""
    threads = []
    for node in range(NODES):
        counts = result if node != LIAR else LyingRound(result.number)
        given = (folders[node], addresses[node], order, node, counts, epochs, job)
        threads.append(threading.Thread(target=take_epochs, args=given, daemon=True))
    threads.pop(LIAR).start()
    return threads


def run_ranks(threads: Sequence[threading.Thread], result: LyingRound) -> None:
    """Run the ranks of a round. Note in its result if they have not ended within the limit."""
    end_s = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        result.wrong.append(f"hangs for more than {LIMIT_S} s")


def take_epochs(
    path: Path,
    address: str,
    order: OrderName,
    rank: int,
    result: LyingRound,
    epochs: range,
    job: str | None,
) -> None:
    """Take epochs as the rank of a node, and compare each sample. An error of Brand's ends it."""
    data_set = BrandDataset(path, server=address, order=order, job=job)
    try:
        sampler = BrandSampler(data_set, num_replicas=NODES, rank=rank)
        data = StoredDataSet(path)
        for epoch in epochs:
            sampler.set_epoch(epoch)
            plan = data.indices(sampler.order.plan(epoch).sample_of).tolist()[rank::NODES]
            tickets, found = list(sampler), list[int]()
            for first in range(0, len(tickets), BATCH):
                for sample in data_set.__getitems__(tickets[first : first + BATCH]):
                    index = sample["index"]
                    if sample["text"] != f"{index}:" + f"{index * 7919 % 1000}," * (index * 31 % 97):
                        result.wrong.append(f"sample {index} of epoch {epoch}: {sample!r:.200}")
                    found.append(index)
            if found != plan:
                result.wrong.append(f"rank {rank} got another order in epoch {epoch}")
            result.right += len(found)
    except BrandError as error:
        result.errors.append(f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - looked for
        result.wrong.append(f"{type(error).__name__}: {error}")
    finally:
        data_set._source.port.client.close()


def main() -> None:
    """Run rounds until so many messages were changed."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.liar", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, help="(a fresh one)")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--kind", choices=LIES, help="only this lie")
    given = parser.parse_args()
    seed = secrets.randbits(32) if given.seed is None else given.seed
    os.environ |= {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}  # the threads are ranks of one job
    logging.getLogger("brand").addHandler(logging.NullHandler())
    logging.getLogger("brand").propagate = False
    told, outcomes, right, number, slowest = Counter[str](), Counter[str](), 0, given.first, 0.0
    with tempfile.TemporaryDirectory(prefix="brand-liar-") as folder:
        whole, outs = make_sets(Path(folder))
        while told.total() < given.messages:
            result = run_round(whole, outs, seed, number, given.kind)
            told += result.told
            outcomes[result.outcome] += 1
            sys.stderr.write(f"{number}: {result.outcome}, {result.seconds:.1f} s, {dict(result.told)}\n")
            right, slowest = right + result.right, max(slowest, result.seconds)
            if result.wrong:
                sys.stdout.write(f"--seed {seed} --first {number} --messages 1: {result}\n")
                sys.stdout.flush()
            number += 1
    for lie, count in told.most_common():
        sys.stdout.write(f"{lie:20} {count:8,}\n")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(
        f"seed {seed}: {told.total():,} messages changed in {outcomes.total():,} rounds: {dict(outcomes)}; "
        f"{right:,} samples right; slowest round {slowest:.0f} s; most memory {most / 1e6:,.0f} MB\n"
    )
    sys.exit(bool(outcomes["wrong"]))


if __name__ == "__main__":
    main()
