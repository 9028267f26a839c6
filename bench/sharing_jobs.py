"""How do benchmarks run jobs that draw at the same time, and how fast was each of them in a span of time?

    benchmark                                         job: python -m bench.sharing_jobs SPEC
    starts all jobs                                   imports PyTorch, opens its data, says `ready`
    says `go`: to a job that is late, once the        draws; a line for each batch: the time, and how many
    first job has drawn enough of an epoch            samples it has by now
    `over` measures a span; then it kills all jobs    trains, which is a sleep of `step_s`

The time is that of the monotonic clock, which all processes have in common. A server is a child of the benchmark, so
its processor time counts as well.
"""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench.system import cpu_s_of, process_tree
from brand import BrandDataset, BrandLoader, BrandSampler, DecodeImage

BATCH, SIDE = 64, 224
PREPARE: Final = DecodeImage(shorter=256)
BEGIN_LIMIT_S: Final = 1800.0
"""Seconds that a job may take until it draws, or until it has drawn enough that the next job begins."""

TELL_LIMIT_S: Final = 20.0
"""Seconds after a span that a job may take for the batch in which that span ends."""


@dataclass(frozen=True)
class Job:
    """The data set, order and speed of a job."""

    data: str
    order: Literal["stripes", "shared"] | None
    """The order; None for a `DataLoader` with one worker process, over the folder `images`."""
    server: str = ""
    images: str = ""
    decode: bool = True
    """Whether it decodes images and cuts 224 x 224 pixels out of each; otherwise it takes the bytes of their files."""
    step_s: float = 0.0
    """Seconds of training for each batch."""
    late: float = 0.0
    """The fraction of an epoch that the first job has drawn when this job begins."""


class Folder(Dataset[torch.Tensor]):
    """Images of a folder, decoded by Pillow as in most trainings."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as opened:
            picture = opened.convert("RGB")
            scale = 256 / min(picture.size)
            size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
            return cut(np.array(picture.resize(size, Image.Resampling.BILINEAR)))


def cut(picture: np.ndarray[Any, Any]) -> torch.Tensor:
    """Cut 224 x 224 pixels at random, perhaps mirrored; a smaller image is repeated at its edges."""
    height, width = picture.shape[:2]
    if height < SIDE or width < SIDE:
        picture = np.pad(picture, ((0, max(0, SIDE - height)), (0, max(0, SIDE - width)), (0, 0)), "edge")
        height, width = picture.shape[:2]
    top, left = random.randint(0, height - SIDE), random.randint(0, width - SIDE)
    found = torch.from_numpy(picture)[top : top + SIDE, left : left + SIDE]
    return found.flip(1) if random.random() < 0.5 else found.contiguous()


def loader_of(job: Job, name: str) -> Any:
    """Return the loader of a job."""
    if job.order is None:
        return DataLoader(Folder(job.images), BATCH, shuffle=True, num_workers=1)
    more: dict[str, Any] = {"decode": False}
    if job.decode:
        more = {"decode": {"image": PREPARE}, "transform": {"image": cut}}
    data_set = BrandDataset(job.data, fields=("image", "label"), order=job.order, server=job.server, job=name, **more)
    return BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set), num_workers=1, prefetch_batches=4)


def work(job: Job, name: str) -> None:
    """Run one job until it is killed."""
    loader, done = loader_of(job, name), 0
    _say("ready")
    sys.stdin.readline()
    while True:
        for batch in loader:
            done += len(batch) if job.order is None else len(batch[0])
            _say(f"{time.monotonic()} {done}")
            time.sleep(job.step_s)


class Running:
    """A job that runs."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        command = [sys.executable, "-m", "bench.sharing_jobs", json.dumps(asdict(job)), f"job {number}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._times, self._samples = [0.0], [0]
        if self._line() != "ready":
            raise RuntimeError(f"{job} has not begun")

    def go(self) -> None:
        """Tell the job to draw."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def drawn(self) -> int:
        """Samples drawn until now."""
        return self._samples[-1]

    def rate(self, from_s: float, to_s: float) -> float:
        """Return the samples a second in a span of time that is over."""
        before, after = np.interp([from_s, to_s], self._times, self._samples)
        return float(after - before) / (to_s - from_s)

    def wait_until(self, at_s: float) -> None:
        """Wait until the job reports a batch later than `at_s`, or until `TELL_LIMIT_S` has passed."""
        while self._times[-1] < at_s and time.monotonic() < at_s + TELL_LIMIT_S:
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the job, with its workers."""
        for process in process_tree(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _follow(self) -> None:
        while line := self._line():
            at_s, samples = line.split()
            self._times.append(float(at_s))
            self._samples.append(int(samples))


@contextmanager
def side_by_side(jobs: Sequence[Job], samples: int) -> Iterator[list[Running]]:
    """Run jobs that draw from a data set of `samples` samples, and yield them once each has drawn three batches."""
    with ExitStack() as stack:
        running = list[Running]()
        for number, job in enumerate(jobs):
            running.append(Running(job, number))
            stack.callback(running[-1].kill)
        for each in sorted(running, key=lambda each: each.job.late):
            wait_for(running[0], each.job.late * samples)
            each.go()
        for each in running:
            wait_for(each, 3 * BATCH)
        yield running


@dataclass(frozen=True)
class Span:
    """The measurements of a span of time."""

    rates: list[float]
    """Samples a second, by job."""
    cpu_s: float
    """Processor seconds of all jobs and servers."""
    made: float
    """Samples that the server decoded, for each draw; NaN if it decodes none."""
    read: float
    """Bytes that the servers read from storage, for each byte drawn; NaN if there is no server."""


def over(seconds: float, running: Sequence[Running]) -> Span:
    """Measure jobs for a span of `seconds`."""
    servers = {each.job.server: each.job.data for each in running if each.job.server}
    before, cpu_s, from_s = facts_of(servers), _cpu_s(), time.monotonic()
    time.sleep(seconds)
    to_s, after = time.monotonic(), facts_of(servers)
    cpu_s = _cpu_s() - cpu_s
    for each in running:
        each.wait_until(to_s)
    drawn, drawn_bytes, read_bytes, made = (after[name] - before[name] for name in after)
    prepares = any(each.job.decode and each.job.order == "shared" for each in running)
    return Span(
        [each.rate(from_s, to_s) for each in running],
        cpu_s,
        made / drawn if prepares and drawn else math.nan,
        read_bytes / drawn_bytes if drawn_bytes else math.nan,
    )


def facts_of(servers: Mapping[str, str]) -> dict[str, float]:
    """Return samples and bytes drawn, bytes read, and samples decoded, of the servers of these data sets together."""
    found = {"drawn": 0.0, "drawn_bytes": 0.0, "read_bytes": 0.0, "made": 0.0}
    for server, data in servers.items():
        data_set = BrandDataset(data, server=server)
        facts, mean = data_set._source.port.client.stats(), data_set._source.mean_bytes
        found["drawn"] += facts["fetched"]
        found["drawn_bytes"] += facts["fetched"] * mean
        found["read_bytes"] += facts["read_bytes"] + facts["direct"] * mean
        found["made"] += (facts["decoding"] or {"decoded": 0})["decoded"]
        data_set._source.port.client.close()
    return found


@contextmanager
def serving(data: str, prepared: str | None = None, memory: float = 0.25, within: Sequence[str] = ()) -> Iterator[str]:
    """Start a server and yield its address. `within` is a command that runs the server's command."""
    address = f"unix:@bench-sharing-{secrets.token_hex(8)}"
    command = [*within, sys.executable, "-m", "brand", "serve", data, "--memory", str(memory), "--address", address]
    with subprocess.Popen(
        command + (["--decoded-memory", prepared] if prepared else []), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield address
        finally:
            os.kill(BrandDataset(data, server=address)._source.port.client.stats()["process"], signal.SIGKILL)


def _cpu_s() -> float:
    return cpu_s_of(set(process_tree(os.getpid())) - {os.getpid()})


def wait_for(running: Running, samples: float) -> None:
    """Wait until a job has drawn `samples` samples."""
    end_s = time.monotonic() + BEGIN_LIMIT_S
    while running.drawn < samples:
        if running.process.poll() is not None or time.monotonic() > end_s:
            raise RuntimeError(f"{running.job} has drawn {running.drawn} samples, and no more")
        time.sleep(0.01)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work(Job(**json.loads(sys.argv[1])), sys.argv[2])
