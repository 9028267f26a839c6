"""Do nodes send each other large samples as fast as plain sockets send the same bytes?

    python -m bench.between_nodes --work SCRATCH [--rate 1gbit] [--sizes 300kB 3MB] [--out FILE]

`brand launch --local 3` starts the servers: with `--rate`, each in a network namespace whose link is limited to it,
both ways (needs root); without, on loopback. One rank on each node fetches epochs from memory and page cache, so that
the network is the limit; the first epoch is not timed. Then three processes in the same namespaces send each other as
many bytes by plain sockets, in messages of the size of a sample, each to both others at the same time.

The columns: MB/s that a node receives, by plain sockets and in the timed epochs, and the ratio; samples that clients
read themselves (`direct`), requests that nodes sent each other, requests that the plan did not foresee (`on demand`)
and that were not answered in time (`late`), over all epochs; and whether each epoch fetched each sample once. Bytes of
samples count, not those of messages.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.harness import progress, save, show, table
from bench.lab import size as size_of
from brand import BrandDataset, BrandLoader, BrandSampler, pack

NODES: Final = 3
ORDERS: Final = ("stripes", "slots")
BATCH: Final = 4
LIMIT_S: Final = 300.0
_NETNS: Final = Path("/var/run/netns")
_CLONE_NEWNET: Final = 0x40000000
_FACTS: Final = ("received_bytes", "direct", "requests", "on_demand", "timeouts")


def make_data(folder: Path, size: int, total: int) -> Path:
    """Make samples that do not compress, unless they are there."""
    share = NODES * BATCH  # ranks have equally many samples, so that none comes twice
    target, count = folder / f"large-{size}-{total}.brand", total // size // share * share
    if not target.exists():
        noise = np.random.default_rng(0).bytes(size + count)
        samples = ({"blob": noise[number : number + size]} for number in range(count))
        pack(samples, target, {"blob": "bytes"}, chunk_size=max(2, 4_000_000 // size), compression="none")
    return target


@contextlib.contextmanager
def servers(data: Path, options: argparse.Namespace) -> Iterator[list[str | None]]:
    """Run three nodes. Yield the network namespace of each, or None."""
    command = [sys.executable, "-m", "brand", "launch", str(data), "--local", str(NODES), "--memory", options.memory]
    command += ["--peer-memory", options.peer_memory, "--address", address("{node}")]
    command += ["--namespaces", "--rate", options.rate] if options.rate else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launched:
        assert launched.stdout is not None
        assert launched.stderr is not None
        told: list[str] = []
        reader = threading.Thread(target=told.extend, args=(launched.stderr,))
        reader.start()
        try:
            if not launched.stdout.readline():
                launched.wait()
                reader.join()
                raise SystemExit("the servers did not start:\n" + "".join(told))
            yield [f"brand-{launched.pid}-{node}" if options.rate else None for node in range(NODES)]
        finally:
            launched.terminate()
            reader.join()


def address(node: str) -> str:
    """Return the address at which a node's ranks attach."""
    return f"unix:@bench-between-{os.getpid()}-{node}"


def enter(space: str | None) -> None:
    """Move this process into a network namespace."""
    if space is not None:
        with (_NETNS / space).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {space}")


def train(rank: int, space: str | None, data: Path, order: Any, epochs: int, together: Barrier, to: Queue[Any]) -> None:
    """Fetch the epochs as one rank. Send the seconds of each, what its server counted, and the samples of each."""
    enter(space)
    data_set = BrandDataset(data, server=address_of(rank), order=order, job="between", fields=("index", "blob"))
    sampler = BrandSampler(data_set, num_replicas=NODES, rank=rank)
    loader = BrandLoader(data_set, BATCH, sampler=sampler, num_workers=1)
    seconds, facts, samples = [], [], []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        together.wait(LIMIT_S)
        begin_s = time.monotonic()
        samples.append([int(index) for indices, _ in loader for index in indices])
        seconds.append(time.monotonic() - begin_s)
        together.wait(LIMIT_S)
        stats = data_set.stats()
        facts.append({name: stats[name] for name in _FACTS})
    to.put((seconds, facts, samples))
    together.wait(LIMIT_S)


def address_of(rank: int) -> str:
    """Return the address of a rank's server, which the parent of this process has started."""
    return f"unix:@bench-between-{os.getppid()}-{rank}"


def exchange(rank: int, space: str | None, size: int, messages: int, together: Barrier, ports: Any, to: Any) -> None:
    """Send both other nodes messages by plain sockets, and receive theirs. Send the seconds until all have arrived."""
    enter(space)
    host = "127.0.0.1" if space is None else _own_address(space)
    with socket.create_server((host, 0)) as listener, contextlib.ExitStack() as stack:
        ports[rank] = f"{host}:{listener.getsockname()[1]}"
        together.wait(LIMIT_S)
        others = [ports[other].rsplit(":", 1) for other in range(NODES) if other != rank]
        outgoing = [stack.enter_context(socket.create_connection((where, int(port)))) for where, port in others]
        incoming = [stack.enter_context(listener.accept()[0]) for _ in others]
        threads = [threading.Thread(target=_send, args=(link, size, messages)) for link in outgoing]
        threads += [threading.Thread(target=_receive, args=(link, size, messages)) for link in incoming]
        together.wait(LIMIT_S)
        begin_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        to.put(time.monotonic() - begin_s)
        together.wait(LIMIT_S)


def _own_address(space: str) -> str:
    shown = subprocess.run(["ip", "-4", "-o", "address", "show", "eth0"], capture_output=True, text=True, check=True)
    found = re.search(r"inet ([\d.]+)", shown.stdout)
    if found is None:
        raise SystemExit(f"{space} has no address")
    return found[1]


def _send(link: socket.socket, size: int, messages: int) -> None:
    message = os.urandom(size)
    for _ in range(messages):
        link.sendall(message)


def _receive(link: socket.socket, size: int, messages: int) -> None:
    buffer = memoryview(bytearray(size))
    for _ in range(messages):
        held = 0
        while held < size:
            held += link.recv_into(buffer[held:])


def on_all(target: Any, spaces: Sequence[str | None], *arguments: Any) -> list[Any]:
    """Run a function in a process of each node. Return what they send."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        together, to = context.Barrier(NODES), context.Queue()
        more = (together, manager.dict(), to) if target is exchange else (together, to)
        processes = [
            context.Process(target=target, args=(rank, space, *arguments, *more)) for rank, space in enumerate(spaces)
        ]
        for process in processes:
            process.start()
        told = [to.get(timeout=LIMIT_S) for _ in processes]
        for process in processes:
            process.join(LIMIT_S)
    return told


def measure(data: Path, size: int, order: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one order, and plain sockets in the same namespaces."""
    with servers(data, options) as spaces:
        told = on_all(train, spaces, data, order, options.epochs)
        received = sum(facts[-1]["received_bytes"] - facts[0]["received_bytes"] for _, facts, _ in told)
        seconds = sum(max(seconds[epoch] for seconds, _, _ in told) for epoch in range(1, options.epochs))
        messages = max(1, received // (options.epochs - 1) // (NODES * (NODES - 1)) // size)
        plain_s = max(on_all(exchange, spaces, size, messages))
    count = len(BrandDataset(data, server="none"))
    once = all(
        sorted(index for _, _, samples in told for index in samples[epoch]) == list(range(count))
        for epoch in range(options.epochs)
    )
    return {
        "plain": messages * size * (NODES - 1) / plain_s,
        "rate": received / NODES / seconds,
        "once": once,
        "load_average": os.getloadavg()[0],
    } | {name: sum(facts[-1][name] for _, facts, _ in told) for name in _FACTS}


def main() -> None:
    """Measure each size and order, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the data sets, which are made once")
    parser.add_argument("--rate", help="limit each link, as `brand launch` does (1gbit); without it, loopback")
    parser.add_argument("--sizes", nargs="+", default=["300kB", "3MB"], help="sizes of samples (%(default)s)")
    parser.add_argument("--total", default="900MB", help="size of each data set (%(default)s)")
    parser.add_argument("--memory", default="0.3", help="memory of each server (%(default)s of the data)")
    parser.add_argument("--peer-memory", default="0.3", help="the part of it that other nodes may fill (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of a run, the first is not timed (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    rows, runs = [], []
    for size in options.sizes:
        data = make_data(options.work, int(size_of(size)), int(size_of(options.total)))
        for order in ORDERS:
            found = [measure(data, int(size_of(size)), order, options) for _ in range(options.rounds)]
            runs += [run | {"size": size, "order": order} for run in found]
            progress(f"{size}, {order}: {found}")
            plain, rate = (float(np.median([run[name] for run in found])) for name in ("plain", "rate"))
            ratio = float(np.median([run["rate"] / run["plain"] for run in found]))
            counts = [str(sum(run[name] for run in found)) for name in _FACTS[1:]]
            once = "yes" if all(run["once"] for run in found) else "no"
            rows.append([f"{size}, {order}", f"{plain / 1e6:.0f}", f"{rate / 1e6:.0f}", f"{ratio:.2f}", *counts, once])
    columns = ["samples, order", "plain MB/s", "MB/s", "ratio", "direct", "requests", "on demand", "late", "once"]
    show(table(columns, rows))
    if options.out is not None:
        settings = {name: value for name, value in vars(options).items() if name not in ("work", "out")}
        save(options.out, __doc__, settings, [], runs)


if __name__ == "__main__":
    main()
