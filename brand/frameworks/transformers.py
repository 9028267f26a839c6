"""How does the Hugging Face Trainer fetch in shuffled order, and continue from a checkpoint?

The Trainer counts optimizer steps, and skips batches to resume. The mixin gives it a loader that divides the positions
itself. It writes the loader state into each checkpoint, and continues from that state. The Trainer's count of steps is
valid only for the same number of processes and of samples per step, so the mixin refuses any other number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from torch.utils.data import DataLoader

from brand.errors import MissingExtraError, UsageError
from brand.frameworks.accelerate import PreparedLoader, prepare
from brand.torch import BrandLoader, BrandSampler

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise MissingExtraError("brand.frameworks.transformers needs Transformers: pip install transformers") from error

STATE_FILE: Final = "brand.json"
"""File in each checkpoint: the loader state, and the samples of one step of the Trainer."""


class BrandTrainerMixin:
    """A base class before `Trainer`: `class MyTrainer(BrandTrainerMixin, Trainer)`. It trains on a `BrandDataset`.

    With `dataloader_num_workers=0`, a `BrandLoader` makes the batches; otherwise a `DataLoader` with that many workers.
    """

    _resumed: dict[str, Any] | None = None

    def get_train_dataloader(self: Any) -> PreparedLoader:
        """Return a loader of every sample once an epoch, in random order: that of `data_seed`, or else of `seed`."""
        args = self.args
        sampler = BrandSampler(self.train_dataset, seed=args.seed if args.data_seed is None else args.data_seed)
        options: dict[str, Any] = {"sampler": sampler, "drop_last": args.dataloader_drop_last}
        options |= {"collate_fn": self.data_collator, "pin_memory": args.dataloader_pin_memory}
        kind: Any = BrandLoader
        if args.dataloader_num_workers:
            kind = DataLoader
            options |= {"num_workers": args.dataloader_num_workers, "prefetch_factor": args.dataloader_prefetch_factor}
            options["persistent_workers"] = args.dataloader_persistent_workers
        loader = prepare(self.accelerator, kind(self.train_dataset, args.per_device_train_batch_size, **options))
        if self._resumed is not None:
            loader.load_state_dict(self._resumed)
        self.remove_callback(_KeepState)  # of an earlier training
        self.add_callback(_KeepState(loader, self._step()))
        return loader

    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **more: Any) -> Any:
        """Train as the Trainer does. Raises `UsageError` if steps of the checkpoint have other numbers of samples."""
        folder = resume_from_checkpoint or None
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self._resumed = None
        if folder is not None:
            self._resumed = _read_state(Path(folder) / STATE_FILE, self._step())
            self.args.ignore_data_skip = True  # the loader itself goes on where it was
        return super().train(resume_from_checkpoint, *args, **more)  # type: ignore[misc]

    def _step(self: Any) -> dict[str, int]:
        """Return the numbers that determine the samples of one optimizer step."""
        processes, args = self.accelerator.num_processes, self.args
        each = {"batch": args.per_device_train_batch_size, "batches": args.gradient_accumulation_steps}
        return {"processes": processes, **each}


class _KeepState(TrainerCallback):  # type: ignore[misc]
    """Writes the loader state into each checkpoint."""

    def __init__(self, loader: PreparedLoader, step: dict[str, int]) -> None:
        self._loader, self._step = loader, step

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Write the loader state. The Trainer has made the checkpoint's folder."""
        if state.is_world_process_zero:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
            file.write_text(json.dumps({"step": self._step, "loader": self._loader.state_dict()}), encoding="utf-8")


def _read_state(file: Path, step: dict[str, int]) -> dict[str, Any]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        written, state = kept["step"], dict(kept["loader"])
    except FileNotFoundError:
        raise UsageError(f"{file} is not there: the checkpoint was not written with BrandTrainerMixin") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no state of a BrandTrainerMixin: {error!r}") from None
    if written != step:
        raise UsageError(
            f"the checkpoint was written with {written}, and this run has {step}: the Trainer counts steps, so go on "
            "with the same number of processes, samples a batch and batches a step (docs/guides/frameworks.md)"
        )
    return state
