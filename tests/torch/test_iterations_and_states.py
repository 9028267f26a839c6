"""Which epoch and which position does an iteration begin at, whoever makes it, and what may a state say?"""

from __future__ import annotations

import gc
import io
import json
import logging
import mmap
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from brand import pack
from brand.errors import ServerError, UsageError
from brand.testing.node import random_address, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.data import set_source
from brand.torch.job.ranks import find_rank
from brand.torch.sampler.sampler import is_announced
from tests import places
from tests.torch.support import TORCHDATA, Openings, failure_of, indices_of, planned, stateful_loader

pytestmark = [places.EVERYWHERE, TORCHDATA]

BATCH = 7


def test_an_iterator_that_is_not_used_is_no_epoch(small: Path, opened: Openings) -> None:
    """DataLoader makes two iterators for each epoch where it has workers and does not gather batches."""
    sampler = BrandSampler(opened(small), shuffle=False)
    iter(sampler)
    assert len(list(sampler)) == 75
    assert sampler.state_dict()["epoch"] == 1  # epoch 0 has ended


def test_an_iterator_that_is_not_used_does_not_lose_the_place(small: Path, opened: Openings) -> None:
    """Nor does it undo a loaded state."""
    sampler = BrandSampler(opened(small), shuffle=False)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 3, "position": 40})
    iter(sampler)
    assert list(sampler) == list(range(40, 75))
    assert sampler.state_dict()["epoch"] == 4


def test_a_loaded_state_is_left_in_one_direction_only(
    small: Path, opened: Openings, caplog: pytest.LogCaptureFixture
) -> None:
    """Back is refused; a later epoch is begun, and the log says what is left out of the one of the state."""
    sampler = BrandSampler(opened(small), shuffle=False)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 3, "position": 40})
    with pytest.raises(UsageError, match=r"set_epoch\(2\) would go back: begin the loop over epochs with 3"):
        sampler.set_epoch(2)
    with caplog.at_level(logging.WARNING, "brand"):
        sampler.set_epoch(3)
        assert caplog.text == ""
        sampler.set_epoch(4)
    assert "set_epoch(4) leaves out the last 35 samples of epoch 3, inside which the loaded state is" in caplog.text
    assert list(sampler) == list(range(75))
    assert sampler.state_dict()["epoch"] == 5


@pytest.mark.parametrize("how", ["sampler", "BrandLoader"])
def test_an_iteration_that_could_not_begin_is_no_epoch(small: Path, how: str) -> None:
    """Its server was gone; when there is another one, the same epoch begins."""
    address = random_address()
    data_set = BrandDataset(small, fields=("index",), server=address)
    with running_server(small, memory=0.3, address=address):
        sampler = BrandSampler(data_set, num_replicas=2, rank=0)
        loader = BrandLoader(data_set, 7, sampler=sampler)
        assert indices_of(loader) == planned(small, sampler.order, 0)[::2]
    sampler.set_epoch(4)
    for _ in range(2):
        with pytest.raises(ServerError):
            next(iter(sampler if how == "sampler" else loader))
        assert (is_announced(sampler), sampler.state_dict()["epoch"]) == (True, 4)
    with running_server(small, memory=0.3, address=address):
        found = list(sampler) if how == "sampler" else indices_of(loader)
        expected = planned(small, sampler.order, 4)[::2]
        assert (indices_of(data_set.__getitems__(found)) if how == "sampler" else found) == expected


@pytest.mark.parametrize("position", [0, 75])
def test_at_the_end_of_an_epoch_the_next_one_begins(small: Path, opened: Openings, position: int) -> None:
    """No empty iteration for a loop over epochs that goes on; older versions named the end of the epoch."""
    sampler = BrandSampler(opened(small), shuffle=False)
    assert len(list(sampler)) == 75
    state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    other = BrandSampler(opened(small), shuffle=False)
    other.load_state_dict(state | {"epoch": 1 if position == 0 else 0, "position": position})
    other.set_epoch(1)
    assert len(list(other)) == 75
    assert other.state_dict()["epoch"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_without_batches_begin_with_the_epoch_that_was_set(small: Path, opened: Openings, workers: int) -> None:
    """`DataLoader(batch_size=None)`: the first epoch is epoch 0, with workers too."""
    data_set = opened(small)
    sampler = BrandSampler(data_set, seed=3)
    loader = DataLoader(data_set, batch_size=None, sampler=sampler, num_workers=workers)
    for epoch in range(2):
        assert indices_of(loader) == planned(small, sampler.order, epoch)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_gives_every_epoch(small: Path, opened: Openings, workers: int) -> None:
    """As `DataLoader` does: epochs 0, 1 and 2."""
    data_set = opened(small)
    sampler = BrandSampler(data_set, seed=3)
    loader = stateful_loader(data_set, batch_size=BATCH, sampler=sampler, num_workers=workers)
    for epoch in range(3):
        assert indices_of(loader) == planned(small, sampler.order, epoch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "seed", "batches"), [(0, 3, 1), (0, 9, 5), (2, 9, 10), (2, 3, 11), (0, 3, 11), (2, 9, 1)]
)
def test_a_stateful_loader_goes_on_where_it_stopped(
    small: Path, opened: Openings, workers: int, seed: int, batches: int
) -> None:
    """In a new data set, whatever its sampler's seed: the rest of the epoch, and the next one."""
    data_set = opened(small)
    sampler = BrandSampler(data_set, seed=3)
    expected = [planned(small, sampler.order, epoch) for epoch in (0, 1)]
    running = iter(loader := stateful_loader(data_set, BATCH, sampler=sampler, num_workers=workers))
    begun = indices_of(next(running) for _ in range(batches))
    state = loader.state_dict()
    del running

    data_set = opened(small, memory=0.6)
    sampler = BrandSampler(data_set, seed=seed)
    loader = stateful_loader(data_set, BATCH, sampler=sampler, num_workers=workers)
    loader.load_state_dict(state)
    assert begun + indices_of(loader) == expected[0]
    assert indices_of(loader) == expected[1]


@pytest.mark.slow
@TORCHDATA
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [1, 5])
def test_a_stateful_loader_that_would_skip_batches_is_refused(
    small: Path, opened: Openings, workers: int, batches: int
) -> None:
    """At once, before anything is drawn: a batch sampler has no state."""
    data_set = opened(small)

    def loader() -> Any:
        sampler = BatchSampler(BrandSampler(data_set), BATCH, drop_last=False)
        return stateful_loader(data_set, batch_sampler=sampler, num_workers=workers)

    first = loader()
    for number, _ in enumerate(first, 1):
        if number == batches:
            break
    again = loader()
    again.load_state_dict(first.state_dict())
    error = failure_of(again)
    assert isinstance(error, UsageError)
    skipped = {1: "1 batch", 5: "5 batches"}[batches]
    assert re.search(rf"skips {skipped}, to resume.*sampler=BrandSampler", str(error))


@pytest.mark.slow
def test_workers_that_already_run_draw_from_a_loaded_state(small: Path, opened: Openings) -> None:
    """Persistent workers; the state is of a run with another seed."""
    data_set = opened(small)
    sampler = BrandSampler(data_set, seed=3)
    loader = DataLoader(data_set, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    assert len(indices_of(loader)) == 75
    other = BrandSampler(opened(small), seed=9)
    sampler.load_state_dict(other.state_dict())
    assert indices_of(loader) == planned(small, other.order, 0)


@pytest.mark.slow
def test_workers_that_already_run_draw_for_a_sampler_that_came_later(small: Path, opened: Openings) -> None:
    """A worker was started for the first sampler, and its loader is then given a batch of the second one's tickets."""
    data_set = opened(small)
    batches = [list(range(BATCH))]
    loader = DataLoader(data_set, batch_sampler=batches, num_workers=1, persistent_workers=True)
    assert indices_of(loader) == list(range(BATCH))
    sampler = BrandSampler(data_set, seed=3)
    batches[0] = list(sampler)[:BATCH]
    assert indices_of(loader) == planned(small, sampler.order, 0)[:BATCH]


@pytest.mark.parametrize("batches", range(12))
def test_a_state_after_so_many_batches(small: Path, opened: Openings, batches: int) -> None:
    """75 samples in batches of seven are eleven batches, the last of five."""
    sampler = BrandSampler(opened(small), shuffle=False)
    list(sampler)
    state = sampler.state_dict(batches=batches, batch_size=BATCH)
    assert (state["epoch"], state["position"]) == ((0, batches * BATCH) if batches < 11 else (1, 0))


def test_more_batches_than_there_are_cannot_have_been_trained(small: Path, opened: Openings) -> None:
    """Twelve of eleven."""
    sampler = BrandSampler(opened(small), shuffle=False)
    list(sampler)
    with pytest.raises(UsageError, match="75"):
        sampler.state_dict(batches=12, batch_size=BATCH)


def test_batches_without_their_size_are_refused(small: Path, opened: Openings) -> None:
    """The sampler cannot know it."""
    sampler = BrandSampler(opened(small), shuffle=False)
    list(sampler)
    with pytest.raises(UsageError, match="batch_size"):
        sampler.state_dict(batches=3)


@pytest.mark.parametrize("epoch", [5, np.int64(5)])
def test_a_state_is_plain_values(small: Path, opened: Openings, epoch: Any) -> None:
    """Through JSON and a safe `torch.load`, also where the epoch came out of an array."""
    sampler = BrandSampler(opened(small))
    sampler.set_epoch(epoch)
    state = sampler.state_dict()
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


@pytest.mark.parametrize("epoch", [1.5, "1", None])
def test_an_epoch_is_an_integer(small: Path, opened: Openings, epoch: Any) -> None:
    """1.5 is none, and would break at the first batch, or in the state."""
    with pytest.raises((UsageError, TypeError), match="epoch"):
        BrandSampler(opened(small)).set_epoch(epoch)


def test_a_seed_may_come_out_of_an_array_and_a_wrong_one_is_the_callers_fault(small: Path, opened: Openings) -> None:
    """`seed=rng.integers(...)` is a seed; -1 is none."""
    data_set = opened(small)
    assert BrandSampler(data_set, seed=np.int64(3)).order == BrandSampler(data_set, seed=3).order  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed"):
        BrandSampler(data_set, seed=-1)


def changed(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A state whose order says something else."""
    return state | {"order": state["order"] | more}


@pytest.mark.parametrize(
    "wrong", [{"samples": 74}, {"chunk_size": 9}, {"group_chunks": 10**9}, {"group_chunks": 11}], ids=str
)
def test_a_state_whose_order_does_not_fit_the_data_set_is_refused(
    small: Path, opened: Openings, wrong: dict[str, int]
) -> None:
    """At loading, not at the first batch."""
    sampler = BrandSampler(opened(small))
    with pytest.raises(UsageError):
        sampler.load_state_dict(changed(sampler.state_dict(), **wrong))


@pytest.mark.parametrize("wrong", [{"position": 1.7}, {"position": True}, {"shuffle": "no"}, {"epoch": "1"}], ids=str)
def test_a_state_with_values_of_another_type_is_refused(small: Path, opened: Openings, wrong: dict[str, Any]) -> None:
    """`shuffle: "no"` would shuffle."""
    sampler = BrandSampler(opened(small))
    with pytest.raises(UsageError):
        sampler.load_state_dict(sampler.state_dict() | wrong)


def test_no_two_orders_of_a_process_have_the_same_tag(
    small: Path, smaller: Path, opened: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there are only two tags. A ticket for another data set is refused, and so is an order too many."""
    monkeypatch.setattr("brand.torch.fetch.fetch._tags", {})
    monkeypatch.setattr("brand.torch.fetch.fetch.TAGS", 2)
    training, validation = opened(small), opened(smaller)
    foreign, own = BrandSampler(training), BrandSampler(validation)
    assert {training._source.port.tag_of(foreign.order), validation._source.port.tag_of(own.order)} == {0, 1}
    assert list(BrandSampler(validation)) == list(own)
    with pytest.raises(UsageError, match="another BrandDataset"):
        validation.__getitems__(foreign._sequence.ints(0, np.arange(5)).tolist())
    with pytest.raises(UsageError, match="2 orders"):
        BrandSampler(training, seed=1)


@pytest.mark.slow
@places.IN_A_FOLDER
def test_the_hint_is_said_once_also_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Openings
) -> None:
    """Two workers, two epochs, one line."""
    count = 3 * set_source.ENOUGH
    pack([{"number": n} for n in range(count)], tmp_path / "set", {"number": "int"}, jobs=1)
    monkeypatch.setattr(set_source, "_said", mmap.mmap(-1, 1))
    handler = logging.FileHandler(tmp_path / "log")  # forked workers write to the same file
    logger = logging.getLogger("brand")
    logger.addHandler(handler)
    try:
        loader = DataLoader(
            opened(tmp_path / "set", fields=("number",)),
            500,
            shuffle=True,
            num_workers=2,
            multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(0),
        )
        for _ in range(2):
            assert len(indices_of(loader)) == count
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text().count("BrandSampler(dataset)") == 1


@pytest.mark.parametrize("value", ["", "x", "1.0"])
def test_a_rank_in_the_environment_that_is_no_number_is_named(value: str) -> None:
    """Launch scripts export empty variables."""
    with pytest.raises(UsageError, match="RANK"):
        find_rank(None, None, {"RANK": value, "WORLD_SIZE": "2"})


def test_a_number_of_ranks_without_a_rank_is_refused() -> None:
    """Where nobody else says which rank this is."""
    with pytest.raises(UsageError, match="both"):
        find_rank(None, 4, {})


@pytest.mark.slow
def test_a_data_set_that_is_dropped_leaves_no_warning(small: Path) -> None:
    """Test suites make errors of warnings; a socket that is collected while open is one."""
    with running_server(small, memory=1.0) as server:
        data_set = BrandDataset(small, fields=("index",), server=server.address)
        assert len(indices_of(DataLoader(data_set, 25, sampler=BrandSampler(data_set)))) == 75
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del data_set
            gc.collect()
        assert [str(warning.message) for warning in caught] == []
