"""A step that is made to wait names what it waited for: at once, in `stats()`, in the server's facts and in a profile.

Each cause is made in turn: something stands still until the loop has waited so long that nothing else can be the cause.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from brand.node.client.connector import look_at
from brand.node.serve.metrics import prometheus
from brand.node.wire.draw_messages import Held
from brand.node.wire.looping import CAUSES, LOOP, IterationExtent
from brand.testing.storage import BlockedStorage
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.fetch.fetched import Span, spans_of
from brand.torch.loader.tensors import PROFILED
from brand.torch.loader.timing import BatchTimes, LoopIdentity, StepWaits
from tests.node.test_metrics import read
from tests.support import wait_until
from tests.tools.cluster import running_cluster
from tests.torch.support import make_samples, make_set, served

COUNT = 75
LOOP_OF = LoopIdentity(0, 1, 0, IterationExtent(0, 75, 75))
LONG_S = 0.5
"""How long a loop is made to wait: much longer than anything else that happens in a step."""


class Gate:
    """Lets nothing pass while it is shut."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.shut = self._open.clear
        self.open = self._open.set

    def passes(self, value: Any) -> Any:
        """The same value, later."""
        self._open.wait()
        return value


@contextlib.contextmanager
def opened_later(loader: BrandLoader, open_it: Callable[[], object]) -> Iterator[None]:
    """Call `open_it` as soon as the loop has waited for `LONG_S`."""
    ended = threading.Event()

    def watch() -> None:
        wait_until(lambda: ended.is_set() or (waited(loader) or 0) > LONG_S, "the loop waits")
        open_it()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def waited(loader: BrandLoader) -> float | None:
    """How long the loop waits by now; None: it does not."""
    now = loader._instruments.waits.to_json(time.monotonic())["now"]
    return None if now is None else now["wait_s"]


def long_step(loader: BrandLoader, batches: Iterator[Any]) -> dict[str, Any]:
    """Take batches up to the one that the loop has to wait for. Returns what is said of it."""
    for _ in batches:
        last: dict[str, Any] = loader._instruments.waits.to_json(time.monotonic())["last"]
        if last["wait_s"] > LONG_S:
            return last
    raise AssertionError("no step waited")


def told(loader: BrandLoader, cause: str) -> dict[str, Any]:
    """What `stats()` and the data server tell of the loop, once both know of the long wait, and Prometheus, too."""
    facts = loader.stats()
    assert facts["waits"]["causes"][cause]["wait_s"] > LONG_S

    def known() -> bool:
        facts["server"] = loader.dataset.stats()
        return any(loop["causes"].get(cause, {}).get("wait_s", 0) > LONG_S for loop in facts["server"]["loops"])

    wait_until(known, "the server knows")
    metrics = read(prometheus(look_at(facts["server"]["address"], cells=1)))
    waits = {labels[2][1]: seconds for labels, seconds in metrics["brand_loop_wait_seconds_sum"].items()}
    assert waits[cause] > LONG_S
    return facts


# -- each cause in turn ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_storage_that_does_not_answer(small: Path) -> None:
    """A read stands still."""
    with BlockedStorage() as storage, served(small, storage=storage) as data_set:
        loader = BrandLoader(data_set, 5, prefetch_batches=2)
        with opened_later(loader, storage.release):
            assert long_step(loader, iter(loader))["cause"] == "storage"
        facts = told(loader, "storage")
        assert facts["waits"]["cause"] == "storage"
        assert facts["server"]["storage_wait_s"] > LONG_S / 2


@pytest.mark.slow
def test_another_node_that_does_not_send(tmp_path: Path) -> None:
    """The storage of the other node stands still, and this node's own does not."""
    path = make_set(tmp_path / "set", make_samples(400, 200), 4)
    with (
        BlockedStorage() as storage,
        running_cluster(path, nodes=2, memory=0.3, storage={1: storage}) as cluster,
    ):
        wait_until(lambda: cluster.facts(0)["cluster"]["reachable"] == [1], "the nodes know each other")
        data_set = BrandDataset(path, fields=("index",), server=cluster.addresses[0])
        loader = BrandLoader(data_set, 5, prefetch_batches=2)
        with opened_later(loader, storage.release):
            assert long_step(loader, iter(loader))["cause"] == "node"
        facts = told(loader, "node")["server"]
        assert facts["node_wait_s"] > LONG_S / 2
        assert facts["cluster"]["received_bytes"]["1"] == facts["received_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["decode", "collate"])
def test_work_in_the_training_process(small: Path, cause: str) -> None:
    """A transform, or the function that puts batches together, stands still in the middle of an epoch."""
    gate = Gate()
    how: dict[str, Any] = {"transform": {"key": gate.passes}} if cause == "decode" else {}
    with served(small, **how) as data_set:
        loader = BrandLoader(data_set, 5, prefetch_batches=2, collate_fn=gate.passes if cause == "collate" else None)
        batches = iter(loader)
        next(batches)
        gate.shut()
        with opened_later(loader, gate.open):
            assert long_step(loader, batches)["cause"] == cause
        assert told(loader, cause)["server"]["storage_wait_s"] < LONG_S


@pytest.mark.slow
def test_a_server_that_does_not_get_to_it(small: Path) -> None:
    """The process of the data server stands still, though nothing that it serves does."""
    data_set = BrandDataset(small, fields=("index",), memory=0.3)
    loader = BrandLoader(data_set, 5, prefetch_batches=2)
    for _ in loader:
        pass
    process = data_set.stats()["process"]
    try:
        os.kill(process, signal.SIGSTOP)
        with opened_later(loader, lambda: os.kill(process, signal.SIGCONT)):
            assert long_step(loader, iter(loader))["cause"] == "server"
        told(loader, "server")
    finally:
        os.kill(process, signal.SIGCONT)
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
def test_a_loop_that_sets_the_pace(small: Path) -> None:
    """What is there when the loop asks for it costs no waiting, however long it took to make."""
    made: list[str] = []
    with served(small, transform={"key": made.append}, fields=("index", "key")) as data_set:
        loader = BrandLoader(data_set, 5, prefetch_batches=15, collate_fn=list)
        for number, _ in enumerate(loader):
            wait_until(lambda: len(made) == COUNT, "all samples are transformed")
            time.sleep(0.2 * (number < 5))
        facts = loader.stats()["waits"]
        assert facts["steps"] == 15
        assert facts["causes"][LOOP]["steps"] >= 1
        assert facts["cause"] == LOOP or facts["wait_share"] > 0.05


@pytest.mark.slow
def test_what_the_loop_waits_for_is_told_before_it_is_over(small: Path) -> None:
    """The server joins what the rank says with the draw that it holds: storage, not just the server."""
    with BlockedStorage() as storage, served(small, storage=storage) as data_set:
        loader = BrandLoader(data_set, 5, prefetch_batches=2)
        taken = threading.Thread(target=lambda: next(iter(loader)))
        taken.start()
        wait_until(lambda: data_set.stats().get("why", {}).get("cause") == "storage", "the server names the cause")
        facts = data_set.stats()
        assert facts["why"]["text"].startswith("step 0 is waiting for storage, ")
        assert facts["loops"][0]["now"]["cause"] == "storage"
        assert facts["pending"][0]["cause"] == "storage"
        storage.release()
        taken.join()


# -- what is told, and to whom ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_steps_are_told_to_the_server_by_rank(small: Path) -> None:
    """Each rank's steps of all epochs, once, with the rank and the last epoch."""
    with served(small) as data_set:
        for rank in range(2):
            sampler = BrandSampler(data_set, num_replicas=2, rank=rank)
            loader = BrandLoader(data_set, 5, sampler=sampler)
            for epoch in range(2):
                loader.set_epoch(epoch)
                for _ in loader:
                    pass
        loops = data_set.stats()["loops"]
        assert [(loop["rank"], loop["ranks"], loop["epoch"], loop["steps"]) for loop in loops] == [
            (0, 2, 1, 16),
            (1, 2, 1, 16),
        ]
        assert loops[0]["now"] is None


def test_a_loader_of_plain_indices_tells_no_server(small: Path) -> None:
    """It reads exactly: no server is started to be told, and its waits are those for storage."""
    data_set = BrandDataset(small, fields=("index",))
    loader = BrandLoader(data_set, 5, sampler=range(20))  # type: ignore[arg-type]
    for _ in loader:
        pass
    facts = loader.stats()
    assert facts["waits"]["steps"] == 4
    assert facts["server"] == {}


@pytest.mark.slow
def test_a_plain_loader_has_the_draws_of_the_server(small: Path) -> None:
    """No loop reports, and the server says for what draws waited."""
    with BlockedStorage() as storage, served(small, storage=storage) as data_set:
        loader = DataLoader(data_set, 5, sampler=BrandSampler(data_set), collate_fn=list)
        release = threading.Timer(LONG_S, storage.release)
        release.start()
        next(iter(loader))
        facts = data_set.stats()
        assert facts["loops"] == []
        assert facts["storage_wait_s"] > 0
        assert "no BrandLoader reports; fetches waited" in facts["why"]["text"]
        assert "for storage" in facts["why"]["text"]


def test_a_monitor_gets_rows_of_numbers(small: Path) -> None:
    """After every so many steps, over epochs, with the steps so far."""
    seen: list[tuple[int, dict[str, float]]] = []
    with served(small) as data_set:
        loader = BrandLoader(data_set, 5)
        loader.monitor(lambda steps, row: seen.append((steps, row)), every=4)
        for epoch in range(2):
            loader.set_epoch(epoch)
            for _ in loader:
                pass
    assert [steps for steps, _ in seen] == [4, 8, 12, 16, 20, 24, 28]
    assert all(isinstance(value, float) for _, row in seen for value in row.values())
    assert {f"{cause}_s" for cause in CAUSES} < set(seen[0][1])
    assert all(0 <= row["wait_share"] <= 1 and row["samples_per_s"] > 0 for _, row in seen)


def test_a_monitor_that_fails_fails_the_loop(small: Path) -> None:
    """It is called by the loop, and so is its error the loop's."""

    def fail(steps: int, row: dict[str, float]) -> None:
        raise KeyError(steps)

    with served(small) as data_set:
        loader = BrandLoader(data_set, 5)
        loader.monitor(fail, every=3)
        with pytest.raises(KeyError):
            list(loader)


@pytest.mark.slow
def test_a_profile_counts_the_waits_as_data_time(small: Path) -> None:
    """Each batch is a span whose name PyTorch's tools know; without a profiler there is none."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            batches = len(list(loader))
        spans = [event for event in profile.events() if event.name == PROFILED]
    assert len(spans) == batches + 1  # and the end of the epoch
    assert PROFILED.startswith("enumerate(DataLoader)#")


# -- the parts, without threads --------------------------------------------------------------------------------------


def course(*spans: tuple[str, float, float], collate: tuple[float, float]) -> BatchTimes:
    """A batch whose request waited for these, and that was put together at these times."""
    made = BatchTimes([Span(*span) for span in spans])
    made.collate_s, made.done_s = collate
    return made


@pytest.mark.parametrize(
    ("start_s", "end_s", "cause"),
    [
        (0.0, 10.0, "storage"),
        (4.0, 10.0, "node"),
        (6.5, 10.0, "decode"),
        (8.4, 10.0, "collate"),
        (10.0, 10.5, LOOP),
        (-5.0, 1.0, "decode"),
    ],
)
def test_the_cause_is_what_took_longest_while_the_loop_waited(start_s: float, end_s: float, cause: str) -> None:
    """What a batch waited for before the loop asked for it does not count."""
    made = course(("server", 0.5, 1.0), ("storage", 1.0, 4.5), ("node", 4.5, 7.0), collate=(8.5, 10.0))
    assert made.cause(start_s, end_s) == cause


def test_a_wait_for_the_server_is_cut_as_the_server_says() -> None:
    """First the time that the server does not tell of, then what it held the draw for; never beyond the wait."""
    assert list(spans_of(10.0, 3.0, Held(storage=1.0, node=1.5))) == [
        Span("server", 10.0, 10.5),
        Span("storage", 10.5, 11.5),
        Span("node", 11.5, 13.0),
    ]
    assert list(spans_of(10.0, 1.0, Held(storage=9.0))) == [Span("storage", 10.0, 11.0)]
    assert list(spans_of(0.0, 0.0, Held())) == []


def test_reports_are_what_is_new() -> None:
    """Together they are all steps, also where one could not be sent; the longest wait is that since the last one."""
    waits = StepWaits()
    waits.begin("server")
    waits.taken(course(("storage", 0.0, 1.0), collate=(1.0, 1.0)), 0.0, 1.0, 0.1, 5)
    assert waits.report(LOOP_OF, 1.0).tally.steps == 1
    first = waits.report(LOOP_OF, 1.0)
    waits.sent(first)
    waits.taken(course(("node", 1.0, 1.5), collate=(1.5, 1.5)), 1.0, 1.5, 0.1, 5)
    waits.wait(2.0)
    second = waits.report(LOOP_OF, 2.25)
    assert (first.tally.steps, second.tally.steps, second.step) == (1, 1, 2)
    assert (first.tally.samples, second.tally.samples, second.taken) == (5, 5, 10)
    assert first.worst is not None
    assert (first.worst.cause, first.worst.step) == ("storage", 0)
    assert second.worst is not None
    assert (second.worst.cause, second.worst.wait_s) == ("node", 0.5)
    assert second.now is not None
    assert (second.now.step, second.now.wait_s, second.now.cause) == (2, 0.25, "server")
    waits.sent(second)
    last = waits.report(LOOP_OF, 3.0)
    assert (last.tally.steps, last.worst) == (0, None)
