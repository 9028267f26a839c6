"""Does a Lightning Trainer with Brand's loaders train the weights of the same Trainer with a stock loader?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from brand import LengthBatchSampler, pack
from brand.errors import UsageError
from brand.torch import BrandDataset, BrandLoader, BrandSampler

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
pl = pytest.importorskip("lightning.pytorch")

BATCH, EPOCHS, SAMPLES = 32, 3, 600
STEPS = -(-SAMPLES // BATCH)


class FailedStepError(Exception):
    """The job failed inside a step."""


class Regression(pl.LightningModule):  # type: ignore[misc,name-defined]
    """A layer with an optimizer that has a momentum. `fails`: epoch and batch in whose step it fails."""

    def __init__(self, fails: tuple[int, int] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fails, self.trained = torch.nn.Linear(2, 1), fails, []  # type: ignore[var-annotated]

    def training_step(self, batch: Any, number: int) -> Any:
        if self.fails == (self.current_epoch, number):
            raise FailedStepError
        for member in batch if isinstance(batch, list) else [batch]:
            self.trained.append((self.current_epoch, member["index"].tolist()))
        x = self.trained[-1][1]
        place = torch.tensor(x, dtype=torch.float32)[:, None] / SAMPLES
        return ((self.layer(torch.cat([place, place * place], 1)) - torch.sin(6 * place)) ** 2).mean()

    def predict_step(self, batch: Any, _: int) -> Any:
        return batch["index"]

    def test_step(self, batch: Any, *_: Any) -> None:
        self.trained.append((0, batch["index"].tolist()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def weights(self) -> list[float]:
        return [value for each in self.parameters() for value in each.flatten().tolist()]


class Stop(pl.Callback):  # type: ignore[misc,name-defined]
    """Saves a checkpoint after `steps` steps, as `every_n_train_steps` does, or if a step fails; then the run ends."""

    def __init__(self, path: Path, steps: int | None) -> None:
        self.path, self.steps = path, steps

    def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
        if self.steps is not None and trainer.fit_loop.total_batch_idx + 1 == self.steps:
            trainer.save_checkpoint(self.path)
            raise FailedStepError

    def on_exception(self, trainer: Any, *_: Any) -> None:
        if self.steps is None:
            trainer.save_checkpoint(self.path)


class Indices(Dataset[dict[str, int]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"index": index}


class EpochBatches(Sampler[list[int]]):
    """A stock batch sampler with the batches of a Brand loader; Lightning sets the epoch of its `sampler`."""

    def __init__(self, batches: dict[int, list[list[int]]]) -> None:
        self.batches, self.epoch, self.sampler = batches, 0, self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batches[0])

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches[self.epoch])


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lightning") / "lengths.brand"
    pack([{"n": 1 + n % 13} for n in range(SAMPLES)], path, {"n": "int"}, chunk_size=32, jobs=1)
    return path


def opened(path: Path) -> BrandDataset:
    return BrandDataset(path, fields=("index", "n"), transform=_named, memory=0.3)


def _named(sample: Any) -> dict[str, int]:
    return {"index": sample[0]}


def trainer(*callbacks: Any, **options: Any) -> Any:
    fixed = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "max_epochs": EPOCHS}
    return pl.Trainer(callbacks=list(callbacks), **{**fixed, **quiet, **options})


def fixed_size(path: Path) -> Any:
    return BrandLoader(dataset := opened(path), BATCH, sampler=BrandSampler(dataset))


def bucketed(path: Path) -> Any:
    dataset = opened(path)
    return BrandLoader(dataset, batch_sampler=LengthBatchSampler(dataset, "n", batch_length=250))


def with_workers(path: Path) -> Any:
    return DataLoader(dataset := opened(path), BATCH, sampler=BrandSampler(dataset), num_workers=1)


def stateful_workers(path: Path) -> Any:
    loaders, dataset = pytest.importorskip("torchdata.stateful_dataloader"), opened(path)
    return loaders.StatefulDataLoader(dataset, BATCH, sampler=BrandSampler(dataset), num_workers=2)


def plain_bucketed(path: Path) -> Any:
    dataset = opened(path)
    return DataLoader(dataset, batch_sampler=LengthBatchSampler(dataset, "n", batch_length=250))


class Streamed(IterableDataset[Any]):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader


def streamed(path: Path) -> Any:
    return DataLoader(Streamed(fixed_size(path)), batch_size=None)


def stock(loader: Any, **options: Any) -> Regression:
    """Return the model that a stock loader trains in one run, with the batches of a Brand loader."""
    batches = {}
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        batches[epoch] = [batch["index"].tolist() for batch in loader]
    model = Regression()
    trainer(**options).fit(model, DataLoader(Indices(), batch_sampler=EpochBatches(batches)))
    return model


def resumed(
    make: Callable[[Path], Any], path: Path, at: int | tuple[int, int], folder: Path, **options: Any
) -> tuple[Regression, list[Any]]:
    """Return the model of a run that continues after `at` steps, or a failed step, and what both runs have trained."""
    first, kept = Regression(at if isinstance(at, tuple) else None), folder / "kept.ckpt"
    with pytest.raises(FailedStepError):
        trainer(Stop(kept, at if isinstance(at, int) else None), **options).fit(first, make(path))
    second = Regression()
    trainer(**options).fit(second, make(path), ckpt_path=kept)
    return second, first.trained + second.trained


CASES: dict[str, tuple[Callable[[Path], Any], int | tuple[int, int], dict[str, Any]]] = {
    "inside an epoch": (fixed_size, 7, {}),
    "at the last batch": (fixed_size, STEPS, {}),
    "at the last batch of a later epoch": (fixed_size, 2 * STEPS, {}),
    "accumulation": (fixed_size, STEPS + 8, {"accumulate_grad_batches": 4}),
    "a limit of batches": (fixed_size, 14, {"limit_train_batches": 10}),
    "a failed step": (fixed_size, (1, 4), {}),
    "a failed last step": (fixed_size, (1, STEPS - 1), {}),
    "bucketed": (bucketed, 30, {}),
    "bucketed, a failed step": (bucketed, (1, 4), {}),
    "reloaded loaders": (fixed_size, STEPS + 7, {"reload_dataloaders_every_n_epochs": 1}),
    "worker processes, at the last batch": (with_workers, STEPS, {}),
    "worker processes with a state, at the last batch": (stateful_workers, 2 * STEPS, {}),
    "worker processes with a state, inside": (stateful_workers, STEPS + 7, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_has_the_weights_of_a_stock_run(case: str, lengths: Path, tmp_path: Path) -> None:
    make, at, options = CASES[case]
    model, trained = resumed(make, lengths, at, tmp_path, **options)
    expected = stock((bucketed if make is bucketed else fixed_size)(lengths), **options)
    assert trained == expected.trained
    assert model.weights() == expected.weights()


@pytest.mark.parametrize("make", [with_workers, plain_bucketed])
def test_a_loader_without_a_state_does_not_resume_inside_an_epoch(make: Any, lengths: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a DataLoader has no state to go on from"):
        resumed(make, lengths, 7, tmp_path)


def test_a_stream_goes_on_with_the_next_epoch(lengths: Path, tmp_path: Path) -> None:
    """After a checkpoint at an epoch's end. Lightning 2.5 then makes two iterators, and tells neither an epoch."""
    whole, first, second = Regression(), Regression(), Regression()
    trainer().fit(whole, streamed(lengths))
    begun = trainer(max_epochs=EPOCHS - 1)
    begun.fit(first, streamed(lengths))
    begun.save_checkpoint(tmp_path / "kept.ckpt")
    trainer().fit(second, streamed(lengths), ckpt_path=tmp_path / "kept.ckpt")
    assert first.trained + second.trained == whole.trained
    assert second.weights() == whole.weights()


def pair(path: Path) -> Any:
    """A long loader, and a short one that begins again while the long one lasts."""
    short = BrandLoader(dataset := opened(path), BATCH, sampler=BrandSampler(dataset, subset=range(200)))
    return [fixed_size(path), short]


@pytest.mark.parametrize("at", [5, 7, 10, STEPS + 9])
def test_combined_loaders_resume_from_the_state_of_each(at: int, lengths: Path, tmp_path: Path) -> None:
    whole = Regression()
    trainer().fit(whole, pair(lengths))
    model, trained = resumed(pair, lengths, at, tmp_path)
    assert (trained, model.weights()) == (whole.trained, whole.weights())


def test_predict_and_overfit_refuse_encoded_positions_and_their_cure_works(lengths: Path) -> None:
    from brand.frameworks.lightning import BrandDataModule

    dataset = opened(lengths)
    for loader in (fixed_size(lengths), bucketed(lengths), with_workers(lengths), plain_bucketed(lengths)):
        with pytest.raises(UsageError, match="reads by random access"):
            trainer().predict(Regression(), loader)
    for loader in (fixed_size(lengths), bucketed(lengths), plain_bucketed(lengths), streamed(lengths)):
        with pytest.raises(UsageError, match="reads by random access"):
            trainer(overfit_batches=2).fit(Regression(), loader)
    cures = ({"dataloaders": DataLoader(dataset, batch_size=BATCH)},)
    for cure in (*cures, {"datamodule": BrandDataModule(predict=dataset, batch_size=BATCH)}):
        assert torch.cat(trainer().predict(Regression(), **cure)).tolist() == list(range(SAMPLES))
    for cure in (
        {"train_dataloaders": DataLoader(dataset, batch_size=BATCH)},
        {"datamodule": BrandDataModule(dataset, batch_size=BATCH)},
    ):
        model = Regression()
        trainer(overfit_batches=2, max_epochs=2).fit(model, **cure)
        assert [batch for _, batch in model.trained] == [list(range(BATCH)), list(range(BATCH, 2 * BATCH))] * 2


def test_a_module_takes_tests_subsets_and_batch_samplers(lengths: Path) -> None:
    from brand.frameworks.lightning import BrandDataModule

    dataset, model = opened(lengths), Regression()
    trainer().test(model, datamodule=BrandDataModule(test=dataset, batch_size=BATCH), verbose=False)
    assert sorted(index for _, batch in model.trained for index in batch) == list(range(SAMPLES))
    plan = LengthBatchSampler(dataset, "n", batch_length=250, subset=range(90))
    for train in (BrandSampler(dataset, subset=range(90)), plan):
        model = Regression()
        trainer(max_epochs=1).fit(model, datamodule=BrandDataModule(train, batch_size=BATCH))
        assert sorted(index for _, batch in model.trained for index in batch) == list(range(90))
    with pytest.raises(UsageError, match="give the data set itself"):
        trainer().predict(Regression(), datamodule=BrandDataModule(dataset, batch_size=BATCH))
