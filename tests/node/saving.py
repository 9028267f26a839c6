"""A training that saves its state when it is told to stop, and continues from its state if there is one.

    python -m tests.node.saving DATA_SET STATE HOW SERVER AT LATER EPOCHS

HOW is `BrandLoader`, or the number of workers of a `DataLoader`, a colon, and how they are started. With batch AT, it
says `ready` and the process of its server. After a line, or a signal, it trains LATER more batches, saves its state and
ends; or it ends after so many EPOCHS. Its last line is JSON: the samples that it trained, and the signals that it got.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from brand.pythonchild import JOB_SIGNALS
from brand.torch import BrandDataset, BrandLoader, BrandSampler

BATCH = 50
ENDS = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the workers of a `DataLoader`, so that those of a training that handles them need to ignore them."""


def ignore_ends(_: int) -> None:
    """In a worker."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


def say(text: str) -> None:
    """To standard output, at once."""
    os.write(1, f"{text}\n".encode())


def loader_of(data: BrandDataset, sampler: BrandSampler, how: str) -> Any:
    """The loader that HOW says."""
    workers, _, start = how.partition(":")
    if not start:
        return BrandLoader(data, BATCH, sampler=sampler)
    more: dict[str, Any] = {"multiprocessing_context": start, "worker_init_fn": ignore_ends} if start != "none" else {}
    return DataLoader(data, BATCH, sampler=sampler, num_workers=int(workers), **more)


def wait_for_line(told: threading.Event) -> None:
    """From the test."""
    os.read(0, 1)
    told.set()


def train(path: str, saved: Path, how: str, server: str, at: int, later: int, epochs: int) -> None:
    """All of it."""
    times, told, found, left, step = list[int](), threading.Event(), list[int](), -1, 0
    for number in (*JOB_SIGNALS, *ENDS):
        signal.signal(number, lambda number, _: times.append(number))
    data = BrandDataset(path, fields=("number",), **({"memory": 0.5} if server == "own" else {"server": server}))
    sampler = BrandSampler(data, seed=2, num_replicas=1, rank=0)
    loader = loader_of(data, sampler, how)
    keeper: Any = loader if isinstance(loader, BrandLoader) else sampler
    state = json.loads(saved.read_text()) if saved.exists() else {"epoch": 0}
    if "position" in state:
        keeper.load_state_dict(state)
    for epoch in itertools.count(state["epoch"]) if at >= 0 else range(state["epoch"], epochs):
        keeper.set_epoch(epoch)
        trained = 0
        for (numbers,) in loader:
            if step == at:
                say(f"ready {data._source.port.client.server().process}")
                threading.Thread(target=wait_for_line, args=(told,), daemon=True).start()
            step += 1
            found += numbers.tolist()
            trained += len(numbers)
            left = later if left < 0 and at >= 0 and (told.is_set() or times) else left - 1
            if left == 0:
                state = keeper.state_dict(**({"samples": trained} if keeper is sampler else {}))
                saved.write_text(json.dumps(state))
                say(json.dumps([found, times]))
                return
    say(json.dumps([found, times]))


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], *map(int, sys.argv[5:8]))
