"""Accelerate with `brand.frameworks.accelerate.prepare` trains as with its own loader over the same order."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from brand import BrandLoader, BrandSampler, LengthBatchSampler, PackedBatchSampler
from brand.errors import UsageError
from tests.frameworks.trainings import BATCH, SEED, InOrder, Net, launch, open_data

accelerate = pytest.importorskip("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DataLoaderConfiguration  # noqa: E402

from brand.frameworks.accelerate import prepare  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

EPOCHS = 2


@pytest.fixture(autouse=True)
def _new_process() -> None:
    """Accelerate keeps its state in classes."""
    forget()


def forget() -> None:
    """Make the next `Accelerator` the first one of this process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def accelerator_of(accumulated: int = 1, **configuration: Any) -> Any:
    """An `Accelerator` of a new process, which accumulates gradients over this many batches."""
    forget()
    dataloader = DataLoaderConfiguration(**configuration)
    return Accelerator(cpu=True, gradient_accumulation_steps=accumulated, dataloader_config=dataloader)


def loader_of(path: Path, kind: str) -> Any:
    """A loader of each kind that `prepare` takes."""
    data = open_data(path)
    if kind == "BrandLoader":
        return BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=SEED))
    if kind == "DataLoader":
        return DataLoader(data, BATCH, sampler=BrandSampler(data, seed=SEED), num_workers=1)
    plan: Any = LengthBatchSampler(data, "label", batch_size=BATCH, seed=SEED)
    if kind == "packed":
        lengths = np.arange(600) % 7 + 1
        plan = PackedBatchSampler(data, lengths, tokens_per_row=16, rows_per_batch=8, seed=SEED)
    return (
        DataLoader(data, batch_sampler=plan)
        if kind == "lengths in a DataLoader"
        else BrandLoader(data, batch_sampler=plan)
    )


def train(
    accelerator: Any,
    loader: Any,
    *,
    folder: Path | None = None,
    saves: tuple[int, ...] = (),
    resume: Path | None = None,
    dropout: float = 0.0,
) -> tuple[list[float], list[list[int]]]:
    """The weights and the samples of a training. It saves after the batches numbered `saves`, from the start on."""
    model = Net(dropout)
    seen = model.seen
    net, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    first = 0
    if resume is not None:
        accelerator.load_state(str(resume))
        first = loader.sampler.epoch
    number = 0
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            number += 1
            if folder is not None and number in saves:
                accelerator.save_state(str(folder / str(number)))
    return model.weights(), seen


@pytest.mark.parametrize("kind", ["BrandLoader", "DataLoader"])
def test_accumulated_gradients(numbers: Path, tmp_path: Path, kind: str) -> None:
    """Weights as with Accelerate's own loader, with 19 batches an epoch, and resumed inside and at the end of one."""
    own = accelerator_of(4)
    stock = train(own, own.prepare(DataLoader(InOrder(open_data(numbers)), BATCH)))
    own = accelerator_of(4)
    assert train(own, prepare(own, loader_of(numbers, kind))) == stock
    whole, saves = _whole(numbers, tmp_path, kind, 4), (8, 16, 19, 23, 31)
    for save in saves:
        weights, seen = _resumed(numbers, tmp_path / str(save), kind, 4)
        assert (weights, seen) == (whole[0], whole[1][save:]), save


def _whole(path: Path, folder: Path, kind: str, accumulated: int) -> tuple[list[float], list[list[int]]]:
    accelerator = accelerator_of(accumulated)
    loader = prepare(accelerator, loader_of(path, kind))
    return train(accelerator, loader, folder=folder, saves=(8, 16, 19, 23, 31), dropout=_dropout(loader))


def _resumed(path: Path, folder: Path, kind: str, accumulated: int = 1) -> tuple[list[float], list[list[int]]]:
    accelerator = accelerator_of(accumulated)
    loader = prepare(accelerator, loader_of(path, kind))
    return train(accelerator, loader, resume=folder, dropout=_dropout(loader))


def _dropout(loader: Any) -> float:
    """None for a `DataLoader`: it takes a number from torch's generator when an iteration begins."""
    return 0.2 if isinstance(loader.loader, BrandLoader) else 0.0


def test_a_state_inside_an_accumulation_window_is_refused(numbers: Path, tmp_path: Path) -> None:
    """Its gradients would be lost; the cure is to save after a step."""
    accelerator = accelerator_of(4)
    loader = prepare(accelerator, loader_of(numbers, "BrandLoader"))
    with pytest.raises(UsageError, match=r"6 batches .* accelerator.sync_gradients"):
        train(accelerator, loader, folder=tmp_path, saves=(6,))


@pytest.mark.parametrize("kind", ["lengths", "packed", "lengths in a DataLoader"])
def test_planned_batches(numbers: Path, tmp_path: Path, kind: str) -> None:
    """Each sample once an epoch, resumed exactly."""
    whole = _whole(numbers, tmp_path, kind, 1)
    ends = np.cumsum([len(batch) for batch in whole[1]])
    batches = int(np.searchsorted(ends, 600)) + 1
    for epoch in (whole[1][:batches], whole[1][batches:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(600))
    for save in (8, 19, 23):
        weights, seen = _resumed(numbers, tmp_path / str(save), kind)
        assert (weights, seen) == (whole[0], whole[1][save:]), save


def test_two_processes(numbers: Path, tmp_path: Path) -> None:
    """All samples of each kind, resumed exactly; options that divide batches in another way are refused by name."""
    results = launch(2, f"{__name__}:of_two", numbers, tmp_path)
    for kind in ("BrandLoader", "lengths"):
        epochs = [result[kind]["whole"][1][: result[kind]["batches"]] for result in results]
        assert {index for rank in epochs for batch in rank for index in batch} == set(range(600))
        for result in results:
            assert result[kind]["resumed"][0] == result[kind]["whole"][0]
            assert result[kind]["resumed"][1] == result[kind]["whole"][1][4:]
    for result in results:
        assert result["own"] == result["stock"]
        for option, message in result["refused"].items():
            assert message.startswith(f"leave out {option}"), message
        assert result["refused"].keys() == {"split_batches=True", "dispatch_batches=True", "even_batches=False"}
        assert result["even"] == 300


def of_two(path: Path, folder: Path) -> dict[str, Any]:
    """Return the samples that each of two processes trains."""
    found: dict[str, Any] = {"refused": {}}
    for kind in ("BrandLoader", "lengths"):
        accelerator = accelerator_of(2)
        loader = prepare(accelerator, loader_of(path, kind))
        whole = train(accelerator, loader, folder=folder / kind, saves=(4,), dropout=_dropout(loader))
        resumed = _resumed(path, folder / kind / "4", kind, 2)
        found[kind] = {"whole": whole, "resumed": resumed, "batches": len(loader)}
    data = open_data(path)
    accelerator = accelerator_of(4)
    stock = accelerator.prepare(DataLoader(InOrder(data, ranks=2), BATCH, drop_last=True))
    found["stock"] = train(accelerator, stock)
    accelerator = accelerator_of(4)
    own = prepare(accelerator, BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=SEED), drop_last=True))
    found["own"] = train(accelerator, own)
    for option, value in (("split_batches", True), ("dispatch_batches", True), ("even_batches", False)):
        accelerator = accelerator_of(**{option: value})
        try:
            prepare(accelerator, loader_of(path, "BrandLoader"))
        except UsageError as error:
            found["refused"][f"{option}={value}"] = str(error)
    accelerator = accelerator_of(even_batches=False)
    even = BrandLoader(data, BATCH, sampler=BrandSampler(data, drop_last=True))
    found["even"] = sum(len(batch["index"]) for batch in prepare(accelerator, even))
    return found


def test_options_without_an_effect_in_one_process(numbers: Path) -> None:
    """They divide batches among processes."""
    options: dict[str, Any] = {"split_batches": True, "dispatch_batches": True, "even_batches": False}
    for option, value in options.items():
        accelerator = accelerator_of(**{option: value})
        assert sum(len(batch["index"]) for batch in prepare(accelerator, loader_of(numbers, "BrandLoader"))) == 600


def test_reordered_batches_are_refused(numbers: Path) -> None:
    """A state counts batches."""
    data = open_data(numbers)
    loader = DataLoader(data, BATCH, sampler=BrandSampler(data), num_workers=1, in_order=False)
    with pytest.raises(UsageError, match="leave out in_order=False"):
        prepare(accelerator_of(), loader)


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_epochs_left_early_are_told(numbers: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Accelerate's own loader begins the same epoch again after a `break`; the log says so at the third time, once."""
    accelerator, data = accelerator_of(), open_data(numbers)
    loader = accelerator.prepare(DataLoader(data, BATCH, sampler=BrandSampler(data)))
    batches = [next(iter(loader))["index"].tolist() for _ in range(2)]
    assert batches[0] == batches[1]
    assert "left early" not in caplog.text
    with caplog.at_level(logging.WARNING, "brand"):
        for _ in range(3):
            next(iter(loader))
    assert caplog.text.count("left early 2 times, the last time after 64 of 600") == 1
    caplog.clear()
    own = prepare(accelerator_of(), loader_of(numbers, "BrandLoader" if kind == "sampler" else "lengths"))
    first = {tuple(next(iter(own))["index"].tolist()) for _ in range(4)}
    assert len(first) == 4
    assert "left early" not in caplog.text


@pytest.mark.parametrize("kind", ["BrandLoader", "lengths"])
def test_a_plain_loop_that_is_left_early(numbers: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """`set_epoch` with one number again and again; other numbers, or whole epochs, are not told."""
    loader = loader_of(numbers, kind)
    for epochs, told in (((0, 1, 2, 3), 0), ((5, 5, 5, 5), 1), ((6, 6, 7, 7, 6, 6), 0)):
        for epoch in epochs:
            loader.set_epoch(epoch)
            next(iter(loader))
        assert caplog.text.count("left early 2 times") == told
        caplog.clear()
    for _ in range(3):
        loader.set_epoch(9)
        assert sum(len(batch["index"]) for batch in loader) == 600
    assert not caplog.text


def test_metrics_of_a_subset(numbers: Path, tmp_path: Path) -> None:
    """`gather_for_metrics` counts wrong with a sampler's subset, and the log says so; it is right with a `Subset`."""
    for result in launch(2, f"{__name__}:metrics", numbers, tmp_path):
        assert result["sampler"] == 88  # Accelerate's own count
        assert result["told"] == 1
        assert result["subset"] == list(range(0, 600, 6))


def metrics(path: Path, folder: Path) -> dict[str, Any]:
    """Return the samples that each of two processes gathers, and its log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("brand").addHandler(handler)
    data, chosen, accelerator = open_data(path), range(0, 600, 6), accelerator_of()
    sampler = BrandSampler(data, subset=np.array(chosen))
    found = {}
    for name, loader in (
        ("sampler", DataLoader(data, BATCH, sampler=sampler)),
        ("subset", DataLoader(Subset(data, chosen), BATCH)),
    ):
        prepared = accelerator.prepare(loader)
        found[name] = [i for batch in prepared for i in accelerator.gather_for_metrics(batch["index"]).tolist()]
    told = [line for line in lines if "Accelerate counts the 600 samples" in line]
    return {"sampler": len(found["sampler"]), "told": len(told), "subset": sorted(found["subset"])}


def test_skipping_a_prepared_loader_is_refused(numbers: Path, tmp_path: Path) -> None:
    """`load_state` continues inside the epoch already; without skipping, the run is exact."""
    whole = _whole(numbers, tmp_path, "BrandLoader", 1)
    accelerator = accelerator_of()
    loader = prepare(accelerator, loader_of(numbers, "BrandLoader"))
    accelerator.load_state(str(tmp_path / "8"))
    with pytest.raises(UsageError, match=r"leave out skip_first_batches .*load_state continues"):
        next(iter(accelerator.skip_first_batches(loader, 8)))
    assert _resumed(numbers, tmp_path / "8", "BrandLoader") == (whole[0], whole[1][8:])
