"""Planned batches: every sample once an epoch, ranks with equally many batches, and a stop changes nothing."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from brand import pack
from brand.errors import SchemaError, UsageError
from brand.orders.order import Order
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, PackedBatchSampler
from tests import places
from tests.support import LIMIT_S
from tests.torch.support import MANY_WORKERS, TORCHDATA, indices_of, stateful_loader
from tests.torch.training import two_ranks

pytestmark = [
    TORCHDATA,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

COUNT, LONGEST = 90, 30
State = dict[str, Any]
Batch = list[int]
Plan = LengthBatchSampler | PackedBatchSampler
LIMITS: dict[str, dict[str, Any]] = {
    "size": {"batch_size": 4},
    "length": {"batch_length": 60},
    "both": {"batch_length": 60, "batch_size": 3},
    "packed": {"tokens_per_row": 12, "rows_per_batch": 3},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 documents of 1 to 30 tokens in chunks of eight; document `i` has tokens 100 i, 100 i + 1, ..."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, LONGEST + 1, COUNT).tolist()
    samples = [
        {"tokens": np.arange(100 * i, 100 * i + n, dtype=np.int32), "count": n, "seconds": n / 2, "text": "x" * n}
        for i, n in enumerate(lengths)
    ]
    target = tmp_path_factory.mktemp("sets") / "documents.brand"
    schema = {"tokens": "ndarray", "count": "int", "seconds": "float", "text": "str"}
    pack(samples, target, schema, chunk_size=8, jobs=1)
    return target


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[RunningServer]:
    """For all tests."""
    with running_server(path, memory=0.6) as running:
        yield running


def opened(server: RunningServer, **more: Any) -> BrandDataset:
    """(index, count), unless said otherwise."""
    return BrandDataset(server.path, server=server.address, **({"fields": ("index", "count")} | more))


@pytest.fixture
def data_set(server: RunningServer) -> BrandDataset:
    """Opened anew for each test, as a new process does."""
    return opened(server)


def planned(data_set: BrandDataset, length: Any = "count", **limits: Any) -> Plan:
    """Batches of the kind that the limits say."""
    kind: Any = PackedBatchSampler if {"tokens_per_row", "rows_per_batch"} & set(limits) else LengthBatchSampler
    found: Plan = kind(data_set, length, **limits)
    return found


def pairs(samples: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """A batch as it is."""
    return samples


def loaded(plan: Plan) -> BrandLoader:
    """A loader of lists of indices."""
    return BrandLoader(plan.dataset, batch_sampler=plan, collate_fn=lambda samples: [index for index, _ in samples])


def expected(plan: Plan, epoch: int) -> list[Batch]:
    """The indices of all batches of an epoch, out of its plan alone."""
    batches = plan._sequence.batches_of(epoch).batches
    assert isinstance(plan.order, Order)
    indices = StoredDataSet(plan.dataset.name).indices(plan.order.plan(epoch).sample_of)[batches.positions]
    return [part.tolist() for part in np.split(indices, batches.ends)[:-1]]


def ranked(data_set: BrandDataset, ranks: int, **more: Any) -> list[Plan]:
    """The plans of all ranks."""
    return [planned(data_set, num_replicas=ranks, rank=rank, **more) for rank in range(ranks)]


def dealt(parts: list[list[Batch]]) -> list[Batch]:
    """The batches of all ranks in the order of their numbers."""
    assert len({len(part) for part in parts}) == 1, "ranks have equally many batches"
    return [batch for turn in zip(*parts, strict=True) for batch in turn]


def through_json(state: State) -> State:
    """Written and read."""
    found: State = json.loads(json.dumps(state))
    return found


# -- what an epoch gives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("order", ["stripes", "slots", "uniform"])
def test_every_sample_comes_once_an_epoch(server: RunningServer, limits: dict[str, Any], order: OrderOption) -> None:
    """Batch for batch as planned, with a `BrandLoader` and a `DataLoader`; other batches in the next epoch."""
    data_set = opened(server, order=order)
    plan = planned(data_set, **limits)
    fast, plain = loaded(plan), DataLoader(data_set, batch_sampler=planned(data_set, **limits))
    for epoch in range(2):
        wanted = expected(plan, epoch)
        assert sorted(index for batch in wanted for index in batch) == list(range(COUNT))
        assert len(fast) == len(wanted)
        assert list(fast) == wanted
        assert [indices_of([batch]) for batch in plain] == wanted
    assert expected(plan, 0) != expected(plan, 1)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_no_batch_is_over_its_limit(data_set: BrandDataset, limits: dict[str, Any]) -> None:
    """As samples come, not as they were planned."""
    loader = BrandLoader(data_set, batch_sampler=planned(data_set, **limits), collate_fn=pairs)
    for batch in loader:
        counts = [count for _, count in batch]
        assert len(batch) <= limits.get("batch_size", COUNT)
        assert "batch_length" not in limits or max(counts) * len(counts) <= limits["batch_length"]
        assert "pack" not in limits or sum(counts) <= limits["pack"] * limits["rows"]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_ranks_have_equally_many_batches(data_set: BrandDataset, ranks: int, drop_last: bool) -> None:
    """Together those of the plan; the last round is dropped, or filled with batches from the beginning."""
    plans = ranked(data_set, ranks, batch_length=60, drop_last=drop_last)
    loaders = [loaded(plan) for plan in plans]
    batches = {len(loader) for loader in loaders}
    wanted, found = expected(plans[0], 0), dealt([list(loader) for loader in loaders])
    assert batches == {len(found) // ranks}
    if drop_last:
        assert found == wanted[: len(wanted) // ranks * ranks]
    else:
        assert found == wanted + wanted[: -len(wanted) % ranks]


@pytest.mark.slow
@MANY_WORKERS
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(server: RunningServer, workers: int) -> None:
    """Batches come in order from any number of worker processes, also in a second epoch of the same workers."""
    data_set = opened(server)
    plan = LengthBatchSampler(data_set, "count", batch_length=60)
    loader = DataLoader(data_set, batch_sampler=plan, num_workers=workers, persistent_workers=True)
    for epoch in range(2):
        assert [indices_of([batch]) for batch in loader] == expected(plan, epoch)


RANK = """
import json, sys
from brand import LengthBatchSampler, BrandDataset, BrandLoader

data = BrandDataset(sys.argv[1], fields=("index",), memory=0.6)
loader = BrandLoader(
    data,
    batch_sampler=LengthBatchSampler(data, "count", batch_length=60),
    collate_fn=lambda samples: [i for (i,) in samples],
)
print(json.dumps([list(loader) for _ in range(3)]))
"""


@pytest.mark.slow
def test_ranks_of_a_job_draw_from_one_server(path: Path) -> None:
    """Processes that torchrun starts: epochs are shared, and nobody is judged for what the other draws."""
    found = [json.loads(out) for _, out, _ in two_ranks(RANK, path)]
    plan = LengthBatchSampler(BrandDataset(path, memory=0.6), "count", batch_length=60)
    for epoch in range(3):
        wanted = expected(plan, epoch)
        assert dealt([batches[epoch] for batches in found]) == wanted + wanted[: len(wanted) % 2]


@pytest.mark.slow
def test_the_server_does_not_judge_batches_of_one_sample(data_set: BrandDataset) -> None:
    """They come in another order than the positions, so what lies between is not left out. With many seeds."""
    for seed in range(12):
        plan = LengthBatchSampler(data_set, "count", batch_size=1, seed=seed)
        assert len(list(loaded(plan))) == COUNT


def test_hardly_a_sample_is_read_exactly(path: Path) -> None:
    """Where memory holds what waits in a window: draws find what the server has read ahead."""
    with running_server(path, memory=0.6) as server:
        data_set = opened(server)
        for epoch in range(3):
            plan = LengthBatchSampler(data_set, "count", batch_size=4)
            plan.set_epoch(epoch)
            assert len(list(loaded(plan))) == len(plan)
        stats = data_set.stats()
        assert stats["direct"] <= 0.1 * stats["fetched"]


def test_a_part_and_lengths_of_ones_own(data_set: BrandDataset) -> None:
    """Lengths by index as an array; only what is drawn needs a length that fits."""
    lengths = data_set.column("seconds").copy()
    lengths[3], lengths[4] = np.nan, 1000
    kept = np.flatnonzero((lengths >= 0) & (lengths < 1000))
    plan = LengthBatchSampler(data_set, lengths, batch_length=30, subset=kept)
    found = list(loaded(plan))
    assert sorted(index for batch in found for index in batch) == kept.tolist()
    assert all(lengths[batch].max() * len(batch) <= 30 for batch in found)


def test_bytes_are_lengths_by_default(data_set: BrandDataset) -> None:
    """All fields of a sample together, as the index has them."""
    plan = LengthBatchSampler(data_set, batch_size=6)
    lengths = data_set.column("count")
    assert plan.padding(0) < 0.3
    batches = [lengths[batch] for batch in expected(plan, 0)]
    mixed = np.random.default_rng(0).permutation(np.concatenate(batches))
    apart = [np.ptp(part) for part in np.array_split(mixed, len(batches))]
    assert np.mean([np.ptp(batch) for batch in batches]) < np.mean(apart) / 2


def test_the_plan_says_how_much_is_padding(data_set: BrandDataset) -> None:
    """For the batches so far and for the epoch, as the samples say it."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    loader = BrandLoader(data_set, batch_sampler=plan, collate_fn=pairs)
    used = padded = 0
    for number, batch in enumerate(loader, 1):
        counts = [count for _, count in batch]
        used, padded = used + sum(counts), padded + len(counts) * max(counts)
        figures = loader.stats()["batches"]
        assert (figures["batches"], figures["length"]) == (number, used)
        assert figures["padding"] == pytest.approx(1 - used / padded, abs=1e-6)
    assert figures["epoch_batches"] == number
    assert figures["epoch_length"] == used
    assert figures["epoch_padding"] == pytest.approx(plan.padding(0), abs=1e-6)
    assert figures["longest"] == int(data_set.column("count").max())
    assert BrandLoader(data_set, 4).stats().keys().isdisjoint({"batches"})


# -- states ----------------------------------------------------------------------------------------------------------


@places.turns("ranks")
@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_run_stops_at_every_batch_and_goes_on_with_other_ranks(
    server: RunningServer, limits: dict[str, Any], ranks: int
) -> None:
    """Stopped alone, it goes on as several ranks of another seed, and in the epoch after."""
    plan = planned(opened(server), seed=3, **limits)
    loader = loaded(plan)
    epochs = [expected(plan, epoch) for epoch in range(2)]
    batches, states = iter(loader), [through_json(loader.state_dict())]
    for _ in batches:
        states.append(through_json(loader.state_dict()))
    data_set = opened(server)
    for step, state in enumerate(states):
        plans = ranked(data_set, ranks, seed=step, **limits)
        loaders = [loaded(each) for each in plans]
        for each in loaders:
            each.load_state_dict(state)
        begun, epoch = (step, 0) if step < len(epochs[0]) else (0, 1)
        rest, found = epochs[epoch][begun:], dealt([list(each) for each in loaders])
        assert found[: len(rest)] == rest
        assert found[len(rest) :] == epochs[epoch][: len(found) - len(rest)]
        if step % 5 == 0 and not epoch:
            assert dealt([list(each) for each in loaders])[: len(epochs[1])] == epochs[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_have_the_same_state(data_set: BrandDataset, ranks: int) -> None:
    """At every batch; and one process goes on from it."""
    plans = ranked(data_set, ranks, batch_size=4)
    loaders = [loaded(plan) for plan in plans]
    wanted = expected(plans[0], 0)
    for step, _ in enumerate(zip(*loaders, strict=True), 1):
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        if step % 3 == 1 and step * ranks < len(wanted):
            alone = loaded(LengthBatchSampler(data_set, "count", batch_size=4))
            alone.load_state_dict(states[0])
            assert list(alone) == wanted[step * ranks :]


def test_a_plain_loader_says_how_many_batches_were_trained(data_set: BrandDataset) -> None:
    """With workers the plan runs ahead, so the loop says it."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    loader = DataLoader(data_set, batch_sampler=plan, num_workers=0)
    assert plan.state_dict()["batch"] == 0
    assert len(list(loader)) == len(plan)
    for trained in (0, 1, len(plan) - 1):
        state = plan.state_dict(batches=trained)
        assert (state["epoch"], state["batch"]) == (0, trained)
        other = LengthBatchSampler(data_set, "count", batch_size=4)
        other.load_state_dict(state)
        rest = [indices_of([batch]) for batch in DataLoader(data_set, batch_sampler=other)]
        assert rest == expected(plan, 0)[trained:]
    after = plan.state_dict()
    assert (after["epoch"], after["batch"]) == (1, 0)
    with pytest.raises(UsageError, match="this rank has"):
        plan.state_dict(batches=len(plan) + 1)


def test_torchdata_goes_on_from_its_own_state(data_set: BrandDataset) -> None:
    """A `StatefulDataLoader` keeps the state of the plan's iteration."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    loader = stateful_loader(data_set, batch_sampler=plan, num_workers=0)
    wanted, batches = expected(plan, 0), iter(loader)
    first = [indices_of([next(batches)]) for _ in range(5)]
    assert first == wanted[:5]
    state = loader.state_dict()
    again = stateful_loader(data_set, batch_sampler=LengthBatchSampler(data_set, "count", batch_size=4), num_workers=0)
    again.load_state_dict(state)
    assert [indices_of([batch]) for batch in again] == wanted[5:]


def test_a_window_that_memory_chose_is_part_of_the_state(server: RunningServer) -> None:
    """A run with other memory goes on with the same batches."""
    data_set = opened(server)
    plan = LengthBatchSampler(data_set, "count", batch_size=4, window=16)
    state = plan._sequence.state_at(0, 3)
    other = LengthBatchSampler(data_set, "count", batch_size=4)
    assert other.limits.window != 16
    other.load_state_dict(state)
    assert list(loaded(other)) == expected(plan, 0)[3:]


def test_epochs_are_set_and_not_gone_back_to(data_set: BrandDataset, caplog: pytest.LogCaptureFixture) -> None:
    """As with a `BrandSampler`."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    loader = loaded(plan)
    loader.set_epoch(5)
    assert list(loader) == expected(plan, 5)
    assert list(loader) == expected(plan, 6)
    loader.load_state_dict(plan._sequence.state_at(3, 2))
    with pytest.raises(UsageError, match=r"set_epoch\(2\) would go back"):
        loader.set_epoch(2)
    loader.set_epoch(3)
    assert list(loader) == expected(plan, 3)[2:]
    loader.load_state_dict(plan._sequence.state_at(3, 2))
    with caplog.at_level(logging.WARNING, "brand"):
        loader.set_epoch(4)
    assert "leaves out the last 21 batches of epoch 3" in caplog.text
    batches = iter(loader)
    next(batches)
    loader.set_epoch(7)
    with pytest.raises(UsageError, match="while an iteration of epoch 4 was under way"):
        list(batches)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": "0"}, "epoch='0'"),
        ({"batch": 10**6}, "batch 1,000,000 of 23"),
        ({"batch": True}, "batch=True"),
        ({"limits": None}, "no state of a LengthBatchSampler"),
        ({"limits": {"window": 16}}, "no state of a LengthBatchSampler"),
        ({"order": {}}, "no state of a LengthBatchSampler"),
        ({"order": 3}, "no state of a LengthBatchSampler"),
    ],
)
def test_a_state_is_distrusted(data_set: BrandDataset, change: State, why: str) -> None:
    """A message says what is wrong."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    with pytest.raises(UsageError, match=why):
        plan.load_state_dict(plan._sequence.state_at(0, 2) | change)
    with pytest.raises(UsageError, match="no state of a LengthBatchSampler"):
        plan.load_state_dict({})
    with pytest.raises(UsageError, match="no state of a LengthBatchSampler"):
        plan.load_state_dict(BrandSampler(data_set).state_dict())


def test_another_plan_goes_on_between_epochs_only(data_set: BrandDataset) -> None:
    """Inside an epoch the same limits, lengths and part are needed."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4)
    others: dict[str, Plan] = {
        "batch_size=5": LengthBatchSampler(data_set, "count", batch_size=5),
        "tokens_per_row=12": PackedBatchSampler(data_set, "count", tokens_per_row=12, rows_per_batch=3),
        "lengths=": LengthBatchSampler(data_set, "seconds", batch_size=4),
    }
    for why, other in others.items():
        with pytest.raises(UsageError, match=rf"(?s)batch_size=4.*{why}"):
            other.load_state_dict(plan._sequence.state_at(0, 2))
        other.load_state_dict(plan._sequence.state_at(1, 0))
        assert list(loaded(other)) == expected(other, 1)
    subset = LengthBatchSampler(data_set, "count", batch_size=4, subset=np.arange(50))
    with pytest.raises(UsageError, match="give the same subset="):
        subset.load_state_dict(plan._sequence.state_at(0, 2))


# -- packed rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [None, ("index", "tokens"), ("tokens",)])
def test_rows_hold_whole_documents(server: RunningServer, fields: tuple[str, ...] | None) -> None:
    """Tokens, positions, documents and labels, each of them as the documents say."""
    data_set = opened(server, fields=fields)
    plan = PackedBatchSampler(data_set, "count", tokens_per_row=12, rows_per_batch=3)
    counts = data_set.column("count")
    seen = list[int]()
    for batch in BrandLoader(data_set, batch_sampler=plan, collate_fn=plan.collate("tokens", pad=-7)):
        ids, positions, of, labels = (batch[n] for n in ("input_ids", "position_ids", "document_ids", "labels"))
        assert all(values.shape == (3, 12) and values.dtype == torch.int64 for values in (ids, positions, of, labels))
        assert ((of < 0) == (ids == -7)).all()
        assert (labels[of < 0] == -100).all()
        for number in range(int(of.max()) + 1):
            tokens, index = ids[of == number], int(ids[of == number][0]) // 100
            assert tokens.tolist() == list(range(100 * index, 100 * index + counts[index])), "whole, in order"
            rows = (of == number).any(1).nonzero().ravel()
            assert len(rows) == -(-counts[index] // 12), "in no more rows than needed"
            for row in rows:
                piece = of[row] == number
                assert positions[row][piece].tolist() == list(range(int(piece.sum())))
                assert labels[row][piece].tolist() == [-100, *ids[row][piece][1:].tolist()]
            seen.append(index)
        if fields != ("tokens",):
            assert batch["index"].tolist() == seen[-len(batch["index"]) :]
    assert sorted(seen) == list(range(COUNT))


def test_collate_goes_through_a_pickle(data_set: BrandDataset, server: RunningServer) -> None:
    """To workers that are spawned."""
    plan = PackedBatchSampler(opened(server, fields=("tokens",)), "count", tokens_per_row=12, rows_per_batch=3)
    collate = pickle.loads(pickle.dumps(plan.collate("tokens")))
    assert collate([(np.arange(5),)])["input_ids"].shape == (3, 12)
    assert repr(collate) == "PackedRows(field='tokens', row=12, rows=3)"


def test_documents_that_do_not_fit_are_refused(server: RunningServer) -> None:
    """Before an epoch where the lengths say so; else in the batch."""
    data_set = opened(server, fields=("tokens",))
    with pytest.raises(UsageError, match=r"sample \d+ has length 26, and a batch holds 24, and \d+ other samples"):
        PackedBatchSampler(data_set, "count", tokens_per_row=12, rows_per_batch=2)
    plan = PackedBatchSampler(data_set, np.ones(COUNT, np.int64), tokens_per_row=12, rows_per_batch=3)
    with pytest.raises(UsageError, match=r"fill \d+ rows of 12, and a batch has 3: the lengths"):
        list(BrandLoader(data_set, batch_sampler=plan, collate_fn=plan.collate("tokens")))
    with pytest.raises(SchemaError, match="no field 'count' to pack; samples have tokens"):
        plan.collate("count")
    with pytest.raises(UsageError, match="tokens are whole numbers"):
        plan.collate("tokens")([(np.array([0.5]),)])


# -- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "give the limit of a batch"),
        ({"tokens_per_row": 8, "rows_per_batch": None}, "rows_per_batch=None"),
        ({"tokens_per_row": 0, "rows_per_batch": 4}, "tokens_per_row=0: at least 1"),
        ({"batch_size": 0}, "batch_size=0: at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5: a whole number"),
        ({"batch_length": -3}, "batch_length=-3"),
        ({"batch_length": float("nan")}, "batch_length=nan"),
        ({"batch_length": 5}, "a batch holds 5"),
        ({"batch_size": 2, "window": 0}, "window=0"),
        ({"batch_size": 2, "length": "text"}, r"(?s)length='text'.*columns: count, seconds.*brand.pack"),
        ({"batch_size": 2, "length": "nothing"}, "length='nothing'"),
        ({"batch_size": 2, "length": np.ones(4)}, r"shape \(4,\); this data set has 90 samples"),
        ({"batch_size": 2, "length": np.array(["a"] * COUNT)}, "length= is a <U1 array"),
        ({"batch_size": 2, "length": np.full(COUNT, np.nan)}, "sample 0 has length nan, which is none"),
        ({"batch_size": 2, "length": np.full(COUNT, -1)}, "sample 0 has length -1, which is none"),
        ({"batch_size": 2, "length": np.full(COUNT, np.inf)}, "sample 0 has length inf"),
        ({"tokens_per_row": 40, "rows_per_batch": 1, "length": "seconds"}, "as whole numbers"),
        ({"tokens_per_row": 40, "rows_per_batch": 1, "length": None}, "length= is the number of tokens"),
        ({"batch_size": 2, "rank": 3, "num_replicas": 2}, "rank 3 of 2"),
    ],
)
def test_what_is_wrong_is_said(data_set: BrandDataset, arguments: dict[str, Any], why: str) -> None:
    """Each message names the argument or the sample."""
    with pytest.raises(UsageError, match=why):
        list(planned(data_set, **arguments))


def test_loaders_say_what_does_not_go_with_a_plan(data_set: BrandDataset, server: RunningServer) -> None:
    """Sizes, samplers, other data sets, and a plan in the place of a sampler."""
    plan: Any = LengthBatchSampler(data_set, "count", batch_size=4)
    with pytest.raises(UsageError, match="leave out batch_size="):
        BrandLoader(data_set, 8, batch_sampler=plan)
    with pytest.raises(UsageError, match="leave out batch_size="):
        BrandLoader(data_set, batch_sampler=plan, drop_last=True)
    with pytest.raises(UsageError, match="give it as batch_sampler="):
        BrandLoader(data_set, sampler=plan)
    with pytest.raises(UsageError, match="another BrandDataset object"):
        BrandLoader(opened(server), batch_sampler=plan)
    with pytest.raises(UsageError, match="takes a LengthBatchSampler or a PackedBatchSampler"):
        BrandLoader(data_set, batch_sampler=[[1], [2]])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not from a list"):
        LengthBatchSampler([1, 2], batch_size=4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the order is decided while jobs fetch"):
        LengthBatchSampler(opened(server, order="shared"), "count", batch_size=4)


def test_reprs_tell_the_state(data_set: BrandDataset) -> None:
    """Before and in an iteration."""
    plan = LengthBatchSampler(data_set, "count", batch_size=4, window=20)
    assert repr(plan).endswith("window=20, batch_size=4, seed=0, next epoch 0 from 0)")
    batches = iter(plan)
    assert repr(batches) == "PlannedBatches(epoch=None, yielded=0, count=0)"
    next(batches)
    assert repr(batches) == "PlannedBatches(epoch=0, yielded=1, count=23)"
    assert repr(plan).endswith(f"seed=0, {batches!r})")


PREPARES = """
import sys
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, RandomSampler
from brand import LengthBatchSampler, BrandDataset, BrandLoader, BrandError
from brand.frameworks.accelerate import prepare

def batches(): return LengthBatchSampler(data, "count", batch_size=4)

def prepares(loader): return list(accelerator.prepare(loader))

accelerator, data = Accelerator(cpu=True), BrandDataset(sys.argv[1], fields=("index",))
loader = BrandLoader(data, batch_sampler=batches())
for make in (
    lambda: prepares(loader),
    lambda: list(skip_first_batches(loader, 2)),
    lambda: prepares(DataLoader(data, batch_sampler=batches())),
    lambda: prepares(BrandLoader(data, 4, sampler=RandomSampler(data))),
    lambda: prepare(accelerator, BrandLoader(data, 4, sampler=RandomSampler(data))),
):
    try:
        make()
    except BrandError as error:
        print(error)

# As the messages advise.
loader = prepare(accelerator, BrandLoader(data, batch_sampler=batches()))
begun = iter(loader)
next(begun), next(begun)
state = loader.state_dict()
again = prepare(accelerator, BrandLoader(data, batch_sampler=batches()))
again.load_state_dict(state)
whole = [batch.tolist() for (batch,) in BrandLoader(data, batch_sampler=batches())]
print([batch.tolist() for (batch,) in again] == whole[2:], sorted(sum(whole, [])) == list(range(len(data))))
"""


@pytest.mark.slow
def test_accelerate_does_not_shard_the_batches_again(path: Path) -> None:
    """Each way to prepare a loader is refused, and the advice works."""
    pytest.importorskip("accelerate")
    done = subprocess.run(
        [sys.executable, "-c", PREPARES, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    theirs, skipped, plain, other, other_too, followed = done.stdout.splitlines()
    for refused in (theirs, skipped, plain):
        assert "brand.frameworks.accelerate.prepare(accelerator, loader) in place of" in refused
    assert "and of skip_first_batches" in skipped
    assert "a LengthBatchSampler gives each rank its own" in plain
    for refused in (other, other_too):
        assert "a loader with" in refused or "the loader with" in refused
        assert "sampler=BrandSampler(dataset)" in refused
    assert "accelerator.prepare(loader)" not in other_too
    assert followed == "True True"
    assert "AttributeError" not in done.stderr
