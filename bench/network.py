"""How many bytes a second pass from one node to another through gRPC, as a fraction of the rate of a plain socket?

    python -m bench.network --out bench/results/network.json

Two processes talk over loopback. "socket": one side calls `sendall`, the other `recv_into` one buffer. "Peers": one
node answers, the other asks and takes the events. Both move messages of the same sizes. Each measurement has fresh
processes; its first tenth is not timed. The two take turns, and the median of all rounds counts.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from bench import harness
from bench.harness import Outcome, Rival
from brand.cluster.greeting import Greeting
from brand.cluster.peers import PeerStreams
from brand.node.serve.process import tune_server_process
from brand.node.wire.network import MAX_UNSENT, Closed, Event, Opened, PeerStream, Received

SIZES: Final = (256 << 10, 1 << 20, 4 << 20)
SOCKET: Final = Rival("socket")
PEERS: Final = Rival("Peers", distribution="grpcio")
GOAL: Final = 0.5
PATIENCE_S: Final = 30.0
_TOKEN: Final = "known-to-both-of-them"


class Meter:
    """Bytes a second, from the end of the first tenth of the messages."""

    def __init__(self, size: int, messages: int) -> None:
        self.size, self._messages, self._first = size, messages, max(1, messages // 10)
        self._seen, self._began_s, self._cpu_s = 0, 0.0, 0.0
        self.rate, self.cpu = 0.0, 0.0

    def message(self, size: int) -> bool:
        """Count a message that has arrived. Return whether more follow."""
        if size != self.size:
            raise RuntimeError(f"a message of {size} bytes")
        self._seen += 1
        if self._seen == self._first:
            self._began_s, self._cpu_s = time.perf_counter(), time.process_time()
        if self._seen == self._messages:
            wall_s, moved = time.perf_counter() - self._began_s, (self._messages - self._first) * self.size
            self.rate, self.cpu = moved / wall_s, (time.process_time() - self._cpu_s) / wall_s
        return self._seen < self._messages


def send_by_socket(size: int, messages: int) -> None:
    """Listen, print the port, and send to the process that connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    message = os.urandom(size)
    with connection:
        for _ in range(messages):
            connection.sendall(message)


def receive_by_socket(port: str, meter: Meter) -> None:
    """Receive into one buffer."""
    size = meter.size
    buffer = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        while True:
            held = 0
            while held < size:
                held += connection.recv_into(buffer[held:])
            if not meter.message(held):
                return


def node(number: int) -> PeerStreams:
    """Make one of two nodes, as in the process of a server."""
    tune_server_process()
    return PeerStreams(Greeting("bench", number, 2, 4096, None, "0"), _TOKEN, "127.0.0.1:0")


def next_events(peers: PeerStreams) -> list[Event]:
    """Wait for the next events."""
    if not select.select([peers.wake], [], [], PATIENCE_S)[0]:
        raise RuntimeError("no event arrived in time")
    return peers.events()


def send_by_peers(size: int, messages: int) -> None:
    """Listen, print the address, and send to the asking node while it takes messages."""
    message, stream = os.urandom(size), PeerStream(0, asks=False)
    with closing(node(1)) as peers:
        print(peers.address, flush=True)
        while not any(isinstance(event, Opened) for event in next_events(peers)):
            pass
        for _ in range(messages):
            while peers.unsent(stream) >= MAX_UNSENT:
                next_events(peers)
            peers.send(stream, message)
        while not any(isinstance(event, Closed) for event in next_events(peers)):
            pass


def receive_by_peers(address: str, meter: Meter) -> None:
    """Take the events, and count the messages."""
    with closing(node(0)) as peers:
        peers.connect({1: address})
        while True:
            for event in next_events(peers):
                if isinstance(event, Received) and not meter.message(len(event.message)):
                    return
                if isinstance(event, Closed):
                    raise RuntimeError(event.reason)


SENDERS: Final[dict[str, Callable[[int, int], None]]] = {SOCKET.name: send_by_socket, PEERS.name: send_by_peers}
RECEIVERS: Final[dict[str, Callable[[str, Meter], None]]] = {
    SOCKET.name: receive_by_socket,
    PEERS.name: receive_by_peers,
}


def receive(arguments: argparse.Namespace) -> dict[str, float]:
    """Start the sender, and receive, in the child."""
    messages = arguments.bytes // arguments.size
    meter = Meter(arguments.size, messages)
    command = [sys.executable, "-m", "bench.network", *sys.argv[1:], "--send"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        RECEIVERS[arguments.rival](sender.stdout.readline().strip(), meter)
    return {"bytes_per_s": meter.rate, "receiver_cpus": meter.cpu}


def median_rate(outcomes: list[Outcome], rival: Rival) -> float:
    """Return the median of bytes a second; NaN if all measurements failed."""
    rate = harness.median_of(outcomes, rival.name, lambda outcome: float(outcome.values["bytes_per_s"]))
    return float("nan") if rate is None else rate


def table_of(results: dict[int, list[Outcome]]) -> str:
    """Tabulate the medians by size of message."""
    rows = []
    for size, outcomes in results.items():
        rates = [
            harness.median_of(outcomes, rival.name, lambda o: o.values["bytes_per_s"]) for rival in (SOCKET, PEERS)
        ]
        plain, ours = (rate or float("nan") for rate in rates)
        good = "yes" if ours >= GOAL * plain else "no"
        rows.append([f"{size >> 10} KiB", f"{plain / 1e9:.2f}", f"{ours / 1e9:.2f}", f"{ours / plain:.0%}", good])
    failed = "".join(harness.failures(outcomes) for outcomes in results.values())
    return harness.table(["messages", "socket GB/s", "Peers GB/s", "share", f"at least {GOAL:.0%}"], rows) + failed


def main() -> None:
    """Run as parent, receiver or sender, as `--rival` and `--send` say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=3 << 30, help="bytes sent in each measurement (%(default)s)")
    parser.add_argument("--repeat", type=int, default=7, help="rounds (%(default)s)")
    parser.add_argument("--size", type=int, help="only messages of this size")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--send", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        SENDERS[arguments.rival](arguments.size, arguments.bytes // arguments.size)
        return
    if arguments.rival:
        harness.report(arguments.report, receive(arguments))
        return
    results: dict[int, list[Outcome]] = {}
    for size in [arguments.size] if arguments.size else SIZES:
        measure = partial(harness.run_fresh, module="bench.network", arguments=["--size", str(size)], limit_s=120.0)
        results[size] = harness.round_robin((SOCKET, PEERS), arguments.repeat, measure)
    harness.show(table_of(results))
    if arguments.out:
        harness.save(arguments.out, __doc__, {"bytes": arguments.bytes, "goal": GOAL}, (PEERS,), results)


if __name__ == "__main__":
    main()
