"""`kill -9` of a worker, a training, a server or a node at any moment: the resumed run has the order of the plan.

Each round also looks for what is left: processes, sockets, shared memory, temporary files.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from brand.torch import BrandDataset, BrandSampler
from tests import places
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, free_port, session_processes, wait_until
from tests.torch.resumable import SEED, Job, Started, any_job, started, trained
from tests.torch.support import make_samples, make_set, planned

pytestmark = [places.EVERYWHERE, pytest.mark.slow]
EPOCHS, SAMPLES = 3, 600
AT_WORK = ["DataLoader", "persistent", "StatefulDataLoader"]
"""Loaders with worker processes."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 samples of up to 300 bytes in chunks of 16."""
    return make_set(tmp_path_factory.mktemp("sets") / "kills.brand", make_samples(SAMPLES, 300), 16)


@pytest.fixture(scope="module")
def plans(data: Path) -> list[list[int]]:
    """What a run without a kill sees in each epoch."""
    order = BrandSampler(BrandDataset(data, memory=0.3), seed=SEED).order
    return [planned(data, order, epoch) for epoch in range(EPOCHS)]


class Killing:
    """A training that is killed now and then, and what it leaves."""

    def __init__(self, chance: Chance, data: Path, folder: Path, left: Leftovers, **more: object) -> None:
        self.rng, self.folder, self.left = chance.rng, folder, left
        self.runs = 0
        self._data, self._more = data, {"epochs": EPOCHS, "environment": self.left.environment} | more

    def job(self, **more: object) -> Job:
        """The next run, perhaps with other options than the one before it."""
        self.runs += 1
        return any_job(self.rng, self._data, self.folder, number=self.runs, **(self._more | more))

    def moment(self, run: Started) -> None:
        """Wait until any moment of a run: while it starts, or in one of its epochs."""
        if self.rng.random() < 0.2:
            time.sleep(self.rng.uniform(0, 1))
        else:
            batches = self.rng.randint(1, EPOCHS * SAMPLES // run.job.batch // run.job.ranks)
            self.wait(run, lambda: run.batches >= batches or not run.running, f"{batches} batches")
        time.sleep(self.rng.uniform(0, 0.005))
        self.left.sessions |= run.sessions
        self.left.note_sockets()

    def wait(self, run: Started, condition: Callable[[], bool], what: str) -> None:
        """Wait; where it takes too long, tell where the processes are."""
        try:
            wait_until(condition, what)
        except AssertionError:
            for process in (process for session in run.sessions for process in session_processes(session)):
                os.kill(process, signal.SIGUSR1)
            time.sleep(1)  # what they say has no end that could be waited for
            raise AssertionError(f"still waiting: {what}\n{self.said()}") from None

    def workers(self, run: Started) -> list[int]:
        """The workers of its loader."""
        others = {*run.sessions, *self.left.servers(), *self.left.programs(b"multiprocessing.resource_tracker")}
        return [process for process in self.left.processes() if process not in others]

    def kill(self, processes: list[int]) -> None:
        """One of these, if there is one."""
        if processes:
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(processes), signal.SIGKILL)

    def check(self, plans: list[list[int]], job: Job) -> None:
        """Let the training end undisturbed; the order of all runs together, and what is left."""
        with started(job) as run:
            self.left.sessions |= run.sessions
            assert run.end(LIMIT_S) == [0] * job.ranks, self.said()
        self.left.check()
        assert trained(self.folder, plans) == plans

    def said(self) -> str:
        """What the runs have said."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("said-*")))


@pytest.fixture
def killing(chance: Chance, data: Path, tmp_path: Path, left: Leftovers) -> Killing:
    """On one machine, with one rank."""
    return Killing(chance, data, tmp_path, left)


@rounds(1)
def test_a_worker_is_killed(killing: Killing, plans: list[list[int]]) -> None:
    """PyTorch ends the iteration with an error; the run goes on from its checkpoint, by itself or started anew."""
    loading = killing.rng.choice(AT_WORK)
    job = killing.job(loading=loading)
    for _ in range(killing.rng.choice([1, 1, 2])):
        with started(job) as run:
            killing.moment(run)
            killing.kill(killing.workers(run))
            killing.wait(run, lambda run=run: not run.running, "it ends")  # type: ignore[misc]
            assert run.end(LIMIT_S)[0] in (0, 1)
        job = killing.job(loading=loading) if loading != "StatefulDataLoader" else replace(job, number=job.number + 1)
    killing.check(plans, job)


@rounds(1)
def test_the_training_is_killed(killing: Killing, plans: list[list[int]]) -> None:
    """Its workers and its server end by themselves; the next run goes on, with other workers and batches."""
    for _ in range(killing.rng.choice([1, 1, 2])):
        with started(killing.job()) as run:
            killing.moment(run)
            killing.kill(sorted(run.sessions))
            run.end(LIMIT_S)
        killing.left.check()
    killing.check(plans, killing.job())


@rounds(1)
def test_the_server_is_killed(killing: Killing, plans: list[list[int]]) -> None:
    """The training goes on with another one, and notices nothing but the time."""
    with started(killing.job()) as run:
        for _ in range(killing.rng.choice([1, 1, 2, 3])):
            killing.moment(run)
            before = run.batches
            killing.kill(killing.left.servers())
            killing.wait(run, lambda before=before: run.batches > before or not run.running, "it goes on")  # type: ignore[misc]
        assert run.end(LIMIT_S) == [0], killing.said()
    killing.left.check()
    assert trained(killing.folder, plans) == plans


@rounds(1)
def test_one_node_of_three_is_killed(
    chance: Chance, data: Path, tmp_path: Path, left: Leftovers, plans: list[list[int]]
) -> None:
    """Its server alone: the job goes on. The whole node: the job goes on from its checkpoint, on two nodes or three.

    Where the nodes have not met yet, the launcher ends the others, which would wait a minute for the one that is gone.
    """
    killing = Killing(chance, data, tmp_path, left, port=free_port())
    with started(killing.job(ranks=3)) as run:
        killing.moment(run)
        rank = killing.rng.randrange(3)
        servers = killing.left.servers(RANK=str(rank))
        if killing.rng.random() < 0.3:
            killing.kill(servers)
        else:
            training = run.processes[rank].pid
            assert training is not None
            for process in (*servers, training, *session_processes(training)):
                killing.kill([process])
            if not run.batches:
                for other in run.processes:
                    other.terminate()
        codes = run.end(LIMIT_S)
    if codes == [0, 0, 0]:
        killing.left.check()
        assert trained(killing.folder, plans) == plans
    else:
        killing.check(plans, killing.job(ranks=killing.rng.choice([2, 3]), port=free_port()))
