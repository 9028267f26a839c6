"""A training that may be killed at any moment: started again, it goes on from its checkpoint, as real ones do.

`started` forks it from a process that has imported PyTorch already, so that a hundred of them cost little. Each run
writes down all that it has trained, in a file of each rank; the first line says where the run begins, each further line
is a batch. The checkpoint is that of rank 0, replaced atomically; the ranks are in step, as with DDP.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed
from torch.utils.data import DataLoader

from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.support import LIMIT_S
from tests.torch.support import indices_of, stateful_loader

SEED = 5
Loading = Literal["DataLoader", "persistent", "StatefulDataLoader", "BrandLoader"]

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Job:
    """One run of the training."""

    data: Path
    folder: Path
    """Of the checkpoint and what each run says; the same for all runs."""
    number: int
    """Of this run, from 0."""
    epochs: int
    batch: int
    every: int
    """Batches between two checkpoints."""
    loading: Loading = "DataLoader"
    workers: int = 2
    context: str = "fork"
    patient: bool = False
    """Goes on by itself, from the checkpoint, where it loses a worker."""
    ranks: int = 1
    """Each on a node of its own."""
    port: int = 0
    """Where they meet."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def said(self, rank: int, again: int = 0) -> Path:
        """What a rank of this run has trained; `again` counts how often it went on by itself."""
        return self.folder / f"{self.number:03d}-{again:03d}-{rank}.jsonl"

    @property
    def checkpoint(self) -> Path:
        """Where it is."""
        return self.folder / "checkpoint.json"


class Started:
    """The processes of a run, by rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.processes: list[BaseProcess] = [
            _processes.Process(target=_train, args=(job, rank)) for rank in range(job.ranks)
        ]
        for process in self.processes:
            process.start()

    @property
    def sessions(self) -> set[int]:
        """Each is the leader of one."""
        return {process.pid for process in self.processes if process.pid is not None}

    @property
    def batches(self) -> int:
        """How many rank 0 has trained."""
        files = self.job.folder.glob(f"{self.job.number:03d}-*-0.jsonl")
        return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in files)

    @property
    def running(self) -> bool:
        """Whether all of them do."""
        return all(process.is_alive() for process in self.processes)

    def end(self, limit_s: float) -> list[int | None]:
        """Their exit codes, once they have ended."""
        for process in self.processes:
            process.join(limit_s)
        return [process.exitcode for process in self.processes]


@contextmanager
def started(job: Job) -> Iterator[Started]:
    """A run, which ends with the block."""
    found = Started(job)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
            process.join()


def trained(folder: Path, plans: Sequence[Sequence[int]]) -> list[list[int]]:
    """What all runs have trained, by epoch, without what a later run did again.

    All that was ever trained, also what was done again, is what the plan has at its place.
    """
    found: list[list[int]] = [[] for _ in range(len(plans) + 1)]  # a run may begin after the last epoch
    for first in sorted(folder.glob("*-0.jsonl")):
        ranks = [_lines(first.with_name(f"{first.name[: -len('0.jsonl')]}{rank}.jsonl")) for rank in range(100)]
        ranks = [lines for lines in ranks if lines]
        if not ranks or len(ranks) < ranks[0][0]["ranks"]:
            continue  # it was killed before it began
        begin = ranks[0][0]
        epoch, position = begin["epoch"], begin["position"]
        assert len(found[epoch]) >= position, "the checkpoint is ahead of the training"
        found[epoch:] = [found[epoch][:position], *([] for _ in found[epoch + 1 :])]
        for step in zip(*(lines[1:] for lines in ranks), strict=False):
            (epoch,) = {batch["epoch"] for batch in step}
            dealt = [index for turn in zip(*(batch["indices"] for batch in step), strict=True) for index in turn]
            here, plan = len(found[epoch]), plans[epoch]
            beyond = max(0, here + len(dealt) - len(plan))  # where ranks do not divide them: the epoch begins anew
            assert dealt == [*plan[here : here + len(dealt)], *plan[:beyond]], f"{first.name}, epoch {epoch}"
            found[epoch] += dealt[: len(dealt) - beyond]
    return found[: len(plans)]


def _lines(path: Path) -> list[dict[str, Any]]:
    """What a rank has said; the last line may be missing its end."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _train(job: Job, rank: int) -> None:
    """A process of a run."""
    os.setsid()
    os.environ.update(job.environment)
    tempfile.tempdir = None  # asked before `TMPDIR` was set
    said = os.open(job.folder / f"said-{job.number:03d}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it wait? its workers hear it as well
    torch.set_num_threads(1)
    if job.ranks > 1:
        node = {"GROUP_RANK": str(rank), "GROUP_WORLD_SIZE": str(job.ranks), "LOCAL_RANK": "0"}
        world = {"RANK": str(rank), "WORLD_SIZE": str(job.ranks), "TORCHELASTIC_RUN_ID": job.folder.name}
        os.environ.update(node | world | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.port)})
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    data_set = BrandDataset(job.data, fields=("index",), memory=0.3)
    for again in range(100):
        try:
            _go_on(job, data_set, rank, again)
            return
        except RuntimeError as error:
            if not job.patient or "DataLoader worker" not in str(error):
                raise


def _go_on(job: Job, data_set: BrandDataset, rank: int, again: int) -> None:
    """Train from the checkpoint to the end."""
    sampler = BrandSampler(data_set, seed=SEED)
    loader = _loader(job, data_set, sampler)
    keeps_state: Any = sampler if job.loading in ("DataLoader", "persistent") else loader
    begin: dict[str, Any] = {"epoch": 0, "position": 0, "state": None}
    with suppress(FileNotFoundError):
        begin = json.loads(job.checkpoint.read_text())
    if begin["state"] is not None:
        keeps_state.load_state_dict(begin["state"])
    with job.said(rank, again).open("ab", buffering=0) as out:
        out.write(_line({"epoch": begin["epoch"], "position": begin["position"], "ranks": job.ranks}))
        for epoch in range(begin["epoch"], job.epochs):
            sampler.set_epoch(epoch)
            started_at = begin["position"] if epoch == begin["epoch"] else 0
            for number, batch in enumerate(loader, 1):
                out.write(_line({"epoch": epoch, "indices": indices_of([batch])}))
                if job.ranks > 1:
                    torch.distributed.barrier()
                if rank == 0 and number % job.every == 0:
                    position = min(len(data_set), started_at + number * job.batch * job.ranks)
                    state = (
                        sampler.state_dict(batches=number, batch_size=job.batch)
                        if keeps_state is sampler
                        else loader.state_dict()
                    )
                    place = {"epoch": epoch, "position": position}  # at the end of an epoch a state names the next one
                    place |= {name: state[name] for name in place if name in state}
                    _replace(job.checkpoint, {**place, "state": state})


def _loader(job: Job, data_set: BrandDataset, sampler: BrandSampler) -> Any:
    workers: dict[str, Any] = {
        "num_workers": job.workers,
        "multiprocessing_context": job.context,
        "worker_init_fn": _end_with_training,
    }
    if job.loading == "BrandLoader":
        return BrandLoader(data_set, job.batch, sampler=sampler, num_workers=2)
    if job.loading == "StatefulDataLoader":
        return stateful_loader(data_set, job.batch, sampler=sampler, **workers)
    return DataLoader(data_set, job.batch, sampler=sampler, persistent_workers=job.loading == "persistent", **workers)


def _end_with_training(_: int) -> None:
    """In a worker: PyTorch's own look-out compares its parent with that at its start, and misses what was before."""
    training = multiprocessing.parent_process()
    if training is not None and training.pid != os.getppid():
        os._exit(1)


def _line(value: dict[str, Any]) -> bytes:
    """Written by one call, so that it is there as a whole or not at all."""
    return json.dumps(value).encode() + b"\n"


def _replace(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value))
    fresh.replace(path)


def any_job(rng: random.Random, data: Path, folder: Path, **more: Any) -> Job:
    """A run like many others: loader, workers and batch at random."""
    loading: list[Loading] = ["DataLoader", "persistent", "BrandLoader"]
    return Job(
        data,
        folder,
        **({"loading": rng.choice(loading)} | more),
        batch=rng.randint(5, 40),
        every=rng.randint(1, 5),
        workers=rng.randint(1, 3),
        context=rng.choice(["fork"] * 29 + ["spawn"]),  # workers of a fork server outlive a training that is killed
        patient=rng.random() < 0.5,
    )
