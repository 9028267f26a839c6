"""Schedulers send a signal to all processes of a job: servers ignore it, and end after their clients on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from torch.utils.data import DataLoader

from brand.node.client.connector import look_at
from brand.node.serve import server as module
from brand.pythonchild import JOB_SIGNALS
from brand.testing.node import random_address, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.node.support import drawing, greeted
from tests.rounds import Chance, rounds
from tests.support import LIMIT_S, descendants, wait_until
from tests.torch.support import planned

SAMPLES = 1200


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


SIGNALS: Final = (*JOB_SIGNALS, signal.SIGTERM, signal.SIGINT)


@contextmanager
def heard(number: signal.Signals) -> Iterator[list[int]]:
    """The times that this process has got a signal in the block, which it would otherwise not survive."""
    times: list[int] = []
    before = signal.signal(number, lambda *_: times.append(1))
    try:
        yield times
    finally:
        signal.signal(number, before)


@rounds(4)
def test_a_training_that_saves_its_state_on_a_signal(chance: Chance, texts: Path) -> None:
    """To all processes of the job, in mid-epoch: the state that it then saves continues with the next sample."""
    how, number = chance.rng.choice(["BrandLoader", "0", "2"]), chance.rng.choice(SIGNALS)
    served, at = chance.rng.random() < 0.3, chance.rng.randrange(SAMPLES // 50 - 1)
    with ExitStack() as stack:
        times, more = stack.enter_context(heard(number)), dict[str, Any](memory=0.5)
        others = set(descendants(os.getpid()))
        if served:
            addresses, process = stack.enter_context(started("serve", texts))
            more = {"server": addresses[0]}
        found, state = list[int](), dict[str, Any]()
        for run in range(2):
            data = BrandDataset(texts, fields=("number",), **more)
            stack.callback(data._source.port.client.close)
            sampler = BrandSampler(data, seed=2, num_replicas=1, rank=0)
            loader: Any = DataLoader(data, 50, sampler=sampler, num_workers=int(how)) if how.isdigit() else None
            loader = loader or BrandLoader(data, 50, sampler=sampler)
            keeper = sampler if how.isdigit() else loader
            if run:
                keeper.load_state_dict(state)
            server = data._source.port.client.server().process
            for step, (numbers,) in enumerate(loader):
                found += numbers.tolist()
                if (run, step) == (0, at):
                    job = {os.getpid(), server, *descendants(os.getpid())} - others
                    for each in job - ({server} if number == signal.SIGINT and served else set()):
                        os.kill(each, number)
                if times and not run:
                    state = sampler.state_dict(samples=len(found)) if how.isdigit() else loader.state_dict()
                    break
        assert times
        assert found == planned(texts, sampler.order, 0)
        if served:
            data._source.port.client.close()
            process.terminate()
            assert process.wait(LIMIT_S) == 0
