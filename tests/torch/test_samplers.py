"""Who draws what: ranks, copies, several samplers of one data set, forks; and who does not draw at all."""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

from brand.errors import ServerError, UsageError
from brand.node.client.client import Client
from brand.node.client.connector import look_at
from brand.orders.base.tickets import positions_of
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests import places
from tests.torch.support import (
    Openings,
    Record,
    indices_of,
    make_samples,
    make_set,
    planned,
    records,
    records_of,
    served,
)

pytestmark = places.EVERYWHERE

SAMPLES = records(make_samples(75, 1500))
SIZES = (1, 2, 7, 30)


# -- ranks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[int, BrandDataset]:
    """Data sets of so many samples."""
    folder = tmp_path_factory.mktemp("sets")
    return {n: BrandDataset(make_set(folder / str(n), make_samples(n, 20), 4), memory=1.0) for n in SIZES}


@pytest.mark.slow
@given(count=st.sampled_from(SIZES), ranks=st.integers(1, 12), start=st.integers(0, 30), drop_last=st.booleans())
def test_ranks_have_equally_many_and_together_all(
    sets: dict[int, BrandDataset], count: int, ranks: int, start: int, *, drop_last: bool
) -> None:
    """From any position on; what does not divide comes twice, or is left out."""
    start = min(start, count)
    parts = []
    for rank in range(ranks):
        sampler = BrandSampler(sets[count], num_replicas=ranks, rank=rank, drop_last=drop_last, shuffle=False)
        if not start:
            assert len(sampler) == len(list(sampler))
        sampler.load_state_dict(sampler.state_dict() | {"epoch": 0, "position": start})
        parts.append(list(sampler))
        assert sampler.state_dict()["position"] < count
    start %= count  # at the end of an epoch, the next one begins
    left = count - start
    assert {len(part) for part in parts} == {left // ranks if drop_last else -(-left // ranks)}
    together = [index for turn in zip(*parts, strict=True) for index in turn]
    expected = [position % count for position in range(start, start + len(together))]
    assert together == expected
    assert len(together) == (left // ranks * ranks if drop_last else -(-left // ranks) * ranks)


@pytest.mark.slow
@given(
    ranks=st.integers(1, 6),
    batch=st.integers(1, 9),
    takes=st.lists(st.one_of(st.just(0), st.integers(1, 40)), max_size=12),
)
def test_one_by_one_or_many_at_a_time(sets: dict[int, BrandDataset], ranks: int, batch: int, takes: list[int]) -> None:
    """`next` and `take`, in any mixture: the same positions, and the state counts them."""
    expected = list(range(ranks - 1, 30, ranks))
    expected += [(ranks - 1 + len(expected) * ranks) % 30] * (-(-30 // ranks) - len(expected))
    sampler = BrandSampler(sets[30], num_replicas=ranks, rank=ranks - 1, shuffle=False)
    positions: Any = iter(sampler)
    found: list[int] = []
    for take in takes:
        found += positions.take(take).tolist() if take else [i for i in [next(positions, None)] if i is not None]
        assert found == expected[: len(found)]
        position = len(found) * ranks
        assert sampler.state_dict()["position"] == (position if position < 30 else 0)
    assert found + list(positions) == expected


@pytest.mark.parametrize("per_rank", [2, 4])
def test_a_global_batch_is_the_same_set_for_any_number_of_ranks(small: Path, per_rank: int) -> None:
    """Eight samples a step, whoever trains them."""
    with served(small) as data_set:
        steps: dict[int, list[set[int]]] = {}
        for ranks in (1, 8 // per_rank):
            loaders = [
                BrandLoader(
                    data_set, 8 // ranks, sampler=BrandSampler(data_set, num_replicas=ranks, rank=rank), drop_last=True
                )
                for rank in range(ranks)
            ]
            steps[ranks] = [set(indices_of(turn)) for turn in zip(*loaders, strict=True)]
        one, several = steps.values()
        assert one == several


def test_tickets_carry_epoch_and_position(small: Path) -> None:
    """Ints, as a sampler gives them, far out of range as indices."""
    with served(small) as data_set:
        sampler = BrandSampler(data_set)
        sampler.set_epoch(3)
        drawn = list(sampler)
        assert {type(ticket) for ticket in drawn} == {int}
        assert positions_of(torch.tensor(drawn).numpy()).tolist() == list(range(75))
        assert min(drawn) >= 1 << 62
        assert [data_set[ticket][0] for ticket in drawn] == planned(small, sampler.order, 3)


def test_a_ticket_may_be_asked_for_again(small: Path) -> None:
    """A position is a name of a sample: twice, late, or in any order it is the same one."""
    with served(small, fields=None) as data_set:
        sampler = BrandSampler(data_set)
        drawn = list(sampler)
        expected = planned(small, sampler.order, 0)
        for asked in (drawn[10:20], drawn[10:20], drawn[::-1], [drawn[3]] * 5, drawn[60:] + drawn[:5]):
            found = records(data_set.__getitems__(asked))
            assert found == [SAMPLES[expected[drawn.index(ticket)]] for ticket in asked]


# -- mixtures that are refused ---------------------------------------------------------------------------------------


def test_a_batch_is_of_one_kind(small: Path) -> None:
    """Tickets with plain indices, of two epochs, of two samplers: each is said."""
    with served(small) as data_set:
        sampler, other = BrandSampler(data_set), BrandSampler(data_set, seed=1)
        tickets, foreign = list(sampler), list(other)
        sampler.set_epoch(1)
        for wrong, said in (
            ([tickets[0], 5], "plain indices"),
            ([5, tickets[0]], "plain indices"),
            ([-1, tickets[0]], "plain indices"),
            ([tickets[0], next(iter(sampler))], "one epoch"),
            ([tickets[0], foreign[1]], "one epoch"),
        ):
            for read in (data_set.__getitems__, data_set._source.fetch):
                with pytest.raises(UsageError, match=said):
                    read(wrong)
        assert len(data_set.__getitems__(tickets[:3])) == 3


def test_a_subset_with_a_brand_sampler_is_loud(small: Path) -> None:
    """Draws are for whole data sets."""
    with served(small) as data_set:
        with pytest.raises(UsageError, match="Subset"):
            BrandSampler(Subset(data_set, range(5)))  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            list(DataLoader(Subset(data_set, range(5)), sampler=BrandSampler(data_set)))


# -- several samplers, copies ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "slots"])
def test_two_seeds_interleaved(small: Path, order: Any) -> None:
    """Step by step, each in its own order, for several epochs."""
    with served(small, order=order) as data_set:
        samplers = [BrandSampler(data_set, seed=seed) for seed in (1, 2)]
        loaders = [BrandLoader(data_set, 6, sampler=samplers[0]), DataLoader(data_set, 6, sampler=samplers[1])]
        for epoch in range(3):
            found = list(zip(*loaders, strict=True))
            for side, sampler in enumerate(samplers):
                assert indices_of(pair[side] for pair in found) == planned(small, sampler.order, epoch)


def test_a_copy_of_a_sampler_goes_on_by_itself(small: Path) -> None:
    """By pickle, alone or with its data set, unused or in the middle of an epoch."""
    with served(small) as data_set:
        sampler = BrandSampler(data_set, seed=4)
        expected = planned(small, sampler.order, 0)
        copied_set, copied = pickle.loads(pickle.dumps((data_set, sampler)))
        assert copied.dataset is copied_set
        assert indices_of(DataLoader(copied_set, 8, sampler=copied)) == expected
        assert indices_of(DataLoader(data_set, 8, sampler=pickle.loads(pickle.dumps(sampler)))) == expected
        running = iter(BrandLoader(data_set, 8, sampler=sampler, prefetch_batches=1))
        next(running)
        again = pickle.loads(pickle.dumps(sampler))
        again.load_state_dict(sampler.state_dict(samples=8))
        assert indices_of(BrandLoader(again.dataset, 8, sampler=again)) == expected[8:]
        assert indices_of(running) == expected[8:]


def test_a_loader_that_is_not_used_yet_travels_by_pickle(small: Path) -> None:
    """As a `DataLoader` does, for `torch.multiprocessing.spawn`."""
    with served(small) as data_set:
        loader = pickle.loads(pickle.dumps(BrandLoader(data_set, 5)))
        assert len(indices_of(loader)) == 75


def test_a_used_loader_may_be_dropped_and_its_sampler_used_again(small: Path) -> None:
    """The sampler knows which epoch is next."""
    with served(small) as data_set:
        sampler = BrandSampler(data_set)
        makes: list[Callable[..., Any]] = [BrandLoader, DataLoader, BrandLoader]
        for epoch, make in enumerate(makes):
            assert indices_of(make(data_set, 9, sampler=sampler)) == planned(small, sampler.order, epoch)


# -- exact reads need no server --------------------------------------------------------------------------------------


def nobody_listens(data_set: BrandDataset) -> bool:
    """Whether no server was started for a data set."""
    client = data_set._source.port.client
    assert isinstance(client, Client)
    try:
        look_at(client.address)
    except ServerError:
        return data_set.stats() == {}
    return False


@places.IN_A_FOLDER  # of a data set in a store, only a server may read
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_parts_and_plain_samplers_are_exact_and_start_no_server(small: Path, workers: int, lies_in: str) -> None:
    """`Subset`, `random_split`, weighted, random, sequential and distributed sampling give what they name."""
    data_set = BrandDataset(small)
    seed = torch.Generator().manual_seed(0)
    subset = Subset(data_set, [5, 70, 5, 0])
    part, rest = random_split(data_set, [0.7, 0.3], seed)
    weights = [float(index % 3 == 0) for index in range(75)]
    samplers: list[Any] = [
        list(WeightedRandomSampler(weights, 100, generator=seed)),
        list(RandomSampler(data_set, generator=seed)),
        SequentialSampler(data_set),
        DistributedSampler(data_set, num_replicas=3, rank=1),
        BrandSampler(data_set, shuffle=False, num_replicas=2, rank=1),
    ]
    cases: list[tuple[Any, Any, list[int]]] = [
        (subset, None, [5, 70, 5, 0]),
        (part, None, list(part.indices)),
        (rest, None, list(rest.indices)),
        *[(data_set, sampler, list(sampler)) for sampler in samplers],
    ]
    for data, sampler, named in cases:
        found: list[Record] = records_of(DataLoader(data, 16, sampler=sampler, num_workers=workers))
        assert found == [SAMPLES[index] for index in named]
    assert len({*part.indices} | {*rest.indices}) == 75
    assert nobody_listens(data_set)


def test_looking_at_a_sample_disturbs_no_draw(small: Path) -> None:
    """In the middle of an epoch, of a data set that others draw from."""
    with served(small, fields=None) as data_set:
        loader = BrandLoader(data_set, 5)
        found = []
        for batch in loader:
            found += records_of([batch])
            assert records([data_set[7]]) == [SAMPLES[7]]
            assert records([data_set[-1]]) == [SAMPLES[74]]
        assert sorted(found) == SAMPLES
        assert data_set.stats()["fetched"] == 75


def test_neither_opening_nor_sampling_starts_a_server(small: Path) -> None:
    """The first draw does: not a data set, a sampler, a loader, a length, a state, or an iterator that is not used."""
    data_set = BrandDataset(small)
    sampler = BrandSampler(data_set)
    loader = DataLoader(data_set, 5, sampler=sampler)
    sampler.set_epoch(3)
    sampler.load_state_dict(sampler.state_dict())
    iter(sampler)
    assert (len(loader), len(BrandLoader(data_set, 5)), len(sampler)) == (15, 15, 75)
    assert nobody_listens(data_set)


# -- other systems, forks --------------------------------------------------------------------------------------------


@places.IN_A_FOLDER
def test_without_passed_files_exact_reads_work_and_a_draw_reads_directly(
    small: Path, lies_in: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a server cannot pass its memory. The log says why, once for a data set."""
    monkeypatch.delattr(socket, "SCM_RIGHTS")
    data_set = BrandDataset(small, cache=small.parent / "cache")
    assert records_of(DataLoader(data_set, 16, shuffle=False)) == SAMPLES
    assert records([data_set[-1]]) == SAMPLES[-1:]
    plain = BrandSampler(data_set, shuffle=False)
    assert records_of(BrandLoader(data_set, 16, sampler=plain)) == SAMPLES
    for loader in (DataLoader(data_set, 16, sampler=BrandSampler(data_set)), BrandLoader(data_set, 16)):
        assert sorted(records_of(loader)) == SAMPLES
    assert data_set.stats()["server"] == "none"
    assert [record.getMessage() for record in caplog.records] == [
        "this system has no SCM_RIGHTS, so no data server can run; samples are read one by one, and without cache=,"
        " which is slower"
    ]


def test_a_brand_loader_where_processors_cannot_be_counted_by_affinity(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: exact reads through a `BrandLoader`."""
    monkeypatch.delattr(os, "sched_getaffinity")
    data_set = BrandDataset(small)
    loader = BrandLoader(data_set, 16, sampler=BrandSampler(data_set, shuffle=False))
    assert records_of(loader) == SAMPLES


def in_child(work: Callable[[], bool]) -> int:
    """A forked child that ends with 0 where `work` says so; its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = int(not work())
    finally:
        os._exit(code)


def ended_well(*children: int) -> bool:
    """Wait for them."""
    return all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)


def test_a_fork_in_mid_draw(small: Path) -> None:
    """Parent and children go on from the same tickets, at the same time: all get the same, undisturbed."""
    with served(small, fields=None) as data_set:
        drawn = list(sampler := BrandSampler(data_set))
        every = [SAMPLES[index] for index in planned(small, sampler.order, 0)]

        def rest() -> bool:
            found = [r for first in range(35, 75, 5) for r in records(data_set.__getitems__(drawn[first : first + 5]))]
            return found == every[35:]

        assert records(data_set.__getitems__(drawn[:35])) == every[:35]
        children = [in_child(rest) for _ in range(3)]
        assert rest()
        assert ended_well(*children)


def test_a_fork_while_a_loader_runs(small: Path) -> None:
    """Its threads are the parent's; the child draws for itself, with a loader of its own."""
    with served(small) as data_set:
        loader = BrandLoader(data_set, 5, prefetch_batches=2)
        running = iter(loader)
        begun = indices_of([next(running)])

        def draw() -> bool:
            sampler = BrandSampler(data_set, seed=1)
            return indices_of(BrandLoader(data_set, 5, sampler=sampler)) == planned(small, sampler.order, 0)

        children = [in_child(draw) for _ in range(2)]
        assert begun + indices_of(running) == planned(small, BrandSampler(data_set).order, 0)
        assert ended_well(*children)


def test_a_child_may_use_a_loader_that_its_parent_has_used(small: Path) -> None:
    """As a program has it that looks at a batch before it forks its ranks."""
    with served(small, transform={"index": int}) as data_set:
        loader = BrandLoader(data_set, 5, num_workers=2)
        assert len(indices_of(loader)) == 75

        def draw() -> bool:
            signal.alarm(3)
            return len(indices_of(loader)) == 75

        assert ended_well(in_child(draw))


@pytest.mark.slow
def test_workers_of_a_validation_while_a_loader_trains(small: Path, smaller: Path, opened: Openings) -> None:
    """A `DataLoader` forks in the middle of a `BrandLoader`'s epoch, again and again."""
    training, validation = opened(small), opened(smaller)
    loader = BrandLoader(training, 10)
    sampler = BrandSampler(validation)
    found = []
    for number, batch in enumerate(loader):
        found += indices_of([batch])
        if number % 3 == 0:
            sampler.set_epoch(0)
            assert indices_of(DataLoader(validation, 8, sampler=sampler, num_workers=2)) == planned(
                smaller, sampler.order, 0
            )
    assert found == planned(small, BrandSampler(training).order, 0)
