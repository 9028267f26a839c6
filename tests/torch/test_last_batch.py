"""A state of any loader, taken anywhere: a run that goes on from it gets the epochs of the run without a stop.

After the last batch a state names the next epoch. torchdata's loaders resume the loop in which a state was taken, so
one that is taken inside it, on its last batch, leaves an empty iteration of that epoch first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, default_collate

import brand
from brand.errors import UsageError
from brand.testing.node import running_server
from brand.torch import (
    ArrayLoader,
    BrandDataset,
    BrandLoader,
    BrandSampler,
    LengthBatchSampler,
    Mixture,
    PackedBatchSampler,
)
from tests.torch.support import TORCHDATA, failure_of, indices_of, stateful_loader

pytestmark = TORCHDATA

COUNT, BATCH = 23, 4
OWN = {"DataLoader": DataLoader, "BrandLoader": BrandLoader, "ArrayLoader": ArrayLoader}
KINDS = [*OWN, "StatefulDataLoader", "nodes"]
Made = Callable[..., Any]
Epochs = list[list[list[int]]]
"""Samples by epoch and batch."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two data sets of 23 samples with lists of one to three elements."""
    folder = tmp_path_factory.mktemp("sets")
    for number in range(2):
        numbers = range(100 * number, 100 * number + COUNT)
        samples = [{"number": n, "parts": [1000 * n + at for at in range(1 + n % 3)]} for n in numbers]
        brand.pack(samples, folder / str(number), {"number": "int", "parts": "list[int]"}, chunk_size=4, jobs=1)
    return [folder / "0", folder / "1"]


@cache
def opened(path: Path, field: str = "number", **more: Any) -> BrandDataset:
    """Its samples are numbers, each another one."""
    return BrandDataset(path, fields=(field,), **({"server": "none"} | more))


def of_set(sets: list[Path], **more: Any) -> Any:
    """Of one data set."""
    return BrandSampler(opened(sets[0]), **more)


def of_plan(sets: list[Path], **more: Any) -> Any:
    """Batches of similar length."""
    return LengthBatchSampler(opened(sets[0]), [1 + n % 7 for n in range(COUNT)], batch_size=BATCH, **more)


def of_packed(sets: list[Path], **more: Any) -> Any:
    """Epochs may differ in their number of batches."""
    lengths = [1 + n % 7 for n in range(COUNT)]
    return PackedBatchSampler(opened(sets[0]), lengths, tokens_per_row=9, rows_per_batch=2, **more)


SAMPLERS: dict[str, Made] = {
    "a data set": of_set,
    "shuffle=False": lambda sets, **more: of_set(sets, shuffle=False, **more),
    "subset=": lambda sets, **more: of_set(sets, subset=range(1, 20), **more),
    "expand=": lambda sets, **more: BrandSampler(opened(sets[0], "parts", expand="parts"), **more),
    "Mixture": lambda sets, **more: BrandSampler(Mixture({opened(sets[0]): 2, opened(sets[1]): 1}), **more),
    "LengthBatchSampler": of_plan,
    "PackedBatchSampler": of_packed,
}


def made(kind: str, sampler: Any, *, drop_last: bool = False, **more: Any) -> Any:
    """A loader of this kind."""
    plans = isinstance(sampler, LengthBatchSampler | PackedBatchSampler)
    if kind == "nodes":
        nodes = pytest.importorskip("torchdata.nodes")
        node = nodes.SamplerWrapper(sampler)
        node = node if plans else nodes.Batcher(node, BATCH, drop_last=drop_last)
        collate = {"map_fn": lambda ints: default_collate(sampler.dataset.__getitems__(ints))}
        return nodes.Loader(nodes.ParallelMapper(node, **collate, **({"num_workers": 0} | more)))
    batches = {"batch_sampler": sampler} if plans else {"batch_size": BATCH, "sampler": sampler, "drop_last": drop_last}
    return OWN.get(kind, stateful_loader)(sampler.dataset, **batches, **more)


def state_of(loader: Any, sampler: Any, trained: int) -> Any:
    """Of the loader, or of its sampler if the loader has none."""
    if hasattr(loader, "state_dict"):
        return loader.state_dict()
    size = {"batch_size": BATCH} if isinstance(sampler, BrandSampler) else {}
    return sampler.state_dict(batches=trained, **size)


def stopped(loader: Any, sampler: Any, place: str, batches: int) -> Any:
    """The state of a run that is stopped in its first epoch, which has that many batches."""
    if place == "before":
        return state_of(loader, sampler, 0)
    trained = {"first": 1, "middle": batches // 2}.get(place, batches)
    if place in ("first", "middle", "last"):
        for number, _ in enumerate(loader, 1):
            if number == trained:
                return state_of(loader, sampler, trained)
    assert len(list(loader)) == batches
    if place == "announced":
        sampler.set_epoch(1)
        return loader.state_dict() if isinstance(loader, BrandLoader | ArrayLoader) else sampler.state_dict()
    return state_of(loader, sampler, batches)


def rest(kind: str, epochs: Epochs, place: str) -> list[list[int]]:
    """Return the samples of each loop after that: the slow obvious model."""
    trained = {"before": 0, "first": 1, "middle": len(epochs[0]) // 2}.get(place, len(epochs[0]))
    left = [*epochs[0][trained:]]
    resumes = left or (kind, place) == ("StatefulDataLoader", "last")
    return [flat(left)] * bool(resumes) + [flat(epoch) for epoch in epochs[1:]]


def flat(batches: list[list[int]]) -> list[int]:
    """All samples."""
    return list(chain.from_iterable(batches))


def epochs_of(loader: Any) -> Epochs:
    """Four epochs of a run without a stop, by batch."""
    return [[indices_of([batch]) for batch in loader] for _ in range(4)]


def reference(kind: str, make: Made, **more: Any) -> Epochs:
    """The epochs of a run without a stop."""
    return epochs_of(made(kind, make(seed=3), **more))


def resumed(kind: str, make: Made, place: str, epochs: Epochs, *, named: bool = False, **more: Any) -> list[list[int]]:
    """Stop there and go on, with a state that was loaded and saved once more in between: the samples of three loops."""
    sampler = make(seed=3)
    loader = made(kind, sampler, **more)
    state = stopped(loader, sampler, place, len(epochs[0]))
    for again in (False, True):
        sampler = make(seed=9)
        loader = made(kind, sampler, **more)
        loads = loader if hasattr(loader, "state_dict") and place != "announced" else sampler
        loads.load_state_dict(state)
        if not again:
            state = loads.state_dict()
    found = []
    for number in range(3):
        if named:
            sampler.set_epoch(number + len(epochs) - len(rest(kind, epochs, place)))
        found.append(indices_of(loader))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_taken_anywhere(sets: list[Path], kind: str, name: str) -> None:
    """Alone and as one of two ranks, in loops that name their epochs and in loops that do not."""
    for ranks, drop_last in ((1, True), (2, False)):
        named = ranks == 2 and kind != "nodes"  # torchdata.nodes names its epochs
        makes = [partial(SAMPLERS[name], sets, num_replicas=ranks, rank=n, drop_last=drop_last) for n in range(ranks)]
        whole = [reference(kind, make, drop_last=drop_last) for make in makes]
        for place in ("before", "first", "middle", "last", "end", "announced"):
            if place == "announced" and kind in ("StatefulDataLoader", "nodes"):
                continue
            found, expected = [], []
            for make, epochs in zip(makes, whole, strict=True):
                found.append(resumed(kind, make, place, epochs, drop_last=drop_last, named=named))
                expected.append(rest(kind, epochs, place)[:3])
            if ranks == 2 and name in ("expand=", "Mixture") and place in ("first", "middle"):
                # From there on, the ranks divide the same samples of each epoch in another way.
                assert together(found) == together(expected), (ranks, place)
            else:
                assert found == expected, (ranks, place)


def together(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The samples of all ranks in each loop."""
    return [sorted(chain.from_iterable(loops)) for loops in zip(*ranks, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("DataLoader", {"num_workers": 2}),
        ("StatefulDataLoader", {"num_workers": 2}),
        ("StatefulDataLoader", {"num_workers": 1, "persistent_workers": True}),
        ("StatefulDataLoader", {"num_workers": 1, "snapshot_every_n_steps": 4}),
        ("nodes", {"num_workers": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["a data set", "LengthBatchSampler"])
def test_a_state_with_workers(sets: list[Path], kind: str, options: dict[str, Any], name: str) -> None:
    """Which have asked for more than was trained."""
    for place, drop_last in (("middle", False), ("last", True), ("end", False)):
        make = partial(SAMPLERS[name], sets)
        epochs = reference(kind, make, drop_last=drop_last, **options)
        found = resumed(kind, make, place, epochs, drop_last=drop_last, **options)
        assert found == rest(kind, epochs, place)[:3], place


@pytest.mark.parametrize("kind", ["BrandLoader", "ArrayLoader", "StatefulDataLoader"])
@pytest.mark.parametrize("name", ["a data set", "LengthBatchSampler"])
def test_a_state_of_an_iteration_that_has_not_begun(sets: list[Path], kind: str, name: str) -> None:
    """The epoch before was left early; the iteration would be the next epoch."""
    expected = epochs_of(made(kind, SAMPLERS[name](sets)))
    loader = made(kind, SAMPLERS[name](sets))
    next(iter(loader))
    iterator = iter(loader)
    again = made(kind, SAMPLERS[name](sets))
    again.load_state_dict(loader.state_dict())
    assert indices_of(again) == indices_of(iterator) == flat(expected[1])


def test_an_epoch_that_a_batch_sampler_ends(sets: list[Path]) -> None:
    """`drop_last` of a `BatchSampler` that the user has made."""
    sampler = of_set(sets)
    assert len(list(DataLoader(sampler.dataset, batch_sampler=BatchSampler(sampler, BATCH, drop_last=True)))) == 5
    states = [sampler.state_dict(batches=trained, batch_size=BATCH) for trained in (4, 5)]
    assert [(state["epoch"], state["position"]) for state in states] == [(0, 16), (1, 0)]


def test_an_iteration_with_nothing_left_is_in_the_log(sets: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """It is no silent end."""
    loader = made("StatefulDataLoader", of_set(sets))
    again = made("StatefulDataLoader", of_set(sets))
    again.load_state_dict(stopped(loader, None, "last", 6))
    assert list(again) == []
    assert "taken after the last batch of epoch 0: this iteration is empty, and the next one is epoch 1" in caplog.text


def test_an_epoch_that_was_named_before_torchdata_loads(sets: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """torchdata loads a state when the loop begins, after `set_epoch`; it is as if `set_epoch` came after it."""
    stopping = made("StatefulDataLoader", of_set(sets))
    epochs = epochs_of(made("StatefulDataLoader", of_set(sets)))
    next(iter(stopping))
    stopping.sampler.set_epoch(1)
    states = {place: stopped(stopping, None, place, 6) for place in ("middle", "last", "end")}  # of epochs 1, 2 and 3
    for (place, state), named in product(states.items(), range(5)):
        epoch = {"middle": 1, "last": 2, "end": 3}[place]
        loader = made("StatefulDataLoader", of_set(sets))
        loader.load_state_dict(state)
        loader.sampler.set_epoch(named)
        if named < epoch + (place == "end"):
            with pytest.raises(UsageError, match=rf"set_epoch\({named}\) would go back"):
                iter(loader)
        elif named < 4:
            left = {"middle": epochs[1][3:], "last": []}.get(place, []) if named == epoch else epochs[named]
            assert indices_of(loader) == flat(left)
    assert "set_epoch(2) leaves out the last 11 samples of epoch 1" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a data set", "LengthBatchSampler"])
def test_batches_in_any_order(sets: list[Path], name: str) -> None:
    """`in_order=False`: whole epochs of a `DataLoader`; no state inside one, and no `StatefulDataLoader`."""
    options: dict[str, Any] = {"num_workers": 2, "in_order": False}
    refused = failure_of(made("StatefulDataLoader", SAMPLERS[name](sets), **options))
    assert isinstance(refused, UsageError)
    assert "leave out in_order=False. For whole epochs, a DataLoader may have it" in str(refused)
    epochs = epochs_of(made("StatefulDataLoader", SAMPLERS[name](sets), num_workers=2))  # the cure
    sampler = SAMPLERS[name](sets)
    loader = made("DataLoader", sampler, **options)
    assert sorted(indices_of(loader)) == sorted(flat(epochs[0]))
    with pytest.raises(UsageError, match=r"leave out in_order=False, or save states at the end of an epoch"):
        state_of(loader, sampler, 3)
    again = SAMPLERS[name](sets)
    again.load_state_dict(state_of(loader, sampler, len(epochs[0])))
    assert indices_of(made("DataLoader", again)) == flat(epochs[1])
    alone = made("StatefulDataLoader", SAMPLERS[name](sets), in_order=False)  # without workers, nothing is reordered
    assert indices_of(alone) == flat(epochs[0])


@pytest.fixture
def address(sets: list[Path]) -> Iterator[str]:
    """A server, which jobs share."""
    with running_server(sets[0], memory=0.7) as server:
        yield server.address


@pytest.mark.parametrize("place", ["last", "end"])
@pytest.mark.parametrize("kind", ["BrandLoader", "StatefulDataLoader"])
def test_a_state_of_a_job_among_several(sets: list[Path], address: str, kind: str, place: str) -> None:
    """`order="shared"`: each epoch has each sample once, whatever its order."""

    def sampler() -> BrandSampler:
        return BrandSampler(opened(sets[0], server=address, order="shared", job="one"))

    state = stopped(loader := made(kind, sampler()), None, place, 6)
    del loader
    again = made(kind, sampler())
    again.load_state_dict(state)
    empty = int((kind, place) == ("StatefulDataLoader", "last"))
    assert [len(set(indices_of(again))) for _ in range(3)] == [0] * empty + [COUNT] * (3 - empty)
