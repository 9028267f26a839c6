"""A stream around a loader resumes exactly from its state; if a framework would skip instead, that is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler
from brand.errors import UsageError
from brand.torch.job import rank_log
from tests.frameworks.trainings import open_data

nodes = pytest.importorskip("torchdata.nodes")

from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

BATCH, STEPS = 32, 19
Epochs = list[list[list[int]]]


class Lines(IterableDataset[Any]):
    """A stream of the indices of each batch."""

    def __init__(self, path: Path) -> None:
        dataset = BrandDataset(path, memory=0.3, fields=("index",))
        self.loader = BrandLoader(dataset, BATCH, sampler=BrandSampler(dataset), num_workers=1)

    def __iter__(self) -> Iterator[Any]:
        for (index,) in self.loader:
            yield index.tolist()


class KeptLines(Lines):
    """With the state of its loader."""

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


@pytest.fixture(scope="module")
def epochs(numbers: Path) -> Epochs:
    stream = Lines(numbers)
    return [list(stream) for _ in range(4)]


LOADERS: dict[str, Callable[[Any], Any]] = {
    "StatefulDataLoader": lambda stream: StatefulDataLoader(stream, batch_size=None),
    "StatefulDataLoader, a worker": lambda stream: StatefulDataLoader(
        stream, batch_size=None, num_workers=1, multiprocessing_context="fork"
    ),
    "nodes": lambda stream: nodes.Loader(nodes.IterableWrapper(stream)),
}
PLACES = {"inside": 4, "last batch": STEPS, "end": None}


def state_at(loader: Any, place: int | None) -> Any:
    """The state in the second epoch after this many batches; None: after the loop over them."""
    list(loader)
    for number, _ in enumerate(loader, 1):
        if number == place:
            break
    return loader.state_dict()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_stream_without_a_state_is_refused(numbers: Path, kind: str, place: str) -> None:
    state = state_at(LOADERS[kind](Lines(numbers)), PLACES[place])
    again = LOADERS[kind](Lines(numbers))

    def resume() -> None:
        again.load_state_dict(state)
        list(again)

    with pytest.raises(UsageError, match=r"resumes an IterableDataset.*state_dict and load_state_dict"):
        resume()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["StatefulDataLoader", "nodes"])
def test_a_stream_with_the_state_of_its_loader_resumes(numbers: Path, epochs: Epochs, kind: str, place: str) -> None:
    """On the last batch, a `StatefulDataLoader` has nothing left; `nodes` begin the next epoch."""
    again, at = LOADERS[kind](KeptLines(numbers)), PLACES[place]
    again.load_state_dict(state_at(LOADERS[kind](KeptLines(numbers)), at))
    rest = [] if at is None else [epochs[1][at:]]
    if kind == "nodes" and place == "last batch":
        rest = []
    assert [list(again) for _ in range(len(rest) + 1)] == [*rest, epochs[2]]


def test_a_worker_that_lasts_has_all_epochs_and_another_one_is_told(
    numbers: Path, epochs: Epochs, tmp_path: Path
) -> None:
    told, log = logging.FileHandler(tmp_path / "log"), logging.getLogger("brand")
    log.addHandler(told)
    try:
        loader: Any = DataLoader(
            Lines(numbers), None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
        )
        assert [list(loader) for _ in range(2)] == epochs[:2]
        assert "new worker process" not in (tmp_path / "log").read_text()
        loader = DataLoader(Lines(numbers), None, num_workers=1, multiprocessing_context="fork")
        assert list(loader) == epochs[0]
    finally:
        log.removeHandler(told)
        told.close()
    assert (tmp_path / "log").read_text().count("new worker process for each epoch") == 1


def test_a_batch_sampler_without_a_state_is_told(
    numbers: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state at the end of an epoch skips nothing; the cure has the next epoch."""
    monkeypatch.setattr(rank_log, "_said", set())
    data = open_data(numbers)

    def make(**options: Any) -> Any:
        return StatefulDataLoader(data, **options)

    with caplog.at_level(logging.WARNING, "brand"):
        batches: Any = BatchSampler(BrandSampler(data), BATCH, drop_last=False)
        list(make(batch_sampler=batches))
    assert caplog.text.count("saves no epoch of") == 1
    caplog.clear()
    first = make(batch_size=BATCH, sampler=BrandSampler(data))
    list(first)
    again = make(batch_size=BATCH, sampler=(sampler := BrandSampler(data)))
    again.load_state_dict(first.state_dict())
    list(again)
    assert sampler.epoch == 1
    assert not caplog.text


def test_going_back_names_a_cure_for_batch_samplers_too(numbers: Path) -> None:
    """Fabric counts its own iterations from 0."""
    plan = LengthBatchSampler(open_data(numbers), "label", batch_size=BATCH)
    plan.set_epoch(1)
    state = plan.state_dict()
    plan.load_state_dict(state)
    with pytest.raises(UsageError, match=r"frameworks\.md says what to use instead"):
        plan.set_epoch(0)
