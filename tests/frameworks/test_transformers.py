"""The Hugging Face Trainer with `BrandTrainerMixin` trains as a Trainer with its own sampler over the same order."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, Subset

from brand import BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler
from brand.errors import UsageError
from tests.frameworks.trainings import BATCH, SEED, InOrder, Net, launch, open_data

transformers = pytest.importorskip("transformers")

from brand.frameworks.accelerate import prepare  # noqa: E402
from brand.frameworks.transformers import BrandTrainerMixin  # noqa: E402

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]


NEW = pytest.mark.skipif(
    int(transformers.__version__.partition(".")[0]) < 5,
    reason="this Trainer takes the batch size of a checkpoint, and resumes on CPUs in one process only",
)


class Drawn(BrandTrainerMixin, transformers.Trainer):  # type: ignore[misc,name-defined]
    """As the page says."""


class Stock(transformers.Trainer):  # type: ignore[misc,name-defined]
    """The Trainer's own sampler, over samples that are in order."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def arguments(folder: Path, **more: Any) -> Any:
    """Settings that save every second step."""
    options: dict[str, Any] = {"per_device_train_batch_size": BATCH, "num_train_epochs": 2, "learning_rate": 0.05}
    options |= {"save_steps": 2, "logging_steps": 1, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    options |= {"gradient_accumulation_steps": 4, "seed": SEED}
    return transformers.TrainingArguments(output_dir=str(folder), **options | more)


def make(kind: Any, data: Any, args: Any, model: Net | None = None, **more: Any) -> Any:
    """A Trainer that prints nothing."""
    trainer = kind(model=model or Net(), args=args, train_dataset=data, **more)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def train(kind: Any, data: Any, folder: Path, resume: Path | None = None, dropout: float = 0.0, **more: Any) -> Any:
    """The weights after a training, and what its log says of each step."""
    trainer = make(kind, data, arguments(folder, **more), Net(dropout))
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    steps = [(line["step"], line["epoch"], line["loss"]) for line in trainer.state.log_history if "loss" in line]
    return trainer.model.weights(), steps


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, the first one first."""
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


@pytest.mark.parametrize(
    "options",
    [
        {},  # 19 batches: the last step has three
        {"gradient_accumulation_steps": 1, "save_steps": 7},
        {"per_device_train_batch_size": 25},  # 24 batches: no remainder
        {"max_steps": 8},
        {"num_train_epochs": 1.5},
        {"dataloader_drop_last": True},  # 18 batches
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "dataloader_persistent_workers": True},
        {"save_strategy": "epoch", "num_train_epochs": 3},
        {"gradient_accumulation_steps": 30, "num_train_epochs": 3, "save_steps": 1},  # one step an epoch
    ],
    ids=str,
)
def test_weights_are_those_of_the_trainers_own_sampler(numbers: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Whole and resumed from every checkpoint: inside epochs, in their last windows, and at their ends."""
    data = open_data(numbers)
    alone = {name: value for name, value in options.items() if "worker" not in name and "prefetch" not in name}
    assert train(Drawn, data, tmp_path / "own", **options) == train(Stock, InOrder(data), tmp_path / "stock", **alone)
    whole = train(Drawn, data, tmp_path / "whole", dropout=0.2, **options)
    for checkpoint in checkpoints(tmp_path / "whole")[:-1]:  # the Trainer goes a step too far from a finished run
        assert train(Drawn, data, tmp_path / "resumed", checkpoint, dropout=0.2, **options) == whole, checkpoint


def test_a_resumed_run_can_be_resumed_again(numbers: Path, tmp_path: Path) -> None:
    """A checkpoint that a resumed run has written, in the epoch in which it was resumed and in the next one."""
    data = open_data(numbers)
    whole = train(Drawn, data, tmp_path / "whole", dropout=0.2)
    first = tmp_path / "whole" / "checkpoint-2"
    assert train(Drawn, data, tmp_path / "second", first, dropout=0.2) == whole
    assert len(checkpoints(tmp_path / "second")) == 4
    for checkpoint in checkpoints(tmp_path / "second"):
        assert train(Drawn, data, tmp_path / "third", checkpoint, dropout=0.2) == whole, checkpoint


def test_resume_from_the_last_checkpoint(numbers: Path, tmp_path: Path) -> None:
    """`resume_from_checkpoint=True`; a checkpoint without the mixin's state is refused."""
    data = open_data(numbers)
    train(Drawn, data, tmp_path, max_steps=6, lr_scheduler_type="constant")
    trainer = make(Drawn, data, arguments(tmp_path, lr_scheduler_type="constant"))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model.weights() == train(Drawn, data, tmp_path / "whole", lr_scheduler_type="constant")[0]
    (tmp_path / "checkpoint-2" / "brand.json").unlink()
    with pytest.raises(UsageError, match="not written with BrandTrainerMixin"):
        train(Drawn, data, tmp_path, tmp_path / "checkpoint-2")


@NEW
def test_other_samples_per_step_are_refused_and_equally_many_are_exact(numbers: Path, tmp_path: Path) -> None:
    """Steps of 128 samples, whatever they are made of, are the same steps."""
    data = open_data(numbers)
    train(Drawn, data, tmp_path, max_steps=3, save_steps=3)
    checkpoint = tmp_path / "checkpoint-3"
    with pytest.raises(UsageError, match=r"same number of samples per optimizer step.*docs/guides/frameworks.md"):
        train(Drawn, data, tmp_path / "other", checkpoint, gradient_accumulation_steps=2)
    seen = []
    for batch in (BATCH, 2 * BATCH):
        steps = 4 * BATCH // batch
        args = arguments(tmp_path / "same", per_device_train_batch_size=batch, gradient_accumulation_steps=steps)
        trainer = make(Drawn, data, args)
        trainer.train(resume_from_checkpoint=str(checkpoint))
        seen.append([index for indices in trainer.model.seen for index in indices])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * 600 - 3 * 128


def test_an_epoch_that_was_ended_early_is_refused(numbers: Path, tmp_path: Path) -> None:
    """The Trainer's count of steps would lead to another epoch."""

    class EndsFirst(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = state.global_step == 2

    data = open_data(numbers)
    make(Drawn, data, arguments(tmp_path), callbacks=[EndsFirst()]).train()
    with pytest.raises(UsageError, match="end no epoch early"):
        train(Drawn, data, tmp_path / "resumed", tmp_path / "checkpoint-6")


@NEW
@pytest.mark.parametrize(("folder", "options"), [("even", {"dataloader_drop_last": True}), ("odd", {})])
def test_two_processes(numbers: Path, tmp_path: Path, folder: str, options: dict[str, Any]) -> None:
    """Weights as with the Trainer's own sampler, if batches are whole; and as without a stop, from every checkpoint."""
    (own := tmp_path / folder).mkdir()
    results = launch(2, f"{__name__}:of_two", numbers, own, **options)
    for result in results:
        assert result["resumed"] == [result["whole"]] * len(result["resumed"])
        assert len(result["resumed"]) == 3
        if options:
            assert result["own"] == result["stock"]
    assert results[0]["whole"] == results[1]["whole"]


def of_two(path: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Return the weights and losses of each of two processes."""
    data, run = open_data(path), {"gradient_accumulation_steps": 4, **options}
    found: dict[str, Any] = {"resumed": []}
    if options:
        found["own"] = train(Drawn, data, folder / "own", **run)[0]
        found["stock"] = train(Stock, InOrder(data, ranks=2), folder / "stock", **run)[0]
    found["whole"] = train(Drawn, data, folder / "whole", dropout=0.2, **run)[0]
    for checkpoint in checkpoints(folder / "whole"):
        found["resumed"].append(train(Drawn, data, folder / "resumed", checkpoint, dropout=0.2, **run)[0])
    return found


@NEW
def test_another_number_of_processes_with_the_same_steps(numbers: Path, tmp_path: Path) -> None:
    """One process with batches of 32 has written the checkpoint, two with batches of 16 continue."""
    data = open_data(numbers)
    train(Drawn, data, tmp_path, max_steps=3, save_steps=3)
    args = arguments(tmp_path / "one")
    trainer = make(Drawn, data, args)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    ranks = launch(2, f"{__name__}:of_half", numbers, tmp_path)
    together = [sorted(a + b) for a, b in zip(*ranks, strict=True)]
    assert together == [sorted(batch) for batch in trainer.model.seen]


def of_half(path: Path, folder: Path) -> list[list[int]]:
    """The samples that one of two processes trains after the checkpoint."""
    args = arguments(folder / "two", per_device_train_batch_size=BATCH // 2)
    trainer = make(Drawn, open_data(path), args)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    return trainer.model.seen  # type: ignore[no-any-return]


def test_several_gpus_in_one_process(numbers: Path, tmp_path: Path) -> None:
    """With DataParallel, a batch is for all GPUs of the process."""
    data = open_data(numbers)
    sizes = []
    for kind, samples in ((Drawn, data), (Stock, InOrder(data))):
        args = arguments(tmp_path)
        args._n_gpu = 2  # as on a machine with two; DataParallel without any GPU calls the model itself
        trainer = make(kind, samples, args)
        trainer.train()
        sizes.append([len(batch) for batch in trainer.model.seen])
    assert sizes[0] == sizes[1]
    assert sizes[0][0] == 2 * BATCH


class Small(Net):
    """A model whose memory is enough for 20 samples."""

    def forward(self, index: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(index) > 20:
            raise RuntimeError("CUDA out of memory.")
        return super().forward(index, x, labels)


def test_auto_find_batch_size(numbers: Path, tmp_path: Path) -> None:
    """The batch that the Trainer has found, as with its own sampler; a checkpoint has it, too."""
    data, seen = open_data(numbers), []
    for kind, samples in ((Drawn, data), (Stock, InOrder(data))):
        trainer = make(kind, samples, arguments(tmp_path / kind.__name__, auto_find_batch_size=True), Small())
        trainer.train()
        seen.append((trainer.model.seen, trainer.model.weights()))
    assert seen[0] == seen[1]
    assert 10 < len(seen[0][0][0]) <= 20
    checkpoint = checkpoints(tmp_path / "Drawn")[2]
    trainer = make(Drawn, data, arguments(tmp_path / "resumed", auto_find_batch_size=True), Small())
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.model.weights() == seen[0][1]


def test_hyperparameter_search(numbers: Path, tmp_path: Path) -> None:
    """Each trial trains every sample, saves in its own folder, and can be resumed from there."""
    pytest.importorskip("optuna")
    data = open_data(numbers)
    trainer = Drawn(model_init=lambda _: Net(), args=arguments(tmp_path), train_dataset=data, eval_dataset=data)
    trainer.remove_callback(transformers.PrinterCallback)
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.05)},
        backend="optuna",
        n_trials=2,
        compute_objective=lambda metrics: metrics["eval_loss"],
    )
    found = tmp_path / f"run-{best.run_id}" / "checkpoint-2" / "brand.json"
    assert found.exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "LengthBatchSampler"),
        ({"group_by_length": True}, "LengthBatchSampler"),
        ({"dataloader_num_workers": 1, "dataloader_in_order": False}, "in_order=False"),
    ],
    ids=str,
)
def test_options_that_are_refused(numbers: Path, tmp_path: Path, options: dict[str, Any], named: str) -> None:
    """By name, before anything is trained."""
    try:
        args = arguments(tmp_path, **options)
    except TypeError:
        pytest.skip("this version has no such option")
    with pytest.raises(UsageError, match=named):
        make(Drawn, open_data(numbers), args).train()


def test_ignore_data_skip_is_refused(numbers: Path, tmp_path: Path) -> None:
    """It would train samples twice; without it, a resumed run is exact."""
    data = open_data(numbers)
    whole = train(Drawn, data, tmp_path)
    with pytest.raises(UsageError, match="ignore_data_skip"):
        train(Drawn, data, tmp_path / "again", tmp_path / "checkpoint-2", ignore_data_skip=True)
    assert train(Drawn, data, tmp_path / "again", tmp_path / "checkpoint-2") == whole


def test_the_sequential_strategy(numbers: Path, tmp_path: Path) -> None:
    """The samples in the order in which they are stored, as the Trainer trains them."""
    try:
        args = arguments(tmp_path, train_sampling_strategy="sequential")
    except TypeError:
        pytest.skip("this version has no such option")
    trainer = make(Drawn, open_data(numbers), args)
    trainer.train()
    assert [index for batch in trainer.model.seen for index in batch] == 2 * list(range(600))


def test_data_seed(numbers: Path, tmp_path: Path) -> None:
    """It alone chooses the order."""
    data = open_data(numbers)
    first = train(Drawn, data, tmp_path, seed=1, data_seed=SEED)
    assert first == train(Drawn, data, tmp_path, seed=2, data_seed=SEED)
    assert first != train(Drawn, data, tmp_path, seed=2, data_seed=SEED + 1)


def test_a_subset(numbers: Path, tmp_path: Path) -> None:
    """A `Subset` of a data set, and a sampler of the user's own: 100 samples, in one order, resumed inside an epoch."""
    data, chosen = open_data(numbers), np.arange(600)[::6]

    class OwnSampler(Drawn):
        def _get_train_sampler(self, *_: Any) -> BrandSampler:
            return BrandSampler(data, seed=SEED, subset=chosen)

    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "save_steps": 1}
    whole = train(Drawn, Subset(data, chosen.tolist()), tmp_path / "whole", **options)
    assert train(OwnSampler, data, tmp_path / "own", **options) == whole
    assert train(OwnSampler, data, tmp_path / "again", tmp_path / "whole" / "checkpoint-1", **options) == whole
    trainer = make(OwnSampler, data, arguments(tmp_path, num_train_epochs=1))
    trainer.train()
    assert sorted(index for batch in trainer.model.seen for index in batch) == chosen.tolist()
    assert trainer.num_examples(trainer.get_train_dataloader()) == 100


def test_a_mixture(numbers: Path, tmp_path: Path) -> None:
    """Resumed from every checkpoint."""
    mixture = Mixture({open_data(numbers): 3, open_data(numbers): 1}, samples=400)
    whole = train(Drawn, mixture, tmp_path / "whole", dropout=0.2)
    for checkpoint in checkpoints(tmp_path / "whole"):
        assert train(Drawn, mixture, tmp_path / "resumed", checkpoint, dropout=0.2) == whole, checkpoint


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_similar_length(numbers: Path, tmp_path: Path, workers: int) -> None:
    """A `LengthBatchSampler` of equally large batches."""
    data = open_data(numbers)

    class ByLength(Drawn):
        def _get_train_sampler(self, *_: Any) -> LengthBatchSampler:
            return LengthBatchSampler(data, "label", batch_size=BATCH, seed=SEED)

    whole = train(ByLength, data, tmp_path / "whole", dropout=0.2, dataloader_num_workers=workers)
    for path in checkpoints(tmp_path / "whole"):
        again = train(ByLength, data, tmp_path / "again", path, dropout=0.2, dataloader_num_workers=workers)
        assert again == whole, path
    trainer = make(ByLength, data, arguments(tmp_path, num_train_epochs=1))
    trainer.train()
    assert sorted(index for batch in trainer.model.seen for index in batch) == list(range(600))
    assert len({index % 7 for index in trainer.model.seen[0]}) <= 3


def test_epochs_of_different_numbers_of_batches_are_refused(numbers: Path, tmp_path: Path) -> None:
    """The Trainer counts the same number in each epoch."""
    data = open_data(numbers)
    lengths = np.arange(600) % 7 + 1
    for sampler in (
        PackedBatchSampler(data, lengths, tokens_per_row=16, rows_per_batch=8),
        LengthBatchSampler(data, lengths, batch_length=128),
    ):

        class OwnSampler(Drawn):
            def _get_train_sampler(self, *_: Any, sampler: Any = sampler) -> Any:
                return sampler

        with pytest.raises(UsageError, match=r"brand\.frameworks\.accelerate\.prepare"):
            make(OwnSampler, data, arguments(tmp_path)).train()


class Stream(IterableDataset[Any]):
    """No data set of Brand."""

    def __iter__(self) -> Any:
        yield {"x": 1}


def test_other_data_sets_are_refused(numbers: Path, tmp_path: Path) -> None:
    """Also those that are only iterated over."""
    others: tuple[Any, ...] = ([{"x": 1}], Stream(), Subset(InOrder(open_data(numbers)), [0]))
    for data in others:
        with pytest.raises(UsageError, match="BrandTrainerMixin trains on a BrandDataset"):
            make(Drawn, data, arguments(tmp_path, max_steps=2)).train()


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluate_and_predict(numbers: Path, tmp_path: Path, workers: int) -> None:
    """Each sample once, in the order in which they are stored, as with the Trainer itself; a `Subset`, too."""
    data = open_data(numbers)
    options = {"per_device_eval_batch_size": 64, "dataloader_num_workers": workers}
    own, stock = (make(kind, data, arguments(tmp_path, **options)) for kind in (Drawn, transformers.Trainer))
    for samples, count in ((data, 600), (Subset(data, range(0, 600, 6)), 100)):
        assert own.evaluate(samples)["eval_loss"] == stock.evaluate(samples)["eval_loss"]
        first, second = own.predict(samples), stock.predict(samples)
        assert np.array_equal(first.predictions, second.predictions)
        assert first.predictions[:, 1].tolist() == list(range(0, 600, 600 // count))


def test_evaluation_while_training(numbers: Path, tmp_path: Path) -> None:
    """It leaves the training as it is, and a checkpoint after it resumes exactly."""
    data = open_data(numbers)
    plain = train(Drawn, data, tmp_path / "plain")[0]
    args = arguments(tmp_path / "with", eval_strategy="steps", eval_steps=1)
    trainer = make(Drawn, data, args, eval_dataset=data)
    trainer.train()
    assert trainer.model.weights() == plain
    assert train(Drawn, data, tmp_path / "resumed", tmp_path / "with" / "checkpoint-6")[0] == plain


def test_columns_that_the_model_does_not_take(numbers: Path, tmp_path: Path) -> None:
    """`remove_unused_columns` is True by default, and leaves them out before they are collated."""
    data = open_data(numbers)
    whole = train(Drawn, data, tmp_path)
    inputs = data.transform
    data.transform = lambda sample: inputs(sample) | {"text": object()}  # type: ignore[operator,misc]
    assert train(Drawn, data, tmp_path) == whole


def test_logged_epochs_never_decrease(numbers: Path, tmp_path: Path) -> None:
    """Also those of a resumed run."""
    data = open_data(numbers)
    train(Drawn, data, tmp_path / "whole")
    _, steps = train(Drawn, data, tmp_path / "resumed", tmp_path / "whole" / "checkpoint-4")
    assert [step for step, _, _ in steps] == list(range(1, 11))
    assert all(before < after for (_, before, _), (_, after, _) in pairwise(steps))


def test_full_determinism(numbers: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Callbacks are restored from a checkpoint, too; nothing is logged as a fault."""
    data = open_data(numbers)
    options: dict[str, Any] = {"full_determinism": True, "restore_callback_states_from_checkpoint": True}
    whole = train(Drawn, data, tmp_path / "whole", dropout=0.2, **options)
    with caplog.at_level(logging.WARNING, "brand"):
        assert (
            train(Drawn, data, tmp_path / "two", tmp_path / "whole" / "checkpoint-6", dropout=0.2, **options) == whole
        )
    assert not [record for record in caplog.records if record.name == "brand"]


def brand_loader(trainer: Any) -> Any:
    data = trainer.train_dataset
    return trainer.accelerator.prepare(BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=SEED)))


def prepared_loader(trainer: Any) -> Any:
    data = trainer.train_dataset
    return prepare(trainer.accelerator, BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=SEED)))


def planned_loader(trainer: Any) -> Any:
    data = trainer.train_dataset
    plan = LengthBatchSampler(data, "label", batch_size=BATCH, seed=SEED)
    return trainer.accelerator.prepare(DataLoader(data, batch_sampler=plan))


@pytest.mark.parametrize("loader_of", [brand_loader, prepared_loader, planned_loader])
def test_a_loader_that_a_trainer_cannot_resume_names_the_mixin(numbers: Path, tmp_path: Path, loader_of: Any) -> None:
    """With the mixin, the training continues from the checkpoint."""

    class WithLoader(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return loader_of(self)

    whole, _ = train(Drawn, data := open_data(numbers), tmp_path)
    first, *_ = checkpoints(tmp_path)
    with pytest.raises(UsageError, match=r"transformers\.BrandTrainerMixin"):
        train(WithLoader, data, tmp_path / "again", first)
    assert train(Drawn, data, tmp_path / "mixin", first)[0] == whole
