"""A training is made to wait by each cause in turn: who names it, and after how many steps?

Something stands still in the middle of a training that went well, until the page of the server's own port, the page of
`brand top --web`, `/metrics` and `stats()` have all named the cause. Then it goes on, and the loop takes the one batch
that it waited for and no other; all four say what this step has waited for. So one step is enough for each, and none of
it depends on how long anything takes.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

from brand.node.serve.http import HttpPort
from brand.node.serve.loops import LONG_S
from brand.node.serve.why import HINTS, NAMES
from brand.node.wire.looping import LOOP
from brand.testing.node import random_address, running_server
from brand.testing.storage import BlockedStorage
from brand.torch import BrandDataset, BrandLoader
from tests.browser import NEEDS_BROWSER, Browser, browser
from tests.cli.test_page import fetch, first_line
from tests.node.test_metrics import read
from tests.support import running_brand, wait_until
from tests.tools.cluster import running_cluster
from tests.torch.support import make_samples, make_set
from tests.torch.test_waits import Gate

pytestmark = [pytest.mark.slow, pytest.mark.pages, NEEDS_BROWSER]
SAMPLES, BATCH = 400, 5


@dataclass(frozen=True)
class World:
    """A training, and what can make it wait."""

    loader: BrandLoader
    address: str
    """Of its data server."""
    url: str
    """Of the page on that server's own port."""
    hold: Callable[[], object]
    """From now on, what the cause stands for stands still."""
    release: Callable[[], object]


class Loop:
    """A training loop in a thread: epoch after epoch, as many steps as it may take."""

    def __init__(self, loader: BrandLoader, most: float) -> None:
        self._loader, self._changed = loader, threading.Condition()
        self.begun_s = time.monotonic()
        self.taken, self._most = 0, most
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def may_take(self, most: float) -> None:
        """Take no more steps than these, in all."""
        with self._changed:
            self._most = most
            self._changed.notify_all()

    def end(self) -> None:
        """Leave the loop at the next step."""
        self.may_take(-1)
        self._thread.join()

    def _run(self) -> None:
        for epoch in range(1_000_000):
            self._loader.set_epoch(epoch)
            for _ in self._loader:
                with self._changed:
                    self.taken += 1
                    self._changed.wait_for(lambda: self.taken < self._most or self._most < 0)
                    if self._most < 0:
                        return


@contextmanager
def in_a_process(path: Path, gate: Gate, **how: Any) -> Iterator[World]:
    """The server is a process of its own."""
    address = random_address()
    with running_brand("serve", path, "--http", "0", "--memory", "0.3", "--address", address) as process:
        assert first_line(process) == address
        assert process.stderr is not None
        url = [process.stderr.readline().decode().strip() for _ in range(3)][-1].removeprefix("look at it: ")
        loader = loader_of(path, address, **how)
        if how:
            yield World(loader, address, url, gate.shut, gate.open)
            return
        hold, release = (lambda name=name: os.kill(process.pid, name) for name in (signal.SIGSTOP, signal.SIGCONT))
        yield World(loader, address, url, hold, release)


def loader_of(path: Path, address: str, **how: Any) -> BrandLoader:
    """A loader whose batches are made shortly before they are taken."""
    fields = ("index", "key") if "transform" in how else ("index",)
    more = {"prefetch_batches": 2} | {name: how.pop(name) for name in ("prefetch_batches", "collate_fn") if name in how}
    return BrandLoader(BrandDataset(path, fields=fields, server=address, **how), BATCH, **more)


@contextmanager
def world_of(cause: str, path: Path) -> Iterator[World]:
    """A training that `hold` makes wait for this."""
    gate = Gate()
    if cause == "decode":
        with in_a_process(path, gate, transform={"key": gate.passes}) as world:
            yield world
    elif cause == "collate":
        with in_a_process(path, gate, collate_fn=gate.passes) as world:
            yield world
    elif cause == "server":
        with in_a_process(path, gate) as world:
            yield world
    elif cause == "storage":
        with (
            BlockedStorage(held=False) as storage,
            running_server(path, memory=0.3, storage=storage) as server,
            closing(HttpPort("0", "token", server.node.facts)) as port,
        ):
            yield World(loader_of(path, server.address), server.address, port.url, storage.hold, storage.release)
    else:
        with (
            BlockedStorage(held=False) as storage,
            running_cluster(path, nodes=2, memory=0.3, storage={1: storage}) as cluster,
            closing(HttpPort("0", "token", cluster.servers[0].node.facts)) as port,
        ):
            wait_until(lambda: cluster.facts(0)["cluster"]["reachable"] == [1], "the nodes know each other")
            loader = loader_of(path, cluster.addresses[0])
            yield World(loader, cluster.addresses[0], port.url, storage.hold, storage.release)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A data set of which an epoch reads the greater part."""
    return make_set(tmp_path / "set", make_samples(SAMPLES, 200), 4)


@pytest.fixture
def page() -> Iterator[Browser]:
    """A browser."""
    with browser() as window:
        yield window


def said(page: Browser, pattern: str, cause: str) -> re.Match[str] | None:
    """The sentence of the page, if it is such a one and shows this cause."""
    what, shown = page.run("const e = document.querySelector('#what'); return [e.innerText, e.dataset.cause]")
    return re.match(pattern, what) if shown == cause else None


def waits_now(world: World, cause: str, at_least_s: float) -> bool:
    """Whether the loop has waited for so long by now. It does not know yet what the server makes it wait for."""
    now = world.loader._instruments.waits.to_json(time.monotonic())["now"]
    known = cause if cause in ("decode", "collate") else "server"
    return now is not None and now["cause"] == known and now["wait_s"] > at_least_s


@pytest.mark.parametrize("cause", ["storage", "node", "decode", "collate", "server"])
def test_a_cause_is_named_by_all_within_its_step(cause: str, path: Path, page: Browser) -> None:
    """While it lasts, and of the step that has waited for it."""
    with (
        world_of(cause, path) as world,
        running_brand("top", world.address, "--web") as top,
        closing_loop(Loop(world.loader, 3)) as loop,
    ):
        pages = [world.url, first_line(top)]
        page.open(pages[0])
        wait_until(lambda: page.text("#what").startswith(("No step", "Step")), "the page knows the loop")
        world.hold()
        before_s = time.monotonic() - loop.begun_s
        loop.may_take(inf)
        try:
            while_it_waits(cause, world, page, pages)
            # Longer than all that the loop has waited and trained before, so that nothing else can be its cause.
            wait_until(lambda: waits_now(world, cause, max(LONG_S, before_s)), "the loop waits for long")
            waited = loop.taken
            loop.may_take(waited + 1)
        finally:
            world.release()
        wait_until(lambda: loop.taken == waited + 1, "the loop has its batch")
        once_it_has_waited(cause, world, page, pages)
        assert loop.taken == waited + 1
        assert page.complaints() == []


def while_it_waits(cause: str, world: World, page: Browser, pages: list[str]) -> None:
    """All name the cause. A server that is stopped tells nothing, and its pages say just that."""
    silent = r"The data server does not answer, \d+ s so far"
    pattern = silent if cause == "server" else rf"Step \d+ is waiting for {NAMES[cause]}, "
    for url in pages:
        if url != pages[0]:
            page.open(url)
        wait_until(lambda: said(page, pattern, cause) is not None, f"the page at {url} names the cause")
    if cause == "server":
        assert page.text("#live") == "no answer"
        return

    def told() -> bool:
        metrics = read(fetch(pages[0], "/metrics")).get("brand_loop_waiting_seconds", {})
        facts = world.loader.stats()["server"]
        return [dict(labels)["cause"] for labels in metrics] == [cause] and facts["why"]["cause"] == cause

    wait_until(told, "/metrics and stats() name the cause")


def once_it_has_waited(cause: str, world: World, page: Browser, pages: list[str]) -> None:
    """All name the cause, and the step."""
    last = world.loader.stats()["waits"]["last"]
    assert (last["cause"], last["wait_s"] > LONG_S) == (cause, True)
    pattern = rf"Step {last['step']:,} waited .+ for {NAMES[cause]}; \d+ % of the last"
    for url in reversed(pages):
        if url != pages[1]:
            page.open(url)
        wait_until(lambda: said(page, pattern, cause) is not None, f"the page at {url} names the step")
        assert page.text("#live") == "live"
    metrics = read(fetch(pages[0], "/metrics"))["brand_loop_wait_seconds_sum"]
    waits = {dict(labels)["cause"]: seconds for labels, seconds in metrics.items()}
    assert max(waits, key=waits.__getitem__) == cause
    facts = world.loader.stats()
    assert facts["waits"]["cause"] == facts["server"]["why"]["cause"] == cause


def test_a_loop_that_sets_the_pace_is_named_at_its_second_step(path: Path, page: Browser) -> None:
    """The second batch is there long before the loop asks for it. A step that the machine holds up does not count."""
    made: list[int] = []
    with in_a_process(path, Gate(), collate_fn=made.append, prefetch_batches=SAMPLES // BATCH) as world:
        page.open(world.url)
        with closing_loop(Loop(world.loader, 1)) as loop:
            for step in range(1, 20):
                wait_until(lambda: len(made) == SAMPLES // BATCH, "all batches are made")
                time.sleep(max(1.0, 25 * world.loader.stats()["waits"]["wait_s"]))  # the loop trains
                loop.may_take(step + 1)
                wait_until(lambda step=step: loop.taken > step, "the loop has its batch")  # type: ignore[misc]
                if world.loader.stats()["waits"]["last"]["cause"] == LOOP:
                    break
            wait_until(lambda: said(page, "No step is waiting", LOOP) is not None, "the page names the loop")
            assert page.text("#do") == HINTS[LOOP]
            counts = read(fetch(world.url, "/metrics"))["brand_loop_wait_seconds_count"]
            assert {dict(labels)["cause"]: steps for labels, steps in counts.items()}[LOOP] == 1
            facts = world.loader.stats()
            assert facts["waits"]["cause"] == facts["server"]["why"]["cause"] == LOOP
            assert page.complaints() == []


@contextmanager
def closing_loop(loop: Loop) -> Iterator[Loop]:
    """End a loop with the block."""
    try:
        yield loop
    finally:
        loop.end()
