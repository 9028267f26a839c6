"""A job among several that share a server: which samples did it get, were they right, and how long did it wait?

`start` forks it from a process that has imported PyTorch already. It writes a line for each batch, and every few
batches a checkpoint. Started again, it goes on from the last one, so `trained` leaves out what a later run does again.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage
from brand.orders.baselines import CoorDL, Joader, Pool
from brand.orders.policies.registry import OrderOption
from brand.torch.job.resolver import COMMON

SEED: Final = 5
PREPARE: Final = DecodeImage(size=(20, 24))
MEMORY: Final = 0.3
WINDOW: Final = 128
"""Samples that a job may be ahead of another one in the order `coordl`."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class SharedJob:
    """One job: `number` tells it from the others."""

    number: int
    data: Path
    sums: Path
    """What `sums_of` says of the data, by index."""
    folder: Path
    """Of the checkpoint, and of what each run says."""
    server: str | None
    """None: it starts one of its own."""
    batch: int
    epochs: int
    workers: int
    """Of a `DataLoader`; -1: a `BrandLoader` draws."""
    some: bool
    """Whether it draws a part of the samples."""
    step_s: float
    """How long it trains after each batch."""
    late_s: float
    """How long after the others it begins."""
    every: int
    """Batches between two checkpoints."""
    environment: Mapping[str, str] = field(default_factory=dict)
    order: str = "shared"
    """Any; "pool" has 4 chunks, and "coordl 3" is that of three jobs."""
    name: str = ""
    """What is added to its name, in a run that may not have that of the run before."""
    cache: Path | None = None
    """A cache folder of its server, if it starts one."""

    @property
    def checkpoint(self) -> Path:
        """Where it is."""
        return self.folder / f"checkpoint-{self.number}.json"

    def lines(self, run: int) -> Path:
        """What a run has got."""
        return self.folder / f"job-{self.number}-{run:02d}.jsonl"

    def said(self, run: int) -> Path:
        """Its standard error."""
        return self.folder / f"job-{self.number}-{run:02d}.txt"

    def part(self, samples: int) -> NDArray[np.bool_]:
        """Which samples it draws."""
        return np.arange(samples) % 3 != 1 if self.some else np.ones(samples, np.bool_)


def sums_of(data: Path) -> NDArray[np.int64]:
    """A checksum of what the preparation makes of each sample, by index."""
    files = BrandDataset(data, fields=("image",), decode=False)
    return np.array([zlib.crc32(PREPARE(files[index][0]).tobytes()) for index in range(len(files))], np.int64)


def start(job: SharedJob, run: int) -> BaseProcess:
    """Start the job, or go on with it; it is the leader of a session."""
    process = _processes.Process(target=_train, args=(job, run))
    process.start()
    return process


def batches_of(job: SharedJob) -> list[dict[str, Any]]:
    """All batches that its runs have got, in order, each with its `run`."""
    files = sorted(job.folder.glob(f"job-{job.number}-*.jsonl"))
    return [{"run": run, **line} for run, path in enumerate(files) for line in _lines(path)]


def count_batches(job: SharedJob) -> int:
    """How many batches its runs have got."""
    return sum(path.read_bytes().count(b"\n") for path in job.folder.glob(f"job-{job.number}-*.jsonl"))


def trained(job: SharedJob) -> list[list[int]]:
    """The indices that it has trained, by epoch, without what a later run did again."""
    found: list[list[int]] = [[] for _ in range(job.epochs + 1)]
    for path in sorted(job.folder.glob(f"job-{job.number}-*.jsonl")):
        for line in _lines(path):
            epoch, position = line["epoch"], line["position"]
            assert len(found[epoch]) >= position, "the checkpoint is ahead of the training"
            found[epoch:] = [found[epoch][:position] + line["indices"], *([] for _ in found[epoch + 1 :])]
    return found[: job.epochs]


def _lines(path: Path) -> list[dict[str, Any]]:
    """What a run has said; the last line may be missing its end."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _train(job: SharedJob, run: int) -> None:
    """The process of a run."""
    os.setsid()
    os.environ.update(job.environment)
    tempfile.tempdir = None  # asked before `TMPDIR` was set
    out = os.open(job.said(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where does it wait? its workers hear it as well
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    torch.set_num_threads(1)
    if not run:
        time.sleep(job.late_s)
    more: dict[str, Any] = {"memory": MEMORY, "cache": job.cache} if job.server in (COMMON, None) else {}
    if job.server is not None:
        more["job"] = f"job {job.number}{job.name}"
    data_set = BrandDataset(
        job.data,
        fields=("index", "image"),
        decode={"image": PREPARE},
        order=_order_of(job),
        server=job.server,
        **more,
    )
    sampler = BrandSampler(data_set, seed=SEED, subset=job.part(len(data_set)) if job.some else None)
    with suppress(FileNotFoundError):
        sampler.load_state_dict(json.loads(job.checkpoint.read_text()))
    loader: Any
    if job.workers < 0:
        loader = BrandLoader(data_set, job.batch, sampler=sampler, num_workers=1, prefetch_batches=2)
    else:
        forked: dict[str, Any] = {"worker_init_fn": _end_with_job, "multiprocessing_context": "fork"}
        workers = {"num_workers": job.workers, **forked} if job.workers else {}
        loader = DataLoader(data_set, job.batch, sampler=sampler, **workers)
    _draw(job, run, loader, sampler)


def _order_of(job: SharedJob) -> OrderOption:
    name, _, jobs = job.order.partition(" ")
    if name == "coordl":
        return CoorDL(jobs=int(jobs), window=WINDOW)
    baselines: dict[str, OrderOption] = {"joader": Joader(), "pool": Pool(4)}
    return baselines.get(name, cast(OrderOption, name))


def _draw(job: SharedJob, run: int, loader: Any, sampler: BrandSampler) -> None:
    """Train from the state of the sampler to the end."""
    sums = np.load(job.sums)
    begun = sampler.state_dict()
    position = begun["position"]
    with job.lines(run).open("ab", buffering=0) as out:
        for epoch in range(begun["epoch"], job.epochs):
            done, from_s = 0, time.monotonic()
            for number, (indices, images) in enumerate(loader, 1):
                to_s = time.monotonic()
                found = [zlib.crc32(image.tobytes()) for image in images.numpy()]
                wrong = indices.numpy()[sums[indices.numpy()] != found]
                line = {"epoch": epoch, "position": position + done, "indices": indices.tolist()}
                line |= {"wrong": wrong.tolist(), "from_s": from_s, "to_s": to_s, "first": number == 1}
                out.write(json.dumps(line).encode() + b"\n")
                done += len(indices)
                if number % job.every == 0:
                    _save(job.checkpoint, sampler.state_dict(samples=done))
                time.sleep(job.step_s)
                from_s = time.monotonic()
            position = 0


def _save(path: Path, state: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state))
    fresh.replace(path)


def _end_with_job(_: int) -> None:
    """In a worker: PyTorch's own look-out compares its parent with that at its start, and misses what was before."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        os._exit(1)
