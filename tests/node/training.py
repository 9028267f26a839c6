"""A training without PyTorch, to be killed: a main process that begins epochs, and forked workers that draw.

    python -m tests.node.training DATA_SET ADDRESS WORKERS EPOCHS STOPS

STOPS are numbers of batches, each with a comma behind it: there, the main process stops itself until it gets SIGCONT.
One line of JSON when the first batch is there, with the processes; then a dot for each batch, and for each epoch a line
that says whether it brought each sample once, in the order of its plan. Ctrl-C is ignored if there is one more
argument, and heard otherwise, also if the tests themselves were started in the background, deaf to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from brand.node.client.client import Client
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire.drawing import Announcement
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from tests.made_orders import order_of

BATCH = 30


def node_for(data: StoredDataSet, address: str, run: str) -> Client:
    """The way to a server that is started where there is none."""
    return Client(ServerSpec(str(data.path), address, 0.3), data.id, data.mean_bytes, run, attach=False)


def draw_all(node: Client, order: Order, epoch: int, positions: Any, *, owner: int) -> list[int]:
    """Draw; the places, of which those from memory must be what the server says."""
    parts = node.draw(order, epoch, np.asarray(positions, np.int64), owner=owner)
    for part in parts:
        assert part.stored.right().all()
    return [place for part in parts for place in part.places.tolist()]


def work(node: Client, order: Order, owner: int, pipe: Connection, others: Sequence[Connection]) -> None:
    """A worker: draws what it is told, until its training is gone."""
    for other in others:  # or nobody would ever hear that the training has ended
        other.close()
    while True:
        try:
            epoch, positions = pipe.recv()
        except EOFError:
            return
        pipe.send((positions, draw_all(node, order, epoch, positions, owner=owner)))


def train(path: str, address: str, workers: int, epochs: int, stops: set[int]) -> None:
    """All of it."""
    data = StoredDataSet(path)
    order, node, fork = order_of(data.path), node_for(data, address, f"run of {os.getpid()}"), get_context("fork")
    pipes: list[Connection] = []
    processes = []
    for _ in range(workers):
        mine, theirs = fork.Pipe()
        process = fork.Process(target=work, args=(node, order, os.getpid(), theirs, [*pipes, mine]), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    told, batch = False, 0
    for epoch in range(epochs):
        node.begin(order, 1, Announcement(epoch))
        found: dict[int, int] = {}
        batches = [list(range(first, min(first + BATCH, len(data)))) for first in range(0, len(data), BATCH)]
        busy: set[Any] = set()
        while batches or busy:
            for pipe in pipes:
                if pipe not in busy and batches:
                    pipe.send((epoch, batches.pop(0)))
                    busy.add(pipe)
            for answered in wait(list(busy)):
                assert isinstance(answered, Connection)
                positions, places = answered.recv()
                busy.discard(answered)
                assert not found.keys() & set(positions)
                found.update(zip(positions, places, strict=True))
                if not told:
                    told = True
                    facts = {"server": node.stats()["process"], "workers": [process.pid for process in processes]}
                    say(json.dumps(facts) + "\n")
                say(".")
                batch += 1
                if batch in stops:
                    os.kill(os.getpid(), signal.SIGSTOP)
        right = [found[p] for p in range(len(data))] == order.plan(epoch).sample_of.tolist()
        say(f"\nepoch {epoch} {'right' if right else 'WRONG'} server {node.stats()['process']}\n")


def say(text: str) -> None:
    """To standard output, at once."""
    os.write(1, text.encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN if len(sys.argv) > 6 else signal.default_int_handler)
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), set(map(int, sys.argv[5].split(",")[:-1])))
