"""A rank of a training as schedulers start it: `python -m tests.torch.scheduled DATA_SET FOLDER LIBRARY`.

It saves a state in FOLDER with each seventh batch, and ends with a state if one of the ranks has got a signal. If there
was a state already, it makes the file `done` at the end of the epoch in which it began. LIBRARY (`torch` or `jax`)
connects the ranks. Each run of a rank writes down where it began and the samples that it trained.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.job.ranks import find_rank

BATCH, EVERY = 20, 7
CONNECT_LIMIT = timedelta(seconds=45)


def connect(library: str) -> tuple[int, int, Callable[[int], int]]:
    """Rank, number of ranks, and a function that returns the largest number of all ranks."""
    rank, ranks = find_rank(None, None)
    if library == "torch":
        # Ranks that were started again may miss each other in Gloo; after the limit, torchrun starts them once more.
        dist.init_process_group("gloo", timeout=CONNECT_LIMIT, rank=rank, world_size=ranks)

        def largest(number: int) -> int:
            tensor = torch.tensor([number])
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
            return int(tensor)

        return rank, ranks, largest
    jax, gather = import_module("jax"), import_module("jax.experimental.multihost_utils").process_allgather
    coordinator = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(coordinator, int(os.environ["PROCESSES"]), int(os.environ["PROCESS"]))
    return *find_rank(None, None), lambda number: int(gather(torch.tensor(number).numpy()).max())


def train(path: str, folder: Path, library: str) -> None:
    """All of it."""
    times: list[int] = []
    for name in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(name, lambda number, _: times.append(number))
    rank, ranks, largest = connect(library)
    data = BrandDataset(path, fields=("number",), memory=0.5)
    loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=2))
    saved, state = folder / "state.json", {"epoch": 0, "position": 0}
    resumed = saved.exists()
    if resumed:
        state = json.loads(saved.read_text())
        loader.load_state_dict(state)
    began, found, batch, stop = [state["epoch"], state["position"]], list[int](), 0, 0
    largest(0)  # all have loaded it before one saves the next
    for epoch in itertools.count(state["epoch"]) if not resumed else [state["epoch"]]:
        loader.set_epoch(epoch)
        for (numbers,) in loader:
            found += numbers.tolist()
            batch += 1
            stop = 0 if resumed else largest(len(times))
            if rank == 0 and (stop or batch % EVERY == 0):
                state = loader.state_dict()
                (folder / "new.json").write_text(json.dumps(state))
                (folder / "new.json").replace(saved)
            if stop:
                break
            if not resumed:
                if batch == EVERY:
                    (folder / f"trains.{rank}").write_text(str(os.getpid()))
                time.sleep(0.002)
        if stop:
            break
    cluster = data.stats()["cluster"]
    said = {"began": began, "found": found, "rank": rank, "ranks": ranks, "nodes": cluster["nodes"] if cluster else 1}
    said |= {"node": os.environ.get("SLURMD_NODENAME", socket.gethostname()), "signals": times}
    (folder / f"run.{rank}.{int(resumed)}.json").write_text(json.dumps(said))
    if not stop:
        (folder / "done").touch()
    largest(0)
    if library == "torch":
        dist.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
