"""Several data sets drawn as one: the right samples in exact shares, wherever a run stops and however it goes on."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from brand import Mixture as lazily_found
from brand import pack
from brand.errors import SchemaError, UsageError
from brand.orders.mixtures.mixed_order import MixedOrder
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch import BrandDataset, BrandLoader, BrandSampler, Mixture
from tests import places
from tests.torch.support import MANY_WORKERS, Openings, make_samples, make_set
from tests.torch.training import two_ranks

pytestmark = places.EVERYWHERE

Came = tuple[int, int]
"""Member and index of a sample."""
SAMPLES = 100


@pytest.fixture
def sets(small: Path, smaller: Path) -> list[Path]:
    """75 samples and 30."""
    return [small, smaller]


@pytest.fixture
def mixture(sets: list[Path], opened: Openings) -> Mixture:
    """Three of the first for two of the second, 100 samples an epoch."""
    return mixed(sets, opened, [3, 2])


def mixed(sets: list[Path], opened: Openings, weights: Iterable[float], **more: Any) -> Mixture:
    """A mixture whose samples are dicts."""
    members = [opened(path, fields=None, memory=0.5) for path in sets]
    return Mixture(dict(zip(members, weights, strict=True)), **{"seed": 3, "samples": SAMPLES} | more)


def came(batches: Iterable[Mapping[str, Any]]) -> list[Came]:
    """What batches hold."""
    return [
        pair
        for b in batches
        for pair in zip(np.asarray(b["member"]).tolist(), np.asarray(b["index"]).tolist(), strict=True)
    ]


def planned(sets: list[Path], order: MixedOrder, epochs: Iterable[int]) -> list[Came]:
    """What the order says, without a server."""
    found = []
    for epoch in epochs:
        drawn = order.draws(epoch, np.arange(order.samples))
        for member, of, position in zip(
            drawn.member.tolist(), drawn.epoch.tolist(), drawn.position.tolist(), strict=True
        ):
            place = order.orders[member].plan(of).sample_of[position]
            found.append((member, int(StoredDataSet(sets[member]).indices(np.array([place]))[0])))
    return found


def loaders(mixture: Mixture, batch: int) -> dict[str, tuple[BrandSampler, Any]]:
    """Every way to iterate over a mixture."""
    samplers = [BrandSampler(mixture, seed=seed) for seed in range(4)]
    return {
        "BrandLoader": (samplers[0], BrandLoader(mixture, batch, sampler=samplers[0])),
        "alone": (samplers[1], DataLoader(mixture, batch, sampler=samplers[1])),
        "workers": (samplers[2], DataLoader(mixture, batch, sampler=samplers[2], num_workers=2)),
        "kept workers": (
            samplers[3],
            DataLoader(mixture, batch, sampler=samplers[3], num_workers=2, persistent_workers=True),
        ),
    }


@pytest.mark.slow
@MANY_WORKERS
@pytest.mark.parametrize("way", ["BrandLoader", "alone", "workers", "kept workers"])
def test_every_loader_draws_what_the_order_says(sets: list[Path], mixture: Mixture, way: str) -> None:
    """Two epochs of the mixture, in which the smaller set begins anew several times; the shares of each batch."""
    sampler, loader = loaders(mixture, 10)[way]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        batches = list(loader)
        assert came(batches) == planned(sets, sampler.order, [epoch])
        assert [Counter(batch["member"].tolist()) for batch in batches] == [{0: 6, 1: 4}] * 10


@pytest.mark.slow
def test_samples_are_those_of_the_members(sets: list[Path], mixture: Mixture) -> None:
    """Bytes and all."""
    whole = [
        {s["index"]: s for s in map(BrandDataset(path).__getitem__, range(len(StoredDataSet(path))))} for path in sets
    ]
    for batch in BrandLoader(mixture, 7):
        for n, (member, index) in enumerate(came([batch])):
            sample = {name: batch[name][n] for name in batch}
            expected = whole[member][index] | {"member": member}
            assert {name: v.item() if isinstance(v, torch.Tensor) else v for name, v in sample.items()} == expected
    plain = list(BrandSampler(mixture))
    assert [s["index"] for s in mixture.__getitems__(plain)] == [index for _, index in came(BrandLoader(mixture, 100))]


@pytest.mark.slow
def test_a_set_that_is_exhausted_goes_on(sets: list[Path], opened: Openings) -> None:
    """Each of its samples comes once before any comes twice, also where a batch holds several of its epochs."""
    mixture = mixed(sets, opened, [1, 9], samples=200)
    loader = BrandLoader(mixture, 200)
    found = list(chain.from_iterable(came(loader) for _ in range(2)))
    for member, size in ((0, 75), (1, 30)):
        indices = [index for of, index in found if of == member]
        for first in range(0, len(indices), size):
            assert len(set(indices[first : first + size])) == len(indices[first : first + size])
    assert Counter(member for member, _ in found) == {0: 40, 1: 360}


@pytest.mark.slow
def test_a_run_goes_on_from_any_position_on_any_number_of_ranks(mixture: Mixture) -> None:
    """Every position of an epoch: ranks of other numbers together draw the rest, none of it twice."""
    whole = list(BrandSampler(mixture))
    for stop in range(SAMPLES):
        state = json.loads(json.dumps(BrandSampler(mixture)._sequence.state_at(0, stop)))
        replicas = 1 + stop % 5
        ranks = []
        for rank in range(replicas):
            sampler = BrandSampler(mixture, seed=99, num_replicas=replicas, rank=rank)
            sampler.load_state_dict(state)
            ranks.append(list(sampler))
        rounds = [ticket for number in zip(*ranks, strict=True) for ticket in number]
        assert set(whole[stop:]) <= set(rounds)
        full = (SAMPLES - stop) // replicas * replicas
        assert sorted(rounds[:full]) == sorted(whole[stop : stop + full])
        assert len(rounds) - full in (0, replicas)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "batch", "replicas"), [(1, 10, 2), (7, 9, 1), (4, 33, 3)])
def test_samples_after_a_stop(sets: list[Path], opened: Openings, steps: int, batch: int, replicas: int) -> None:
    """A new mixture, other ranks and batches of another size: with what came before, a run without a stop."""
    loader = BrandLoader(mixed(sets, opened, [3, 2]), 10)
    first = came(islice(loader, steps))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == steps * 10
    ranks = []
    for rank in range(replicas):
        sampler = BrandSampler(mixed(sets, opened, [1, 1], samples=7), num_replicas=replicas, rank=rank, drop_last=True)
        sampler.load_state_dict(state)
        ranks.append(came(BrandLoader(sampler.dataset, batch, sampler=sampler)))
    rest = list(chain.from_iterable(zip(*ranks, strict=True)))
    whole = planned(sets, loader.sampler.order, [0])
    assert first == whole[: steps * 10]
    assert Counter(rest) == Counter(whole[steps * 10 :][: len(rest)])
    assert SAMPLES - steps * 10 - len(rest) < replicas


@pytest.mark.slow
@MANY_WORKERS
def test_a_state_of_a_data_loader_names_what_was_trained(sets: list[Path], mixture: Mixture) -> None:
    """Workers run ahead of training."""
    sampler = BrandSampler(mixture)
    found = came(islice(DataLoader(mixture, 10, sampler=sampler, num_workers=2), 3))
    state = sampler.state_dict(batches=3, batch_size=10)
    again = BrandSampler(mixture, seed=8)
    again.load_state_dict(state)
    found += came(DataLoader(mixture, 10, sampler=again, num_workers=2))
    assert found == planned(sets, sampler.order, [0])


@pytest.mark.slow
def test_weights_change_at_a_position_and_are_part_of_the_state(
    sets: list[Path], mixture: Mixture, opened: Openings
) -> None:
    """Said beforehand, and again after a restart; batches before the position are as they were."""
    one, other = mixture.members
    sampler = BrandSampler(mixture)
    mixture.set_weights({one: 1, other: 1}, epoch=0, position=50)
    mixture.set_weights({other: 1, one: 0}, epoch=1, position=0)
    loader = BrandLoader(mixture, 10, sampler=sampler, prefetch_batches=2)
    found = list(islice(loader, 7))
    assert [Counter(batch["member"].tolist()) for batch in found] == [{0: 6, 1: 4}] * 5 + [{0: 5, 1: 5}] * 2
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["order"]["weights"] == [[0, [3.0, 2.0]], [50, [1.0, 1.0]], [100, [0.0, 1.0]]]
    later = mixed(sets, opened, [1, 1])
    again = BrandSampler(later, seed=17)
    again.load_state_dict(state)
    later.set_weights(dict.fromkeys(later.members, 1), epoch=0, position=50)
    assert again.state_dict() == state
    rest = BrandLoader(later, 10, sampler=again)
    found += rest
    assert came(found) == planned(sets, sampler.order, [0])
    assert came(rest) == planned(sets, sampler.order, [1])
    assert {member for member, _ in planned(sets, sampler.order, [1])} == {1}


@pytest.mark.slow
def test_weights_from_a_position_that_is_on_its_way_are_refused(mixture: Mixture) -> None:
    """The message says from where on they can count. Nothing changes, not even for a sampler that could take them."""
    one, other = mixture.members
    sampler, beside = BrandSampler(mixture), BrandSampler(mixture)
    mixture.set_weights({one: 5, other: 1}, epoch=0, position=0)
    tickets = iter(sampler)
    next(tickets)
    with pytest.raises(UsageError, match=r"position 40 on, and samples up to epoch 1, position 0 are on their way"):
        mixture.set_weights({one: 1, other: 1}, epoch=0, position=40)
    assert sampler.state_dict()["order"]["weights"] == beside.state_dict()["order"]["weights"] == [[0, [5.0, 1.0]]]
    mixture.set_weights({one: 5, other: 1}, epoch=0, position=0)  # as it is
    mixture.set_weights({one: 1, other: 1}, epoch=1)
    for wrong, why in (
        ({one: 1}, "a number for each member"),
        ({one: 1, other: -1}, "weight -1"),
        ({one: 0, other: 0}, "all weights are 0"),
    ):
        with pytest.raises(UsageError, match=why):
            mixture.set_weights(wrong, epoch=1)
    with pytest.raises(UsageError, match="from 0 to 99"):
        mixture.set_weights({one: 1, other: 1}, epoch=1, position=100)
    with pytest.raises(UsageError, match="position=10 of which epoch"):
        mixture.set_weights({one: 1, other: 1}, position=10)


def weights_of(sampler: BrandSampler) -> Any:
    return sampler.state_dict()["order"]["weights"]


def test_all_samplers_follow_the_mixture(sets: list[Path], mixture: Mixture, opened: Openings) -> None:
    """Each from its own next epoch on, if no epoch is named: those that have begun, that will, and that come later."""
    one, other = mixture.members
    begun, before, at_a_state = BrandSampler(mixture), BrandSampler(mixture), BrandSampler(mixture)
    loader = BrandLoader(mixture, 10, sampler=begun)
    found = came(islice(loader, 3))
    state = loader.state_dict()
    at_a_state.load_state_dict({**state, "epoch": 2})
    mixture.set_weights({one: 1, other: 1})
    assert weights_of(begun) == [[0, [3.0, 2.0]], [100, [1.0, 1.0]]]
    assert weights_of(before) == weights_of(BrandSampler(mixture)) == [[0, [1.0, 1.0]]]
    assert weights_of(at_a_state) == [[0, [3.0, 2.0]], [300, [1.0, 1.0]]]
    begun.load_state_dict(state)
    assert weights_of(begun) == state["order"]["weights"] == [[0, [3.0, 2.0]]]
    mixture.set_weights({one: 0, other: 1})
    found += came(loader) + came(loader)
    assert found == planned(sets, begun.order, [0, 1])
    assert {member for member, _ in found[100:]} == {1}
    for copy in (pickle.loads(pickle.dumps(mixture)), mixture):
        assert weights_of(BrandSampler(copy)) == [[0, [0.0, 1.0]]]
    apart = Mixture({one: 3, other: 2}, samples=SAMPLES)
    assert weights_of(BrandSampler(apart)) == [[0, [3.0, 2.0]]]


def test_samplers_that_are_gone_refuse_no_weights(mixture: Mixture) -> None:
    """A sampler that the program has dropped, and the iteration of a sampler that has loaded an earlier state."""
    weights = dict.fromkeys(mixture.members, 1)
    list(BrandSampler(mixture))
    sampler = BrandSampler(mixture)
    state, tickets = sampler.state_dict(), iter(sampler)
    next(tickets)
    with pytest.raises(UsageError, match="on their way"):
        mixture.set_weights(weights, epoch=0, position=50)
    sampler.load_state_dict(state)
    mixture.set_weights(weights, epoch=0, position=50)
    assert weights_of(sampler) == [[0, [3.0, 2.0]], [50, [1.0, 1.0]]]


def test_weights_before_a_loaded_position_are_refused(sets: list[Path], mixture: Mixture) -> None:
    """They would change which samples come next."""
    sampler = BrandSampler(mixture)
    state = sampler.state_dict()
    sampler.load_state_dict({**state, "epoch": 2, "position": 40})
    with pytest.raises(UsageError, match="samples up to epoch 2, position 40 are on their way"):
        mixture.set_weights(dict.fromkeys(mixture.members, 1), epoch=2, position=30)
    mixture.set_weights(dict.fromkeys(mixture.members, 1), epoch=2, position=40)
    rest = came(BrandLoader(mixture, 10, sampler=sampler))
    assert rest == planned(sets, sampler.order, [2])[40:]
    assert Counter(member for member, _ in rest) == {0: 30, 1: 30}


@pytest.mark.slow
def test_a_member_that_gets_a_weight_later_is_drawn(sets: list[Path], opened: Openings) -> None:
    """Its server begins with its first draw."""
    mixture = mixed(sets, opened, [1, 0])
    sampler = BrandSampler(mixture)
    mixture.set_weights(dict(zip(mixture.members, [1, 1], strict=True)), epoch=0, position=60)
    assert came(BrandLoader(mixture, 20, sampler=sampler)) == planned(sets, sampler.order, [0])


@pytest.mark.slow
def test_short_epochs_go_on_where_the_one_before_ended(sets: list[Path], opened: Openings) -> None:
    """Epochs of ten samples: members go on in them, also into their own next epochs."""
    mixture = mixed(sets, opened, [3, 2], samples=10)
    loader = BrandLoader(mixture, 10)
    found = [came(loader) for _ in range(20)]
    assert list(chain(*found)) == planned(sets, loader.sampler.order, range(20))


@pytest.mark.slow
def test_stats_tell_shares_and_each_server(mixture: Mixture) -> None:
    """Nothing before the first draw."""
    loader = BrandLoader(mixture, 10)
    assert loader.stats()["server"] == {}
    list(loader)
    told = loader.stats()["server"]
    assert [said["share"] for said in told.values()] == [0.6, 0.4]
    assert [said["server"]["fetched"] for said in told.values()] == [60, 40]
    assert list(told) == [member.name for member in mixture.members]
    assert all(said["server"]["loops"] for said in told.values())


@pytest.mark.slow
@places.IN_A_FOLDER
def test_a_server_that_is_killed_is_replaced(sets: list[Path], mixture: Mixture) -> None:
    """Slower, never wrong."""
    loader = BrandLoader(mixture, 10, prefetch_batches=2)
    batches = iter(loader)
    found = [next(batches)]
    os.kill(next(iter(mixture.stats().values()))["server"]["process"], signal.SIGKILL)
    found += batches
    assert came(found) == planned(sets, loader.sampler.order, [0])


@pytest.mark.slow
def test_random_transforms_differ_between_uses_of_a_sample(sets: list[Path], opened: Openings) -> None:
    """A sample that comes twice in an epoch has other random numbers; a run that goes on has the same ones."""

    def noisy(sample: dict[str, Any]) -> tuple[int, int, float]:
        return sample["member"], sample["index"], torch.rand(()).item()

    members = [opened(path, fields=None, memory=0.5, transform=noisy) for path in sets]
    mixture = Mixture(dict(zip(members, [1, 9], strict=True)), samples=SAMPLES)
    runs = [list(BrandLoader(mixture, 10, num_workers=threads, collate_fn=list)) for threads in (1, 3)]
    assert runs[0] == runs[1]
    together = [sample for batch in runs[0] for sample in batch]
    assert len({noise for _, _, noise in together}) == len(together) > len({(m, i) for m, i, _ in together})
    loader = BrandLoader(mixture, 10, collate_fn=list)
    list(islice(loader, 4))
    again = BrandLoader(mixture, 20, collate_fn=list)
    again.load_state_dict(loader.state_dict())
    assert [sample for batch in again for sample in batch] == together[40:]


def test_samples_that_are_tuples_have_no_member(sets: list[Path], opened: Openings) -> None:
    """They are those fields that were asked for; each member has its transform."""
    members = [opened(sets[0], fields=("number",)), opened(sets[1], fields=("number",), transform=lambda t: (-t[0],))]
    mixture = Mixture(dict.fromkeys(members, 1), samples=20)
    numbers = [number.item() for (batch,) in BrandLoader(mixture, 4) for number in batch]
    members_of = BrandSampler(mixture).order.draws(0, np.arange(20)).member.tolist()
    assert all(number <= 0 if member else number >= 0 for number, member in zip(numbers, members_of, strict=True))
    plain = Mixture(dict.fromkeys([opened(path, fields=("number",)) for path in sets], 1), samples=20)
    assert [abs(number) for number in numbers] == [n.item() for (b,) in BrandLoader(plain, 4) for n in b]
    assert all(isinstance(sample, tuple) for sample in plain.__getitems__(list(BrandSampler(plain))))


def test_a_small_share_is_no_habit_of_single_draws(
    sets: list[Path], opened: Openings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members get requests of few samples, and the log does not blame the user."""
    monkeypatch.setattr("brand.torch.data.set_source.ENOUGH_SINGLE", 3)
    monkeypatch.setattr("brand.torch.data.set_source._said", bytearray(2))
    mixture = mixed(sets, opened, [9, 1])
    with caplog.at_level(logging.WARNING):
        list(DataLoader(mixture, 10, sampler=BrandSampler(mixture)))
    assert caplog.messages == []


def test_a_mixture_is_pickled(sets: list[Path], mixture: Mixture) -> None:
    """With its members; a copy draws what a sampler of the original yields."""
    tickets = list(BrandSampler(mixture))
    copy = pickle.loads(pickle.dumps(mixture))
    assert [(s["member"], s["index"]) for s in copy.__getitems__(tickets)] == planned(
        sets, BrandSampler(mixture).order, [0]
    )
    assert lazily_found is Mixture


@pytest.mark.slow
@places.IN_A_FOLDER
@pytest.mark.parametrize("same", [True, False])
def test_ranks_whose_weights_differ_are_refused(small: Path, smaller: Path, same: bool) -> None:
    """Real processes: each would draw its part of another sequence."""
    ended = two_ranks(RANKS, small, smaller, str(same))
    assert all(status == 0 for status, _, _ in ended) == same, ended
    if same:
        assert "shares [(6, 4)]" in ended[0][1]
    else:
        assert any("two ranks of one job disagree: the weights of a Mixture are" in errors for _, _, errors in ended)


RANKS = """
import sys
import torch
import torch.distributed as dist
from brand import BrandDataset, BrandLoader, BrandSampler, Mixture

dist.init_process_group("gloo")
one, other = (BrandDataset(path, memory=0.5) for path in sys.argv[1:3])
sampler = BrandSampler(Mixture({one: 3, other: 2}, samples=100))
different = sys.argv[3] == "False" and dist.get_rank() == 1
sampler.dataset.set_weights({one: 1 if different else 2, other: 1}, epoch=1)
shares = set()
for batch in BrandLoader(sampler.dataset, 5, sampler=sampler):
    counts = torch.bincount(batch["member"], minlength=2)
    dist.all_reduce(counts)
    shares.add(tuple(counts.tolist()))
if dist.get_rank() == 0:
    print("shares", sorted(shares))
dist.destroy_process_group()
"""

Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state.update(version=1), "of a BrandDataset, and this sampler fetches from a Mixture"),
        (lambda state: state.update(version=4), "a state of version 4"),
        (lambda state: state.update(shuffle=False), "of a BrandDataset"),
        (lambda state: state.update(position=101), "position 101 of 100"),
        (lambda state: state["order"].pop("weights"), "members, samples, seed and weights"),
        (lambda state: state["order"]["members"].reverse(), "same members in the same order"),
        (lambda state: state["order"]["members"].pop(), "another number of members"),
        (lambda state: state["order"]["members"][0].update(samples=74), "sizes are not those of its members"),
        (lambda state: state["order"]["members"][0].update(data_set="0" * 32), "of a mixture of data sets 0000"),
        (lambda state: state["order"].update(weights=[[0, [1, float("inf")]]]), "weight inf"),
    ],
)
def test_a_state_is_distrusted(mixture: Mixture, change: Change, why: str) -> None:
    """And the message says what is wrong."""
    state = BrandSampler(mixture).state_dict()
    change(state)
    with pytest.raises(UsageError, match=why):
        BrandSampler(mixture).load_state_dict(state)


def test_a_state_of_a_mixture_is_none_of_a_data_set(mixture: Mixture) -> None:
    """Nor the other way round."""
    state = BrandSampler(mixture).state_dict()
    with pytest.raises(UsageError, match="of a Mixture, and this sampler fetches from a BrandDataset"):
        BrandSampler(mixture.members[0]).load_state_dict(state)
    with pytest.raises(UsageError, match="of a BrandDataset, and this sampler fetches from a Mixture"):
        BrandSampler(mixture).load_state_dict(BrandSampler(mixture.members[0]).state_dict())


def test_what_a_mixture_cannot_do_is_refused(sets: list[Path], mixture: Mixture, opened: Openings) -> None:
    """With what to do instead."""
    for options, why in (
        ({"shuffle": False}, "shuffle=False is for a sampler of one BrandDataset"),
        ({"subset": [1, 2]}, "subset= is for a sampler of one BrandDataset"),
    ):
        with pytest.raises(UsageError, match=why):
            BrandSampler(mixture, **options)
    local = BrandSampler(mixture, locality=True, batch_size=4, num_replicas=2, rank=0)
    with pytest.raises(UsageError, match="locality= splits the batches of one BrandDataset"):
        list(local)
    for read in (lambda: mixture[0], lambda: list(DataLoader(mixture, sampler=RandomSampler(mixture)))):
        with pytest.raises(UsageError, match=r"no indices of its own.*BrandSampler\(mixture\)"):
            read()
    foreign = BrandSampler(opened(sets[0], memory=0.1), seed=5)
    with pytest.raises(UsageError, match="of another Mixture"):
        mixture.__getitems__(foreign._sequence.ints(0, np.arange(3)).tolist())
    with pytest.raises(UsageError, match=r"not from a list"):
        BrandSampler([1, 2])  # type: ignore[arg-type]
    sharing = Mixture({opened(sets[0], order="shared"): 1, opened(sets[1]): 1})
    with pytest.raises(UsageError, match=r"order='shared'.*give it order='stripes'"):
        BrandSampler(sharing)


def test_members_that_do_not_fit_are_refused(sets: list[Path], opened: Openings, tmp_path: Path) -> None:
    """When the mixture is made."""
    one, other = opened(sets[0]), opened(sets[1])
    for wrong, why in (
        ({}, "made of a dict"),
        ([one, other], "made of a dict"),
        ({one: 1, "other": 1}, "not of a str"),
        ({one: 1, other: float("nan")}, "weight nan"),
        ({one: 0, other: 0}, "all weights are 0"),
    ):
        with pytest.raises(UsageError, match=why):
            Mixture(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="samples=-1"):
        Mixture({one: 1}, samples=-1)
    with pytest.raises(SchemaError, match=r"fields=\('index', 'key'\).*fields=\('key',\)"):
        Mixture({one: 1, opened(sets[1], fields=("key",)): 1})
    different = make_set(tmp_path / "different.brand", make_samples(5, 10), 2)
    renamed = tmp_path / "renamed.brand"
    pack([{"member": 1, "key": "a"}], renamed, {"member": "int", "key": "str"})
    with pytest.raises(SchemaError, match=r"have the same fields.*fields=\(\.\.\.\)"):
        Mixture({opened(different, fields=None): 1, opened(renamed, fields=None): 1})
    with pytest.raises(SchemaError, match="have a field of that name"):
        Mixture({opened(renamed, fields=None): 1})


def test_a_transform_is_assigned_to_the_members(mixture: Mixture) -> None:
    """A mixture that took one would deliver samples without it."""
    with pytest.raises(UsageError, match="assign it to each member"):
        mixture.transform = len
    assert mixture.transform is None
    for member in mixture.members:
        member.transform = len
    assert mixture.transform == (len, len)
    assert next(iter(BrandLoader(mixture, 2))).shape == (2,)
