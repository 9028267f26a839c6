"""Batches that are planned over a mixture: its draws and no others, within the limits, wherever a run stops."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from brand import pack
from brand.collect import NamedSamples, append_data_set, delete
from brand.errors import UsageError
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.orders.order import Order
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import RunningServer, running_server
from brand.torch import (
    ArrayLoader,
    BrandDataset,
    BrandLoader,
    LengthBatchSampler,
    Mixture,
    PackedBatchSampler,
)
from tests.torch.support import MANY_WORKERS, TORCHDATA, stateful_loader
from tests.torch.training import two_ranks

pytestmark = [
    TORCHDATA,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SIZES, SAMPLES = (90, 20), 100
Came = tuple[int, int]
"""Member and index of a sample."""
Planned = LengthBatchSampler | PackedBatchSampler
LIMITS: dict[str, dict[str, Any]] = {
    "size": {"batch_size": 4, "window": 24},
    "length": {"batch_length": 60},
    "packed": {"tokens_per_row": 12, "rows_per_batch": 3},
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    """90 and 20 documents of 1 to 30 tokens. Document `i` of member `m` has tokens 10,000 m + 100 i, and so on."""
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    schema = {"tokens": "ndarray", "count": "int", "seconds": "float"}
    for member, size in enumerate(SIZES):
        samples = [
            {"tokens": 10_000 * member + 100 * i + np.arange(n, dtype=np.int32), "count": n, "seconds": n / 2}
            for i, n in enumerate(rng.integers(1, 31, size).tolist())
        ]
        pack(samples, folder / f"{member}.brand", schema, chunk_size=8, jobs=1)
    with running_server(folder / "0.brand", memory=0.6) as one, running_server(folder / "1.brand", memory=0.6) as other:
        yield [one, other]


def mixed(servers: list[RunningServer], weights: tuple[float, float] = (3, 2), **more: Any) -> Mixture:
    """A mixture of data sets that are opened anew."""
    members = [BrandDataset(server.path, server=server.address) for server in servers]
    return Mixture(dict(zip(members, weights, strict=True)), **{"seed": 3, "samples": SAMPLES} | more)


def planned(mixture: Mixture, length: Any = "count", **limits: Any) -> Planned:
    """Batches of the kind that the limits say."""
    kind: Any = PackedBatchSampler if "tokens_per_row" in limits else LengthBatchSampler
    found: Planned = kind(mixture, length, **limits)
    return found


def loaded(sampler: Planned) -> BrandLoader:
    return BrandLoader(sampler.dataset, batch_sampler=sampler, collate_fn=came)


def mixture_of(sampler: Planned) -> Mixture:
    assert isinstance(sampler.dataset, Mixture)
    return sampler.dataset


def came(samples: list[dict[str, Any]]) -> list[Came]:
    return [(sample["member"], sample["index"]) for sample in samples]


def drawn(sampler: Planned, epoch: int) -> list[Came]:
    """The samples at all positions of an epoch, one after another, out of the orders of the members."""
    order, found = sampler.order, []
    assert isinstance(order, MixedOrder)
    stored = [StoredDataSet(member.name) for member in mixture_of(sampler).members]
    for position in range(order.samples):
        draw = order.draws(epoch, np.array([position]))
        member = int(draw.member[0])
        own = order.orders[member]
        assert isinstance(own, Order)
        place = own.plan(int(draw.epoch[0])).sample_of[draw.position]
        found.append((member, int(stored[member].indices(place)[0])))
    return found


def expected(sampler: Planned, epoch: int) -> list[list[Came]]:
    """The batches of an epoch: those of the limits, over the lengths of what is drawn."""
    samples = drawn(sampler, epoch)
    counts = [member.column("count") for member in mixture_of(sampler).members]
    lengths = np.array([counts[member][index] for member, index in samples])
    batches = sampler.limits.batches(lengths, sampler.seed, epoch)
    starts = [0, *batches.ends.tolist()]
    return [[samples[at] for at in batches.positions[first:end]] for first, end in pairwise(starts)]


def dealt(parts: list[list[list[Came]]]) -> list[list[Came]]:
    """The batches of all ranks in the order of their numbers."""
    assert len({len(part) for part in parts}) == 1, "ranks have equally many batches"
    return [batch for turn in zip(*parts, strict=True) for batch in turn]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_batches_have_the_draws_of_the_mixture(servers: list[RunningServer], limits: dict[str, Any]) -> None:
    """In three epochs, in which the small member begins six of its own; each sample once before any comes twice."""
    sampler = planned(mixed(servers), **limits)
    loader, laps = loaded(sampler), list[int]()
    counts = [member.column("count") for member in mixture_of(sampler).members]
    for epoch in range(3):
        assert len(loader) == len(sampler._sequence.batches_of(epoch))
        batches, wanted = list(loader), expected(sampler, epoch)
        assert batches == wanted
        assert Counter(member for batch in batches for member, _ in batch) == {0: 60, 1: 40}
        laps += [index for member, index in drawn(sampler, epoch) if member == 1]
        for batch in batches:
            lengths = [counts[member][index] for member, index in batch]
            assert len(batch) <= limits.get("batch_size", SAMPLES)
            assert max(lengths) * len(lengths) <= limits.get("batch_length", 1000)
    assert all(sorted(laps[first : first + 20]) == list(range(20)) for first in range(0, 120, 20))


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_run_stops_at_every_batch_and_goes_on_with_other_ranks(
    servers: list[RunningServer], limits: dict[str, Any], ranks: int
) -> None:
    """Stopped in its second epoch, it goes on as ranks of a mixture with other weights, seed and length of epochs."""
    sampler = planned(mixed(servers), **limits)
    sampler.set_epoch(1)
    loader = loaded(sampler)
    epochs = {epoch: expected(sampler, epoch) for epoch in (1, 2)}
    states = [loader.state_dict()]
    for _ in loader:
        states.append(json.loads(json.dumps(loader.state_dict())))
    for step, state in enumerate(states):
        options = {**limits, "window": sampler.limits.window}
        samplers = [
            planned(mixed(servers, (1, 9), samples=7, seed=step), num_replicas=ranks, rank=rank, **options)
            for rank in range(ranks)
        ]
        loaders = [loaded(each) for each in samplers]
        for each in loaders:
            each.load_state_dict(state)
        begun, epoch = (step, 1) if step < len(epochs[1]) else (0, 2)
        rest, found = epochs[epoch][begun:], dealt([list(each) for each in loaders])
        assert found[: len(rest)] == rest
        assert found[len(rest) :] == epochs[epoch][: len(found) - len(rest)]
        if step % 5 == 0 and epoch == 1:
            assert dealt([list(each) for each in loaders])[: len(epochs[2])] == epochs[2]


@pytest.mark.slow
@MANY_WORKERS
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 3, "persistent_workers": True}])
def test_a_data_loader_makes_the_same_batches(servers: list[RunningServer], options: dict[str, Any]) -> None:
    """With any number of workers, each of which begins the epochs of members itself; and continues from a state."""
    sampler = planned(mixed(servers), **LIMITS["packed"])
    loader = DataLoader(sampler.dataset, batch_sampler=sampler, collate_fn=came, **options)
    for epoch in range(3):
        assert list(loader) == expected(sampler, epoch)
    sampler.set_epoch(4)
    batches = iter(loader)
    first = [next(batches) for _ in range(5)]
    again = planned(mixed(servers), **LIMITS["packed"])
    again.load_state_dict(sampler.state_dict(batches=5))
    assert first + list(DataLoader(again.dataset, batch_sampler=again, collate_fn=came)) == expected(sampler, 4)


def test_torchdata_goes_on_from_its_own_state(servers: list[RunningServer]) -> None:
    sampler, again = (planned(mixed(servers), **LIMITS["length"]) for _ in range(2))
    loader = stateful_loader(sampler.dataset, batch_sampler=sampler, collate_fn=came)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    other = stateful_loader(again.dataset, batch_sampler=again, collate_fn=came)
    other.load_state_dict(loader.state_dict())
    assert first + list(other) == expected(sampler, 0)


@pytest.mark.parametrize("fields", [None, ("tokens",), ("index", "tokens")])
def test_rows_hold_the_documents_of_both_members(servers: list[RunningServer], fields: tuple[str, ...] | None) -> None:
    """Samples that are dicts also say the member of each document."""
    members = [BrandDataset(server.path, server=server.address, fields=fields) for server in servers]
    sampler = PackedBatchSampler(Mixture(dict.fromkeys(members, 1)), "count", tokens_per_row=12, rows_per_batch=3)
    collate = sampler.collate("tokens")
    batches = list(BrandLoader(sampler.dataset, batch_sampler=sampler, collate_fn=collate))
    found = list[Came]()
    for batch in batches:
        ids, of = batch["input_ids"], batch["document_ids"]
        firsts = [int(ids[of == number][0]) for number in range(int(of.max()) + 1)]
        found += [divmod(first // 100, 100) for first in firsts]
        if fields is None:
            assert list(zip(batch["member"].tolist(), batch["index"].tolist(), strict=True)) == found[-len(firsts) :]
        assert ("member" in batch, "index" in batch) == (fields is None, fields != ("tokens",))
    assert found == [sample for batch in expected(sampler, 0) for sample in batch]
    sampler.set_epoch(0)
    arrays = ArrayLoader(sampler.dataset, batch_sampler=sampler, collate_fn=collate)
    assert [batch["input_ids"].tolist() for batch in arrays] == [batch["input_ids"].tolist() for batch in batches]


def test_weights_that_change_are_planned(servers: list[RunningServer]) -> None:
    """From a position inside an epoch that has not begun; and not inside one that has, as its batches are planned."""
    mixture = mixed(servers)
    one, other = mixture.members
    sampler = planned(mixture, **LIMITS["packed"])
    before = len(sampler), sampler.padding(0)
    mixture.set_weights({one: 1, other: 0}, epoch=0, position=50)
    assert (len(sampler), sampler.padding(0)) != before
    mixture.set_weights({one: 0, other: 1}, epoch=1)
    loader = loaded(sampler)
    batches = iter(loader)
    found = [next(batches)]
    with pytest.raises(UsageError, match=r"position 90 on, and samples up to epoch 1, position 0 are on their way"):
        mixture.set_weights({one: 1, other: 1}, epoch=0, position=90)
    state = loader.state_dict()
    found += batches
    assert found == expected(sampler, 0)
    assert Counter(member for batch in found for member, _ in batch) == {0: 80, 1: 20}
    assert list(loader) == expected(sampler, 1)
    assert {member for batch in expected(sampler, 1) for member, _ in batch} == {1}
    again = planned(mixed(servers), **LIMITS["packed"])
    again.load_state_dict(state)
    with pytest.raises(UsageError, match="are on their way"):
        mixture_of(again).set_weights(dict.fromkeys(mixture_of(again).members, 1), epoch=0, position=90)
    assert list(loaded(again)) == found[1:]


def test_hardly_a_sample_is_read_by_itself(tmp_path: Path) -> None:
    """Batches draw the rest of a member's epoch after its next one has begun: its server still holds it."""
    rng, members = np.random.default_rng(0), []
    with ExitStack() as stack:
        for member, size in enumerate((3000, 800)):
            samples = ({"count": n, "data": bytes(n)} for n in rng.integers(1, 400, size).tolist())
            path = tmp_path / f"{member}.brand"
            pack(samples, path, {"count": "int", "data": "bytes"}, chunk_size=16, jobs=1)
            server = stack.enter_context(running_server(path, memory=0.25))
            members.append(BrandDataset(path, fields=("count",), server=server.address))
        mixture = Mixture(dict.fromkeys(members, 1), samples=2000)
        loader = BrandLoader(mixture, batch_sampler=LengthBatchSampler(mixture, "count", batch_size=4))
        for _ in range(4):
            assert len(list(loader)) == 500
        for data in members:
            assert data.stats()["direct"] <= 0.01 * data.stats()["fetched"]


@pytest.mark.parametrize(
    ("weights", "later", "most"),
    [((3, 2), (3, 2), 25), ((1, 0), (1, 0), 45), ((9, 1), (9, 1), 50), ((9, 1), (3, 2), 25)],
)
def test_a_window_has_at_most_half_an_epoch_of_a_member(
    servers: list[RunningServer], weights: tuple[float, float], later: tuple[float, float], most: int
) -> None:
    """If all samples fit in memory, by all weights that were set. A member without weight does not count."""
    members = [BrandDataset(server.path, memory=1.0) for server in servers]
    mixture = Mixture(dict(zip(members, weights, strict=True)))
    mixture.set_weights(dict(zip(members, later, strict=True)), epoch=5)
    assert planned(mixture, batch_size=1).limits.window == most


def test_lengths_of_each_member(servers: list[RunningServer]) -> None:
    """A dict of fields and arrays; the seed is that of the mixture, unless the sampler has one."""
    mixture = mixed(servers)
    one, other = mixture.members
    by_field, by_dict = (
        planned(mixture, length, **LIMITS["packed"])
        for length in ("count", {other: other.column("count"), one: "count"})
    )
    assert expected(by_dict, 0) == list(loaded(by_dict)) == expected(by_field, 0)
    assert by_dict.seed == 3
    assert planned(mixture, seed=4, **LIMITS["packed"]).seed == 4
    assert len(list(loaded(planned(mixture, None, batch_size=10, window=50)))) == 10
    in_seconds = planned(mixture, {one: "seconds", other: "count"}, batch_length=60)
    assert len(list(loaded(in_seconds))) < len(list(loaded(planned(mixture, batch_length=60))))


def test_what_cannot_be_planned_is_refused(servers: list[RunningServer], tmp_path: Path) -> None:
    """With the member, and what to do instead."""
    mixture = mixed(servers)
    one, other = mixture.members
    for length in (one.column("count"), {one: "count"}, {one: "count", 1: "count"}):
        with pytest.raises(UsageError, match="a dict with a field or an array for each member"):
            planned(mixture, length, batch_size=4)
    with pytest.raises(UsageError, match="which is for the members of a Mixture"):
        LengthBatchSampler(one, {one: "count"}, batch_size=4)
    with pytest.raises(UsageError, match=r"sample \d+ of .*1.brand has length 99, and a batch holds 40: .*pack a data"):
        planned(mixture, {one: "count", other: np.where(np.arange(20) == 7, 99, 1)}, batch_length=40)
    with pytest.raises(UsageError, match=r"sample 3 of .*0.brand has length nan, which is none: leave it out: pack"):
        planned(mixture, {one: np.where(np.arange(90) == 3, np.nan, 1), other: "seconds"}, batch_size=4)
    with pytest.raises(UsageError, match="subset= is for a sampler of one BrandDataset"):
        planned(mixture, batch_size=4, subset=[1])
    with pytest.raises(UsageError, match="as whole numbers"):
        planned(mixture, {one: "count", other: "seconds"}, **LIMITS["packed"])
    pack([{"lists": ["a", "b"], "count": 1}], tmp_path / "lists.brand", {"lists": "list[str]", "count": "int"})
    lists = BrandDataset(tmp_path / "lists.brand", expand="lists", fields=("count",))
    with pytest.raises(UsageError, match="expand= makes several samples of each"):
        LengthBatchSampler(Mixture({lists: 1}), "count", batch_size=4)
    with pytest.raises(UsageError, match="order='shared'"):
        LengthBatchSampler(Mixture({BrandDataset(servers[0].path, order="shared"): 1}), "count", batch_size=4)


def test_states_of_data_sets_and_mixtures_differ(servers: list[RunningServer]) -> None:
    mixture = mixed(servers)
    of_both, of_one = planned(mixture, batch_size=4), LengthBatchSampler(mixture.members[0], "count", batch_size=4)
    with pytest.raises(UsageError, match="the state is of a Mixture, and this sampler fetches from a BrandDataset"):
        of_one.load_state_dict(of_both.state_dict())
    with pytest.raises(UsageError, match="the state is of a BrandDataset, and this sampler fetches from a Mixture"):
        of_both.load_state_dict(of_one.state_dict())
    state = of_both.state_dict()
    state["order"]["members"].reverse()
    with pytest.raises(UsageError, match="give the same members in the same order"):
        of_both.load_state_dict(state)
    state = of_both.state_dict() | {"batch": 3, "limits": {**of_both.limits.to_json(), "size": 5}}
    with pytest.raises(UsageError, match="go on with the same lengths and limits"):
        of_both.load_state_dict(state)


def test_deleted_samples_are_not_planned(servers: list[RunningServer], tmp_path: Path) -> None:
    """A collection is a member; a state knows which of its samples are deleted."""
    append_data_set(servers[0].path, tmp_path / "grown.brand")
    delete(tmp_path / "grown.brand", NamedSamples(indices=[3, 40, 41]))
    members = BrandDataset(tmp_path / "grown.brand", memory=1.0), BrandDataset(servers[1].path, memory=1.0)
    mixture = Mixture({members[0]: 2, members[1]: 1}, samples=174)
    sampler, again = (planned(mixture, **LIMITS["packed"]) for _ in range(2))
    loader = loaded(sampler)
    batches = iter(loader)
    found = [next(batches) for _ in range(4)]
    again.load_state_dict(loader.state_dict())
    found += loaded(again)
    assert found == expected(sampler, 0)
    lap = sorted(index for member, index in drawn(sampler, 0)[:130] if member == 0)[:87]
    assert lap == sorted(set(range(90)) - {3, 40, 41})


RANK = """
import json, sys
from brand import BrandDataset, BrandLoader, Mixture, PackedBatchSampler

def came(samples): return [(sample["member"], sample["index"]) for sample in samples]

members = [BrandDataset(path, memory=0.6) for path in sys.argv[1:3]]
mixture = Mixture(dict(zip(members, (3, 2))), seed=3, samples=100)
sampler = PackedBatchSampler(mixture, "count", tokens_per_row=12, rows_per_batch=3, window=50)
loader = BrandLoader(mixture, batch_sampler=sampler, collate_fn=came)
found = [list(loader)]
mixture.set_weights({members[0]: 1, members[1]: 4})
print(json.dumps([*found, list(loader), list(loader)]))
"""


@pytest.mark.slow
def test_ranks_of_a_job_share_the_batches(servers: list[RunningServer]) -> None:
    """Processes that torchrun starts, with weights that change after the first epoch."""
    paths = [server.path for server in servers]
    said = [json.loads(out) for _, out, _ in two_ranks(RANK, *paths)]
    mixture = mixed(servers)
    sampler = planned(mixture, window=50, **LIMITS["packed"])
    mixture.set_weights(dict(zip(mixture.members, (1, 4), strict=True)), epoch=1)
    for epoch in range(3):
        wanted = expected(sampler, epoch)
        found = dealt([[[(m, i) for m, i in batch] for batch in rank[epoch]] for rank in said])
        assert found == wanted + wanted[: len(wanted) % 2]
