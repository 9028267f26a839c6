"""How long simulated epochs take."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.orders.order import Order
from brand.orders.policies.stripe_policy import StripePolicy
from brand.simulate.pace import Machine, pace
from brand.simulate.running import SimulatedRun, work_of
from brand.simulate.storages import BUILT_IN, StorageLimits
from brand.simulate.whatif import Case, answer, imagine
from tests.rounds import examples

SIZES = np.random.default_rng(0).integers(500, 3000, 1000).astype(np.uint32)
ORDER = Order("0" * 32, 1000, 16, 0, StripePolicy(4, stripe=4))


def seconds(
    machine: Machine, memory: float = 0.5, nodes: int = 1, batch: int = 16, epochs: int = 2, cache: int = 0
) -> list[float]:
    run = SimulatedRun(SIZES, ORDER, memory, None, nodes, nodes, batch, cache)
    return [each.seconds for each in pace(run, list(work_of(run, range(epochs))), machine)]


def test_a_storage_that_is_slower_than_all_else_sets_the_pace() -> None:
    """An epoch takes as long as its bytes."""
    (found, _) = seconds(Machine(StorageLimits("slow", 1e6), train_per_s=1e9), memory=1.0)
    assert found == pytest.approx(SIZES.sum() / 1e6, rel=1e-3)


def test_a_storage_of_few_operations_takes_as_long_as_the_reads() -> None:
    """The same with operations."""
    (found, _) = seconds(Machine(StorageLimits("few", math.inf, 100)), memory=1.0)
    assert found == pytest.approx(np.ceil(1000 / 4) / 100, rel=0.01)


def test_training_that_is_slower_than_all_else_sets_the_pace() -> None:
    """It waits for the first batch only."""
    run = SimulatedRun(SIZES, ORDER, 0.5, batch=16)
    (first, later) = pace(run, list(work_of(run, range(2))), Machine(StorageLimits("fast", 1e12), train_per_s=100))
    assert first.seconds == pytest.approx(1000 / 100, rel=1e-3)
    assert later.waits == pytest.approx(0, abs=1e-3)
    assert later.sets_the_pace == "training"


def test_what_lies_in_memory_takes_no_time() -> None:
    """Later epochs of data that fit."""
    assert seconds(Machine(StorageLimits("slow", 1e6)), memory=1.0)[1] == 0


def test_each_exact_read_is_an_operation() -> None:
    """A storage of 100 operations a second takes a second for 100 exact reads, however small they are."""
    run = SimulatedRun(SIZES, ORDER, 1.0, batch=16)
    ((work,),) = work_of(run, range(1))
    exact = np.zeros(run.iterations, np.int64)
    exact[-1] = 100
    machine = Machine(StorageLimits("few", math.inf, 100))
    (before,), (after,) = (pace(run, [[each]], machine) for each in (work, replace(work, exact_reads=exact)))
    assert after.seconds - before.seconds == pytest.approx(1)


def test_nodes_share_the_storage() -> None:
    """Three nodes read a data set from a slow storage no faster than one, where nothing is kept."""
    machine = Machine(StorageLimits("slow", 1e6))
    assert seconds(machine, nodes=3)[0] == pytest.approx(seconds(machine)[0], rel=0.01)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Machines on which any part may set the pace."""
    rate = st.floats(1e4, 1e8)
    return Machine(
        StorageLimits("any", draw(rate), draw(st.floats(10, 1e5))),
        StorageLimits("any", draw(rate), draw(st.floats(10, 1e5))),
        network_bytes_per_s=draw(rate),
        train_per_s=draw(st.floats(10, 1e5)),
        decode_s=draw(st.floats(0, 0.1)),
        threads=draw(st.integers(1, 16)),
    )


def test_what_lies_in_the_cache_folder_takes_the_time_of_its_disk() -> None:
    """Room for all: the first epoch at the storage's speed, a later one at the folder's, but for what is read ahead."""
    machine, room = Machine(StorageLimits("slow", 1e6), StorageLimits("disk", 4e6)), int(SIZES.sum())
    first, later = seconds(machine, cache=room)
    assert first == pytest.approx(SIZES.sum() / 1e6, rel=1e-3)
    _, (work,) = work_of(SimulatedRun(SIZES, ORDER, 0.5, batch=16, cache_bytes=room), range(2))
    assert 0.75 * work.cache_bytes / 4e6 < later <= work.cache_bytes / 4e6
    assert work.reads == work.read_bytes == 0


def test_storage_and_cache_folder_read_side_by_side() -> None:
    """With half of the reads in a folder that is as fast as the storage, a later epoch takes half of the time."""
    same = StorageLimits("same", 1e6)
    whole, half = (
        seconds(Machine(same, same), memory=0.3, cache=cache)[1] for cache in (0, int(SIZES.sum()) * 45 // 100)
    )
    assert half == pytest.approx(whole / 2, rel=0.15)


def test_each_node_has_a_disk_of_its_own() -> None:
    """Two nodes read from two folders twice as fast as one from one, where no network holds them up."""
    machine = Machine(StorageLimits("slow", 1e6), StorageLimits("disk", 4e6), network_bytes_per_s=1e12)
    one, two = (seconds(machine, 0.3, nodes, cache=int(SIZES.sum()))[1] for nodes in (1, 2))
    assert two <= 0.6 * one


@examples(60)
@given(
    machines(), st.sampled_from(["bytes", "operations", "cache", "network", "train", "decode", "threads"]), st.data()
)
def test_a_better_machine_never_costs_time(machine: Machine, part: str, data: st.DataObject) -> None:
    """Whatever of it is better, over two nodes and two epochs."""
    times, share = data.draw(st.floats(1, 10)), data.draw(st.floats(0, 1))
    storage, cache = machine.storage, machine.cache
    assert isinstance(storage, StorageLimits)
    assert isinstance(cache, StorageLimits)
    better = {
        "bytes": replace(machine, storage=replace(storage, bytes_per_s=times * storage.bytes_per_s)),
        "operations": replace(machine, storage=replace(storage, operations_per_s=times * storage.operations_per_s)),
        "cache": replace(machine, cache=replace(cache, bytes_per_s=times * cache.bytes_per_s)),
        "network": replace(machine, network_bytes_per_s=times * machine.network_bytes_per_s),
        "train": replace(machine, train_per_s=times * machine.train_per_s),
        "decode": replace(machine, decode_s=machine.decode_s / times),
        "threads": replace(machine, threads=machine.threads + round(times)),
    }[part]
    room = int(share * SIZES.sum())
    found, before = (sum(seconds(each, nodes=2, cache=room)) for each in (better, machine))
    assert found <= before * (1 + 1e-9)


@examples(30)
@given(machines(), st.floats(0.3, 0.9), st.floats(0.01, 0.5))
def test_more_memory_never_costs_time(machine: Machine, memory: float, more: float) -> None:
    """In the same order."""
    assert sum(seconds(machine, min(1.0, memory + more))) <= sum(seconds(machine, memory)) * (1 + 1e-9)


@examples(30)
@given(machines(), st.floats(0, 0.9), st.floats(0.01, 0.5), st.integers(1, 2))
def test_a_larger_cache_costs_no_more_than_its_disk_takes(
    machine: Machine, share: float, more: float, nodes: int
) -> None:
    """Nothing, where the disk is fast. (A slow disk that holds most leaves the storage idle, which may cost time.)"""

    def both(cache: StorageLimits) -> tuple[float, float]:
        made = replace(machine, cache=cache)
        small, large = (
            sum(seconds(made, nodes=nodes, cache=int(each * SIZES.sum()))) for each in (share, share + more)
        )
        return small, large

    small, large = both(StorageLimits("fast", math.inf))
    assert large <= small * (1 + 1e-9)
    storage = machine.storage
    assert isinstance(storage, StorageLimits)
    small, large = both(storage)
    run = SimulatedRun(SIZES, ORDER, 0.5, None, nodes, nodes, 16, int(SIZES.sum()))
    alone = sum(
        work.cache_bytes / storage.bytes_per_s + work.cache_reads / storage.operations_per_s
        for works in work_of(run, range(2))
        for work in works
    )
    assert large <= small + alone


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("memory", [0.06, 0.1, 0.25])
@pytest.mark.parametrize(
    ("samples", "size", "chunk"), [(30_000, 512, 8197), (1500, 105_000, 40)], ids=["records", "images"]
)
@pytest.mark.parametrize("storage", ["nas", "nvme"])
def test_the_order_of_the_chunks_is_as_fast_as_a_shuffle(
    storage: str, samples: int, size: int, chunk: int, memory: float, ranks: int
) -> None:
    """In each epoch, and in little memory, too. Later epochs cache more samples and read fewer bytes.

    A simulated shuffle has no direct reads in little memory. A real one does, and is slower.
    """
    data, machine = imagine(samples, size, 0, chunk), Machine(BUILT_IN[storage])
    stored, shuffled = (
        answer(data, Case(machine, memory, order=order, ranks=ranks, batch=64)) for order in ("storage", "stripes")
    )
    for mine, other in zip(stored.paces, shuffled.paces, strict=True):
        assert mine.seconds * 0.95 <= other.seconds
    assert stored.kept_bytes >= shuffled.kept_bytes
    assert stored.later_counts.read_bytes <= shuffled.later_counts.read_bytes
    assert stored.later_counts.direct == 0
