"""How does the Hugging Face Trainer fetch in shuffled order, and continue from a checkpoint?

The Trainer counts optimizer steps, and skips batches to resume. The mixin gives it a loader that divides the positions
itself, and writes the loader state into each checkpoint. A resumed loader begins at its state, and the batches that the
Trainer skips are empty, so that its count of steps continues. If that count does not lead to the place of the state,
the mixin refuses to resume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset

from brand.errors import MissingExtraError, UsageError
from brand.frameworks.accelerate import PreparedLoader
from brand.torch import BrandLoader, BrandSampler
from brand.torch.data.drawable import Drawable
from brand.torch.sampler.batch_samplers import PlannedBatchSampler

try:
    from transformers import TrainerState
    from transformers.trainer_utils import get_last_checkpoint, seed_worker
except ImportError as error:
    raise MissingExtraError("brand.frameworks.transformers needs Transformers: pip install transformers") from error

STATE_FILE: Final = "brand.json"
"""File in each checkpoint: the loader state."""
_NEW_OPTIONS: Final = ("multiprocessing_context", "in_order")
"""Options of a `DataLoader` that only newer versions of the Trainer have."""


class BrandTrainerMixin:
    """A base class before `Trainer`: `class MyTrainer(BrandTrainerMixin, Trainer)`. It trains on a `BrandDataset`.

    `train_dataset` may also be a `Mixture`, or a `Subset` of a `BrandDataset`. With `dataloader_num_workers=0`, a
    `BrandLoader` makes the batches; otherwise a `DataLoader` with that many workers.
    """

    _checkpoint: Path | None = None
    """Folder to resume from."""

    def _get_train_sampler(self: Any, *_: Any) -> BrandSampler | PlannedBatchSampler:
        """Return the sampler: every sample once an epoch, in the random order of `data_seed`, or else of `seed`.

        Override it to return another `BrandSampler`, or a `LengthBatchSampler`.
        """
        data, args = self.train_dataset, self.args
        data, subset = (data.dataset, data.indices) if isinstance(data, Subset) else (data, None)
        if not isinstance(data, Drawable):
            raise UsageError(
                "BrandTrainerMixin trains on a BrandDataset, a Mixture, or a Subset of a BrandDataset, and "
                f"train_dataset is a {type(data).__name__}: convert it first (docs/guides/import.md)"
            )
        strategy = getattr(args, "train_sampling_strategy", "random")
        if getattr(args, "group_by_length", False) or strategy not in ("random", "sequential"):
            raise UsageError(
                "TrainingArguments ask for batches by length: leave out group_by_length or train_sampling_strategy, "
                "and return a LengthBatchSampler from _get_train_sampler (docs/guides/frameworks.md)"
            )
        seed = args.seed if args.data_seed is None else args.data_seed
        return BrandSampler(data, seed=seed, subset=subset, shuffle=strategy == "random")

    def get_train_dataloader(self: Any) -> PreparedLoader:
        """Return the loader of the training. Raises `UsageError` if the Trainer would continue at another place."""
        args, sampler = self.args, self._get_train_sampler(self.train_dataset)
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        options: dict[str, Any] = {"collate_fn": collate, "pin_memory": args.dataloader_pin_memory}
        kind: Any = BrandLoader
        if args.dataloader_num_workers:
            kind, names = DataLoader, ("num_workers", "persistent_workers", "prefetch_factor", *_NEW_OPTIONS)
            options |= {
                name: getattr(args, f"dataloader_{name}") for name in names if hasattr(args, f"dataloader_{name}")
            }
            options["worker_init_fn"] = partial(
                seed_worker, num_workers=args.dataloader_num_workers, rank=args.process_index
            )
        if isinstance(sampler, PlannedBatchSampler):
            options["batch_sampler"] = sampler
        else:
            options |= {
                "batch_size": self._train_batch_size,
                "sampler": sampler,
                "drop_last": args.dataloader_drop_last,
            }
        self._loader = loader = _TrainerLoader(kind(sampler.dataset, **options), self.accelerator)
        if self._checkpoint is not None:
            steps = TrainerState.load_from_json(str(self._checkpoint / "trainer_state.json")).global_step
            loader.resume(_read_state(self._checkpoint / STATE_FILE), steps, args.gradient_accumulation_steps)
        return loader

    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **more: Any) -> Any:
        """Train as the Trainer does. Raises `UsageError` if a resumed training would not continue exactly."""
        last = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        self._checkpoint = Path(last) if last else None
        if last and self.args.ignore_data_skip:
            raise UsageError(
                "ignore_data_skip=True would train samples of an epoch twice: leave it out. Skipped samples are not "
                "fetched, so skipping takes no time (docs/guides/frameworks.md)"
            )
        return super().train(resume_from_checkpoint, *args, **more)  # type: ignore[misc]

    def _save_rng_state(self: Any, output_dir: str) -> None:
        """Write the loader state, too. The Trainer calls this for every checkpoint from which it can resume."""
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        if self.is_world_process_zero():
            (Path(output_dir) / STATE_FILE).write_text(json.dumps(self._loader.state_dict()), encoding="utf-8")


class _TrainerLoader(PreparedLoader):
    """A loader of which the Trainer skips the trained batches: `skip_first_batches` makes a `DataLoader` of it.

    That loader takes the batches, which are made already, from `batch_sampler` and passes them on.
    """

    def __init__(self, loader: DataLoader[Any], accelerator: Any) -> None:
        super().__init__(loader, accelerator)
        sampler = self.sampler
        if isinstance(sampler, PlannedBatchSampler) and (
            sampler.limits.size is None or sampler.limits.most is not None
        ):
            raise UsageError(
                "epochs of this batch sampler have different numbers of batches, and the Trainer counts the same "
                "number in each: give LengthBatchSampler(batch_size=) alone, or train with Accelerate and "
                "brand.frameworks.accelerate.prepare (docs/guides/frameworks.md)"
            )
        self.dataset = _MadeBatches(sampler._sequence.samples)
        self.batch_sampler, self._trained = _TrainedFirst(self), 0

    def resume(self, state: dict[str, Any], steps: int, accumulated: int) -> None:
        """Continue from a state, after this many optimizer steps.

        Raises `UsageError` if the Trainer's count of steps leads to another place.
        """
        self.load_state_dict(state)
        epoch, step = divmod(steps, max(1, -(-len(self) // accumulated)))
        self._trained = step * accumulated
        place, (_, ranks) = {"epoch": epoch}, self.sampler._ranks()
        if self.batch_size is None:  # with a batch sampler
            place["batch"] = self._trained * ranks
        else:
            place["position"] = self._trained * ranks * self.batch_size
        found = {name: state.get(name) for name in place}
        if found != place:
            raise UsageError(
                f"the checkpoint is at {found}, and the Trainer, which counts steps, would continue at {place}: resume "
                "with the same number of samples per optimizer step (processes x batch x gradient accumulation), and "
                "end no epoch early before a checkpoint (docs/guides/frameworks.md)"
            )

    def skipped(self) -> Iterator[Any]:
        """Yield as many empty batches as were trained before the checkpoint, then the others."""
        yield from repeat((), self._trained)
        yield from self

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """Return a batch that is made already, for the `DataLoader` of `skip_first_batches`."""
        return batch


class _TrainedFirst(BatchSampler):
    """The batches of a loader, those first that were trained before the checkpoint."""

    def __init__(self, loader: _TrainerLoader) -> None:
        sampler: Any = loader.sampler
        super().__init__(sampler, 1, drop_last=False)
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self._loader.skipped()

    def __len__(self) -> int:
        return len(self._loader)


class _MadeBatches(Dataset[Any]):
    """The data set of a loader whose batches are made already."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, batch: Any) -> Any:
        return batch


def _read_state(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(f"{file} is not there: the checkpoint was not written with BrandTrainerMixin") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file} is no state of a BrandTrainerMixin: {error!r}") from None
