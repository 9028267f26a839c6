"""Batches from the workers of a DataLoader: whatever `default_collate` makes arrives as it makes it."""

from __future__ import annotations

import copy
import os
import pickle
import re
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, default_collate

from brand.torch import BrandDataset, BrandSampler
from brand.torch.data import shared_batches as module
from brand.torch.data.shared_batches import (
    LEAST_BYTES,
    MOST_BUFFERS,
    FirstDict,
    FirstTuple,
    HandedDict,
    HandedList,
    SharedBatches,
    marked,
)
from tests.torch.support import MANY_WORKERS, equal, failure_of, make_samples, make_set

VALUES = {
    "text": st.text(st.characters(), max_size=9),  # with characters that UTF-8 does not have
    "bytes": st.binary(max_size=9),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "array": st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3).map(torch.tensor),
    "half": st.just(torch.ones(2, dtype=torch.bfloat16)),
    "nested": st.fixed_dictionaries({"text": st.text("ab", max_size=3), "number": st.integers(0, 9)}),
    "empty": st.just(torch.empty(0)),
    "scalar": st.integers(0, 9).map(torch.tensor),
}


@pytest.fixture(autouse=True)
def own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has buffers of its own."""
    monkeypatch.setattr(module, "_own", None)


def sent(batch: Any) -> bytes:
    """A batch as the queue of a DataLoader takes it."""
    return bytes(ForkingPickler.dumps(batch))


@st.composite
def batches(draw: st.DrawFn) -> Any:
    """What `default_collate` makes of samples with any fields."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    samples = [{name: draw(VALUES[name]) for name in names} for _ in range(draw(st.integers(1, 5)))]
    return default_collate(samples if draw(st.booleans()) else [tuple(sample.values()) for sample in samples])


@pytest.mark.slow
@given(batch=batches(), by_buffer=st.booleans())
def test_a_batch_arrives_as_it_was_made(batch: Any, by_buffer: bool) -> None:
    """Names, types, dtypes, shapes and values, by the message and by a buffer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_BYTES", 0 if by_buffer else 1 << 30)
        patch.setattr(module, "_own", None)
        for _ in range(2):  # the first goes by the message: no process has opened a buffer yet
            handed = HandedDict(batch) if isinstance(batch, dict) else HandedList(batch)
            message = sent(handed)
            assert (b"_from_buffer" in message) == (by_buffer and module._own_buffers().opened)
            assert equal(pickle.loads(message), batch)


@pytest.mark.parametrize(
    "column",
    [
        ["a", b"b"],
        (b"a", None),
        ["a", 1],
        [],
        (),
        [""],
        [b""],
        "text",
        torch.ones(2, requires_grad=True),
        torch.arange(3).reshape(1, 3).t(),
        torch.arange(6).reshape(2, 3).t(),
        torch.arange(9)[::3],
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.tensor([1 + 2j, 3j]).conj().imag,
    ],
)
def test_any_column_arrives(column: Any) -> None:
    """`default_collate` looks at the first value of a column only, and a `collate_fn` may put in what it likes.

    Where packing failed, the queue would lose the batch, and the training would wait for it.
    """
    (arrived,) = pickle.loads(sent(HandedList([column])))
    assert type(arrived) is type(column)
    assert equal(arrived, column)


def test_other_picklers_and_copies_see_what_it_is() -> None:
    """Only what goes to another process at once is packed: a file that has a batch does not name a buffer."""
    batch = HandedDict({"text": ["a" * LEAST_BYTES]})
    assert type(copy.copy(batch)) is HandedDict
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert b"buffer" not in pickle.dumps(batch)


@pytest.mark.parametrize("marks", [FirstDict({"a": 1}), FirstTuple((1, "b"))])
def test_a_marked_sample_leaves_its_process_plain(marks: Any) -> None:
    """Copied, pickled and sent."""
    plain = dict if isinstance(marks, dict) else tuple
    for other in (copy.copy(marks), pickle.loads(pickle.dumps(marks)), pickle.loads(sent(marks))):
        assert type(other) is plain
        assert other == marks


def test_samples_are_marked_in_workers_only() -> None:
    """In the training process samples are what they were."""
    assert [type(sample) for sample in marked([{"a": 1}, {"a": 2}])] == [dict, dict]


# -- in workers of a DataLoader ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 samples of up to 9,000 bytes in chunks of 16: a batch of one goes by the message, one of 40 by a buffer."""
    return make_set(tmp_path_factory.mktemp("sets") / "handover.brand", make_samples(200, 9_000), 16)


class Changed(Dataset[Any]):
    """Each sample of another data set, changed where a batch is fetched."""

    def __init__(self, data_set: BrandDataset) -> None:
        self.data_set = data_set

    def __len__(self) -> int:
        return len(self.data_set)

    def __getitem__(self, i: int) -> Any:
        raise AssertionError("a DataLoader asks for batches")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        samples = self.data_set.__getitems__(indices)
        for sample in samples:
            sample["number"] = -sample["number"]
            del sample["key"]
        return samples


def as_they_are(samples: list[Any]) -> list[Any]:
    """A `collate_fn` that makes no batch (a function of the module, so that spawned workers find it)."""
    return samples


def in_a_dict(samples: list[Any]) -> dict[str, Any]:
    """A `collate_fn` that has PyTorch's batch in one of its own."""
    return {"batch": default_collate(samples), "more": [len(samples)]}


@MANY_WORKERS
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "start"),
    [(None, "fork"), (("data", "number", "key"), "fork"), (("number",), "fork"), (None, "spawn")],
)
def test_the_batches_of_workers_are_those_of_the_training_process(data: Path, fields: Any, start: str) -> None:
    """Exact reads, dicts and tuples, large and small batches, persistent workers."""
    data_set = BrandDataset(data, fields=fields)
    for size in (1, 40):
        wanted = list(DataLoader(data_set, size))
        options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": start}
        loader = DataLoader(data_set, size, **options)
        for _ in range(2):
            assert equal(list(loader), wanted)


def test_what_a_wrapper_changes_arrives_changed(data: Path) -> None:
    """A data set around Brand's changes, adds or drops fields before PyTorch makes the batch."""
    plain = list(DataLoader(BrandDataset(data), 40))
    changed = list(DataLoader(Changed(BrandDataset(data)), 40, num_workers=2))
    assert [list(batch) for batch in changed] == [[name for name in plain[0] if name != "key"]] * 5
    assert torch.equal(torch.cat([b["number"] for b in changed]), -torch.cat([b["number"] for b in plain]))


@pytest.mark.parametrize("fields", [None, ("data", "number")])
def test_a_collate_function_of_the_user_works(data: Path, fields: Any) -> None:
    """It gets a list of samples, which arrive as dicts or tuples; what it makes with `default_collate` arrives, too."""
    data_set = BrandDataset(data, fields=fields)
    samples = [sample for batch in DataLoader(data_set, 40, num_workers=2, collate_fn=as_they_are) for sample in batch]
    assert {type(sample) for sample in samples} == {dict if fields is None else tuple}
    assert samples == data_set.__getitems__(range(200))
    wanted = [in_a_dict(samples[first : first + 40]) for first in range(0, 200, 40)]
    assert equal(list(DataLoader(data_set, 40, num_workers=2, collate_fn=in_a_dict)), wanted)


def buffers_of(loader: Any) -> list[int]:
    """How many buffers each worker of an iteration has, with its probe. Each has two descriptors."""
    return [
        len({file.stat().st_ino for file in Path(f"/proc/{worker.pid}/fd").iterdir() if "brand-batch" in target(file)})
        for worker in loader._workers
    ]


def target(file: Path) -> str:
    """Where a link in /proc leads; nowhere where it is gone."""
    try:
        return str(file.readlink())
    except FileNotFoundError:
        return ""


def mapped() -> list[str]:
    """Buffers that this process has open or maps."""
    files = map(target, Path("/proc/self/fd").iterdir())
    return [line for line in [*files, *Path("/proc/self/maps").read_text().splitlines()] if "brand-batch" in line]


def epochs(loader: DataLoader[Any], count: int) -> Iterator[Any]:
    """The iteration of each epoch, after its last batch."""
    for _ in range(count):
        iteration = iter(loader)
        assert sum(len(batch["number"]) for batch in iteration) == 200
        yield iteration


def test_workers_fill_the_same_buffers_again(data: Path) -> None:
    """Each has a few, in any number of epochs; the training process keeps none."""
    loader = DataLoader(BrandDataset(data), 40, num_workers=2, persistent_workers=True)
    counts = [buffers_of(iteration) for iteration in epochs(loader, 6)]
    assert all(1 < count <= 1 + MOST_BUFFERS for count in counts[-1]), counts
    assert not mapped()


@pytest.mark.slow
def test_draws_arrive_each_once(data: Path) -> None:
    """With a `BrandSampler`, and more batches ahead than a worker has buffers."""
    data_set = BrandDataset(data, memory=0.5)
    sampler = BrandSampler(data_set, seed=3)
    loader = DataLoader(
        data_set, 20, sampler=sampler, num_workers=1, prefetch_factor=2 * MOST_BUFFERS, persistent_workers=True
    )
    wanted = {sample["index"]: sample for sample in data_set.__getitems__(range(200))}
    for epoch in range(3):
        sampler.set_epoch(epoch)
        found = [
            dict(zip(batch, values, strict=True))
            for batch in loader
            for values in zip(*(c.tolist() if isinstance(c, torch.Tensor) else c for c in batch.values()), strict=True)
        ]
        assert sorted(sample["index"] for sample in found) == list(range(200))
        assert all(wanted[sample["index"]] == sample for sample in found)


@pytest.mark.slow
def test_a_worker_that_ends_before_its_batch_was_taken(data: Path) -> None:
    """PyTorch says that the worker is gone, as soon as it notices, and nothing hangs."""
    loader = DataLoader(BrandDataset(data), 40, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 5  # its buffers are open

    def killed() -> Iterator[Any]:
        iteration: Any = iter(loader)
        yield next(iteration)
        iteration._workers[0].kill()
        iteration._workers[0].join()
        yield from iteration

    error = failure_of(killed())
    assert isinstance(error, RuntimeError)
    assert re.search("exited unexpectedly|killed by signal", str(error))


def test_without_buffers_batches_go_by_the_message(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory without a name: another system, or no descriptor left."""
    monkeypatch.delattr(os, "memfd_create")
    assert SharedBatches().probe is None
    wanted = list(DataLoader(BrandDataset(data), 40))
    assert equal(list(DataLoader(BrandDataset(data), 40, num_workers=2, multiprocessing_context="fork")), wanted)
