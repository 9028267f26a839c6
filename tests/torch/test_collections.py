"""Collections in training: each present sample once an epoch, states that fit one version, columns as fields."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import brand
from brand.collect import NamedSamples, compact, delete, overlay
from brand.errors import DeletedError, SchemaError, UsageError
from brand.orders import Slots
from brand.orders.baselines import Pool
from brand.testing.node import running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture
from tests.collect.support import grow, samples
from tests.support import brand as command
from tests.torch.support import Openings, planned

DELETED = (5, 61, 62, 119)
FIELDS = ("index", "number", "key")


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Parts of 60 and 60 samples in chunks of eight, four samples deleted: version 3."""
    grow(tmp_path / "all", 0, 60)
    grow(tmp_path / "all", 60, 60)
    delete(tmp_path / "all", NamedSamples(indices=DELETED))
    return tmp_path / "all"


def drawn(data: BrandDataset, sampler: BrandSampler, epoch: int, batch: int = 8) -> list[int]:
    """The indices of an epoch, in order; each sample is compared with what was appended."""
    sampler.set_epoch(epoch)
    found: list[int] = []
    for index, number, key in BrandLoader(data, batch, sampler=sampler):
        for each in zip(index.tolist(), number.tolist(), key, strict=True):
            wanted = samples(each[0], 1)[0]
            assert each == (each[0], wanted["number"], wanted["key"])
        found += index.tolist()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stripes", "slots", "uniform", "shared", Pool(chunks=3), Slots(refill="random")])
def test_each_present_sample_is_drawn_once(grown: Path, opened: Openings, order: Any) -> None:
    """By any order, in an order of its own each epoch, the new part's samples among the others."""
    data = opened(grown, fields=FIELDS, order=order, memory="1MB")
    sampler = BrandSampler(data, seed=1)
    epochs = [drawn(data, sampler, epoch) for epoch in range(2)]
    assert epochs[0] != epochs[1]
    for found in epochs:
        assert sorted(found) == data.present().tolist()
        assert found == planned(grown, sampler.order, epochs.index(found))
        first = np.array(found[: len(found) // 2])
        assert 10 < np.count_nonzero(first >= 60) < 48


@pytest.mark.slow
def test_a_data_loader_with_workers_draws_the_same(grown: Path, opened: Openings) -> None:
    """Worker processes open the version that was pinned, whatever is appended meanwhile."""
    data = opened(grown, fields=("index",), memory="1MB")
    sampler = BrandSampler(data)
    grow(grown, 500, 5)
    loader = DataLoader(data, 8, sampler=sampler, num_workers=2, multiprocessing_context="spawn")
    found = [index for (batch,) in loader for index in batch.tolist()]
    assert found == planned(Path(f"{grown}@3"), sampler.order, 0)


def test_without_shuffling_deleted_samples_are_left_out(grown: Path, opened: Openings) -> None:
    """All other indices, ascending."""
    data = opened(grown)
    assert list(BrandSampler(data, shuffle=False)) == data.present().tolist()
    assert len(BrandSampler(data)) == 116
    assert len(data) == 120


@pytest.mark.slow
def test_a_part_of_a_collection_has_no_deleted_sample(grown: Path, opened: Openings) -> None:
    """A mask may say anything of them; an index is an error."""
    data = opened(grown, fields=FIELDS, memory="1MB")
    sampler = BrandSampler(data, subset=np.arange(120) < 10)
    assert sorted(drawn(data, sampler, 0)) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    with pytest.raises(DeletedError, match="sample 5 was deleted"):
        BrandSampler(data, subset=[4, 5])
    with pytest.raises(DeletedError):
        data[5]
    with pytest.raises(DeletedError):
        data[-1]


@pytest.mark.slow
@pytest.mark.parametrize("length", ["number", None, "given"])
def test_planned_batches_leave_deleted_samples_out(grown: Path, opened: Openings, length: str | None) -> None:
    """By a column, by the bytes of each sample, by numbers from the user: deleted samples and holes have no length."""
    data = opened(grown, fields=FIELDS, memory="1MB")
    lengths = np.where(np.isin(np.arange(120), DELETED), 10**6, 1 + np.arange(120) % 7) if length == "given" else length
    plan = LengthBatchSampler(data, lengths, batch_size=4, seed=3)
    found = [index for indices, _, _ in BrandLoader(data, batch_sampler=plan) for index in indices.tolist()]
    assert sorted(found) == data.present().tolist()


@pytest.mark.slow
def test_a_mixture_draws_present_samples(grown: Path, small: Path, opened: Openings) -> None:
    """Its epoch has as many samples as the members have present ones, and by its size each comes once."""
    collection, other = opened(grown, fields=("index",), memory="1MB"), opened(small, fields=("index",), memory="1MB")
    mixture = Mixture({collection: 116, other: len(other)})
    assert len(mixture) == 116 + len(other)
    tickets = BrandSampler(mixture)._sequence.ints(0, np.arange(len(mixture)))
    fetched = mixture._source.fetch(tickets).columns(0, len(mixture))
    indices = [np.asarray(fetched["index"])[tickets >> 48 == tag] for tag in np.unique(tickets >> 48)]
    assert sorted(map(len, indices)) == sorted((116, len(other)))
    assert [sorted(each.tolist()) for each in indices if len(each) == 116] == [collection.present().tolist()]


@pytest.mark.slow
def test_a_state_goes_on_exactly_on_its_version(grown: Path, opened: Openings) -> None:
    """After appends, deletions and a compaction, at every batch: the version that the state names is as it was."""
    data = opened(grown, fields=FIELDS, memory="1MB")
    loader = BrandLoader(data, 16, sampler=BrandSampler(data, seed=3))
    states, found = [loader.state_dict()], []
    for index, *_ in loader:
        found += index.tolist()
        states.append(loader.state_dict())
    whole = [*found, *drawn(data, BrandSampler(data, seed=3), 1, 16)]
    grow(grown, 200, 30)
    delete(grown, NamedSamples(indices=[0, 1, 2]))
    compact(grown)
    for number, state in enumerate(states):
        again = opened(f"{grown}@3", fields=FIELDS, memory="1MB")
        sampler = BrandSampler(again, seed=3)
        sampler.load_state_dict(state)
        epoch = state["epoch"]
        rest = drawn(again, sampler, epoch, 16)
        if epoch == 0:
            rest += drawn(again, sampler, 1, 16)
        assert rest == whole[16 * number if epoch == 0 else 116 :]


def test_a_state_is_refused_by_another_version(grown: Path, opened: Openings) -> None:
    """The message says what to open, and how to begin the epoch anew."""
    state = BrandSampler(opened(grown), seed=3)._sequence.state_at(2, 48)
    grow(grown, 200, 7)
    data = opened(grown)
    sampler = BrandSampler(data, seed=3)
    with pytest.raises(
        UsageError, match=r"is of version 3 .* this is .*@4: open '.*all@3' to continue .*brand\.migrate_state"
    ):
        sampler.load_state_dict(state)
    BrandSampler(opened(f"{grown}@3"), seed=3).load_state_dict(state)


@pytest.mark.slow
def test_a_state_of_a_removed_version_begins_its_epoch_again(grown: Path, opened: Openings) -> None:
    """The message does not advise to open the version; the code that it has works."""
    state = BrandSampler(opened(grown), seed=3)._sequence.state_at(2, 48)
    grow(grown, 120, 7)
    compact(grown, forget=True)
    data = opened(grown, fields=FIELDS, memory="1MB")
    sampler = BrandSampler(data, seed=3)
    why = r"there is no version 3 any more, since `brand compact --forget` or `brand redact` removed it, so .*migrate_"
    with pytest.raises(UsageError, match=why) as refused:
        sampler.load_state_dict(state)
    assert "open '" not in str(refused.value)
    code = str(refused.value).split("`")[-2]
    eval(f"sampler.{code}", {"brand": brand, "sampler": sampler, "state": state})
    assert sorted(drawn(data, sampler, 2)) == data.present().tolist()


@pytest.mark.slow
def test_batches_of_another_version_begin_their_epoch_again(grown: Path, opened: Openings) -> None:
    """A batch sampler has no `migrate_state`: its message says what works."""
    plan = LengthBatchSampler(opened(grown), "number", batch_size=4)
    loaded = {**plan.state_dict(), "epoch": 2, "batch": 5}
    grow(grown, 120, 7)
    data = opened(grown, fields=FIELDS, memory="1MB")
    plan = LengthBatchSampler(data, "number", batch_size=4)
    loader = BrandLoader(data, batch_sampler=plan)
    with pytest.raises(UsageError, match=r"is of version 3 .*open '.*all@3'") as refused:
        loader.load_state_dict(loaded)
    code = str(refused.value).split("`")[-2]
    assert "migrate_state" not in code
    eval(f"loader.{code}", {"loader": loader})
    found = [index for indices, _, _ in loader for index in indices.tolist()]
    assert sorted(found) == data.present().tolist()
    assert loader.state_dict()["epoch"] == 3


def test_a_state_of_a_fork_is_refused(tmp_path: Path, opened: Openings) -> None:
    """Two copies of a collection that grew apart have versions of one number, and not of one id."""
    grow(tmp_path / "one", 0, 9)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    grow(tmp_path / "one", 20, 9)
    grow(tmp_path / "other", 40, 9)
    state = BrandSampler(opened(tmp_path / "one")).state_dict()
    with pytest.raises(UsageError, match="grown from the same beginning"):
        BrandSampler(opened(tmp_path / "other")).load_state_dict(state)
    with pytest.raises(UsageError, match="grown from the same beginning"):
        brand.migrate_state(state, BrandSampler(opened(tmp_path / "other")))


@pytest.mark.slow
def test_a_state_is_rebased(grown: Path, opened: Openings, caplog: pytest.LogCaptureFixture) -> None:
    """Its epoch begins again on the new version, with all that is there now; the log says what is drawn again."""
    state = BrandSampler(opened(grown), seed=3)._sequence.state_at(2, 48)
    grow(grown, 120, 7)
    data = opened(grown, fields=FIELDS, memory="1MB")
    sampler = BrandSampler(data, seed=3)
    with caplog.at_level(logging.WARNING, "brand"):
        new = brand.migrate_state(state, sampler)
    assert "epoch 2 begins again" in caplog.text
    assert "first 48 samples" in caplog.text
    assert (new["epoch"], new["position"]) == (2, 0)
    sampler.load_state_dict(new)
    assert sorted(drawn(data, sampler, 2)) == data.present().tolist()
    assert brand.migrate_state(new, sampler) == new


def test_one_sample_is_no_plural(tmp_path: Path, opened: Openings, caplog: pytest.LogCaptureFixture) -> None:
    """In messages and in what commands print."""
    grow(tmp_path / "all", 0, 1)
    data = opened(tmp_path / "all")
    with pytest.raises(IndexError, match=r"the data set has 1 sample$"):
        data[3]
    assert "1 sample," in command("versions", tmp_path / "all").out
    sampler = BrandSampler(data)
    with pytest.raises(UsageError, match=r"^2 samples: this rank has 1 "):
        _ = list(sampler), sampler.state_dict(samples=2)
    state = sampler._sequence.state_at(0, 1)
    grow(tmp_path / "all", 1, 1)
    brand.migrate_state(state, BrandSampler(opened(tmp_path / "all")))
    assert "the first 1 sample of it on version 1 will be fetched again" in caplog.text


def test_what_cannot_be_rebased_is_refused(grown: Path, small: Path, opened: Openings) -> None:
    """Another data set, another seed, anything else."""
    sampler = BrandSampler(opened(grown), seed=3)
    other = BrandSampler(opened(small), seed=3)
    with pytest.raises(UsageError, match="of data set"):
        brand.migrate_state(other.state_dict(), sampler)
    with pytest.raises(UsageError, match="of data set"):
        brand.migrate_state(sampler.state_dict(), other)
    with pytest.raises(UsageError, match="no state"):
        brand.migrate_state({"epoch": 1}, sampler)
    old = BrandSampler(opened(f"{grown}@2"), seed=4).state_dict()
    with pytest.raises(UsageError, match="seed 4"):
        brand.migrate_state(old, sampler)


@pytest.mark.slow
def test_a_column_is_a_field(grown: Path, opened: Openings) -> None:
    """In exact reads, draws, tuples and dicts, with and without workers' threads; not where other fields are named."""
    overlay(grown, "score", np.arange(120) / 4)
    overlay(grown, "rank", np.arange(120) * 3)
    data = opened(grown, fields=None, memory="1MB")
    assert data.schema["score"] == "float"
    assert (data[7]["score"], data[7]["rank"]) == (1.75, 21)
    for batch in BrandLoader(data, 30):
        assert np.array_equal(batch["score"].numpy() * 4, batch["index"].numpy())
        assert np.array_equal(batch["rank"].numpy(), 3 * batch["index"].numpy())
    few = opened(grown, fields=("rank", "index"), memory="1MB")
    assert few[3] == (9, 3)
    for rank, index in BrandLoader(few, 30):
        assert np.array_equal(rank.numpy(), 3 * index.numpy())
    assert "score" not in opened(grown, fields=("key",))[3]
    assert BrandSampler(data, subset=data.column("score") < 2).order.draws == 7
    with pytest.raises(SchemaError, match="no field 'scores'"):
        opened(grown, fields=("scores",))


@pytest.mark.slow
def test_a_server_serves_the_version_that_it_was_started_with(grown: Path, opened: Openings) -> None:
    """A client of another version is told so."""
    with running_server(grown, memory="1MB") as server:
        data = opened(grown, fields=FIELDS, server=server.address)
        assert sorted(drawn(data, BrandSampler(data), 0)) == data.present().tolist()
        grow(grown, 300, 3)
        newer = opened(grown, server=server.address)
        with pytest.raises(
            UsageError, match=r"all@3\), not \w+: open that version, or start the server with version 4"
        ):
            BrandSampler(newer)
        same = opened(f"{grown}@3", fields=FIELDS, server=server.address)
        assert sorted(drawn(same, BrandSampler(same), 1)) == same.present().tolist()


def test_ranks_name_the_version(grown: Path, opened: Openings) -> None:
    """Else an append between their starts would give them different orders, and no rank would notice."""
    sampler = BrandSampler(opened(grown), num_replicas=2, rank=0)
    with pytest.raises(UsageError, match=r"2 ranks fetch from .*all, .* Name the version, '.*all@3'"):
        next(iter(sampler))
    plain = BrandSampler(opened(grown), num_replicas=2, rank=0, shuffle=False)
    with pytest.raises(UsageError, match="Name the version"):
        next(iter(plain))
    named = opened(f"{grown}@3")
    ranks = [list(BrandSampler(named, num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)]
    assert sorted(ranks[0] + ranks[1]) == named.present().tolist()


def test_a_collection_says_its_version(grown: Path, opened: Openings) -> None:
    """In its name, which error messages have, and in what it shows."""
    data = opened(grown)
    assert data.name == f"{grown}@3"
    assert opened(f"{grown}@2").name == f"{grown}@2"
    assert "all@3', 120 samples" in repr(data)
    assert data.version is not None
    assert data.version.number == 3
