"""Schedulers send a signal to all processes of a job: servers ignore it, and end after their clients on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from brand.node.client.connector import look_at
from brand.node.serve import server as module
from brand.pythonchild import JOB_SIGNALS
from brand.testing.node import random_address, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.node.saving import BATCH, ENDS
from tests.node.support import drawing, greeted
from tests.rounds import Chance, rounds
from tests.sandbox import environment
from tests.support import LIMIT_S, descendants, wait_until
from tests.torch.support import planned

SAMPLES = 1200
STEPS = SAMPLES // BATCH


@contextmanager
def started(*args: object) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """The command `brand`, and the addresses that it prints. Killed at the end of the block."""
    # An address of its own: another test may serve the same data at the same time.
    own = ("--address", random_address()) if args[0] == "serve" else ()
    command = [sys.executable, "-m", "brand", *map(str, args), *own]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split(), process
        finally:
            process.kill()


def epoch(data: BrandDataset) -> list[int]:
    """An epoch of a training."""
    loader = BrandLoader(data, 50, sampler=BrandSampler(data, seed=1, num_replicas=1, rank=0))
    return [number for batch in loader for number in batch[0].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("args", [("serve",), ("launch", "--local", 2)], ids=["serve", "launch"])
def test_a_command_ignores_the_signals_for_trainings(texts: Path, args: tuple[object, ...]) -> None:
    """USR1, USR2 and HUP end neither it nor its nodes; SIGTERM does once the training has disconnected."""
    with started(args[0], texts, *args[1:], "--memory", "0.5") as (addresses, process):
        with drawing(texts, addresses[0]) as data:
            for number in JOB_SIGNALS:
                process.send_signal(number)
                for address in addresses:
                    os.kill(look_at(address)["process"], number)
            assert sorted(epoch(data)) == list(range(SAMPLES))
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert sorted(epoch(data)) == list(range(SAMPLES))
            assert process.poll() is None
        assert process.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_a_second_sigterm_ends_it_now(texts: Path) -> None:
    """Of `brand serve` and `brand launch`; the client learns that its server was stopped."""
    for args in (("serve",), ("launch", "--local", 1)):
        with started(args[0], texts, *args[1:]) as (addresses, process), drawing(texts, addresses[0]) as data:
            assert len(epoch(data)) == SAMPLES
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0


def test_a_server_that_drains_has_a_limit(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not leave keeps it no longer; one that only looks does not keep it at all."""
    monkeypatch.setattr(module, "DRAIN_S", 0.2)
    with running_server(texts) as server, greeted(server.address, texts) as client:
        client.stats()
        server.node.drain()
        wait_until(lambda: not server.thread.is_alive(), "it ends without its looking client")
    with running_server(texts) as server, drawing(texts, server.address) as data:
        assert sorted(epoch(data)) == list(range(SAMPLES))
        began_s = time.monotonic()
        server.node.drain()
        wait_until(lambda: not server.thread.is_alive(), "it ends")
        assert time.monotonic() - began_s >= 0.2


class SavingJob:
    """A training in processes of its own, and the command that serves it, if there is one; see `saving.py`."""

    def __init__(self, texts: Path, folder: Path, how: str) -> None:
        self.texts, self.state, self.how = texts, folder / "state.json", how

    def start(self, server: str, at: int = -1, later: int = 0, epochs: int = 0) -> subprocess.Popen[str]:
        """The training, from its state on."""
        script = [sys.executable, "-m", "tests.node.saving", str(self.texts), str(self.state), self.how, server]
        return subprocess.Popen(
            [*script, str(at), str(later), str(epochs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def end(self, process: subprocess.Popen[str]) -> tuple[list[int], list[int]]:
        """The samples that it has trained, and the signals that it has got."""
        try:
            out, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, said
        found, times = json.loads(out.splitlines()[-1])
        return found, times


COMMANDS: Final = {"own": (), "serve": ("serve",), "launch": ("launch", "--local", 2)}
HOWS: Final = ("BrandLoader", "0:none", "2:fork", "1:spawn", "1:forkserver")
WHO: Final = ("all", "training", "server", "workers", "command")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["1:spawn", "1:forkserver"])
def test_workers_that_are_not_forked_survive_the_signals_for_trainings(how: str, texts: Path, tmp_path: Path) -> None:
    """So does the fork server. The training goes on for longer than the batches last that are prefetched."""
    job = SavingJob(texts, tmp_path, how)
    training = job.start("own", 1, 9)
    assert training.stdout is not None
    assert training.stdout.readline()
    for number in JOB_SIGNALS:
        for each in (training.pid, *descendants(training.pid)):
            os.kill(each, number)
    assert sorted(job.end(training)[1]) == sorted(JOB_SIGNALS)
    assert json.loads(job.state.read_text())["position"] >= 11 * BATCH


@rounds(3)
def test_a_training_that_saves_its_state_on_a_signal(chance: Chance, texts: Path, tmp_path: Path) -> None:
    """To all processes of the job, or some, at any batch: the state saved later is continued by a fresh process."""
    rng, how, kind = chance.rng, HOWS[chance.number % len(HOWS)], list(COMMANDS)[chance.number % len(COMMANDS)]
    who, number = rng.choice(WHO[: -1 if kind == "own" else None]), rng.choice((*JOB_SIGNALS, *ENDS))
    at = rng.choice([rng.randrange(STEPS), STEPS - 1, 2 * STEPS - 1])
    later = rng.choice([0, 1, rng.randrange(9, STEPS)])
    job = SavingJob(texts, tmp_path, how)
    with ExitStack() as stack:
        address, groups = kind, dict[str, list[int]]()
        if COMMANDS[kind]:
            (address, *_), command = stack.enter_context(started(COMMANDS[kind][0], texts, *COMMANDS[kind][1:]))
            groups["command"] = [command.pid, *descendants(command.pid)]
        training = job.start(address, at, later)
        assert training.stdout is not None
        said = training.stdout.readline().split()
        assert said, training.communicate()[1]
        groups |= {"training": [training.pid], "server": [int(said[1])], "workers": descendants(training.pid)}
        told = {each for name, group in groups.items() for each in group if who in (name, "all")}
        if number == signal.SIGINT and kind != "own":  # it ends the command at once
            told -= {*groups["server"], *groups["command"]}
        for each in told:
            os.kill(each, number)
        assert training.stdin is not None
        training.stdin.write("\n")
        found, times = job.end(training)
        assert bool(times) == (training.pid in told)
        ended = number in ENDS and not told.isdisjoint(groups.get("command", ()))
        epochs, job.how = json.loads(job.state.read_text())["epoch"] + 1, rng.choice(HOWS[:3])
        rest, _ = job.end(job.start("own" if ended else address, epochs=epochs))
        sampler = BrandSampler(BrandDataset(texts, server="none", memory=0.5), seed=2, num_replicas=1, rank=0)
        sampler.load_state_dict(json.loads(job.state.read_text()))  # the order depends on the memory of the server
        assert found + rest == [n for epoch in range(epochs) for n in planned(texts, sampler.order, epoch)]
        if ended and command.pid in told:
            assert command.wait(LIMIT_S) == 0
