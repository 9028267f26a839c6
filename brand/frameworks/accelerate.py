"""How does a loader that fetches in shuffled order run under Accelerate, and continue after a stop?

Accelerate's own `prepare` divides a loader's batches among the processes and resumes by skipping, which needs the same
number of processes and the right epoch. `prepare` in this module leaves the division to the sampler and saves its
state: Accelerate writes it with `accelerator.save_state`, and any number of processes can continue from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from brand.errors import MissingExtraError, UsageError, counted
from brand.torch import BrandSampler
from brand.torch.job.model_parallel import refuse_model_parallel
from brand.torch.loader.loader import BrandLoader, PreparedBatches
from brand.torch.sampler.batch_samplers import PlannedBatchSampler
from brand.torch.sampler.sampler import is_announced, state_of_next

try:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device
except ImportError as error:
    raise MissingExtraError("brand.frameworks.accelerate needs Accelerate: pip install accelerate") from error

_END = object()


def prepare(accelerator: Accelerator, loader: DataLoader[Any]) -> PreparedLoader:
    """Return a loader for the training loop: batches on the accelerator's device, and a state that Accelerate saves.

    Call it in place of `accelerator.prepare(loader)`. `loader` is a `BrandLoader`, or a `DataLoader` with a
    `BrandSampler` as its sampler, or with a `LengthBatchSampler` or `PackedBatchSampler` as its batch sampler. Raises
    `UsageError` for any other loader; use `accelerator.prepare` for it.
    """
    prepared = PreparedLoader(loader, accelerator)
    accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """Iterates over a loader as a prepared loader of Accelerate does, one batch ahead.

    Each process gets its own samples. If the processes do not divide the last global batch evenly, some of its samples
    are repeated. `accelerator.gather_for_metrics` does not know of these repeats, so it does not remove them.
    """

    prefetch_factor = None  # for the DataLoader that `skip_first_batches` makes, which has no workers

    def __init__(self, loader: DataLoader[Any], accelerator: Accelerator) -> None:
        self.sampler = _sampler_of(loader)
        _check_options(loader, accelerator, drop_last=self.sampler.drop_last)
        if self.sampler.num_replicas is None and self.sampler._groups.copies == 1:
            refuse_model_parallel()
        self.loader, self.dataset, self.batch_size = loader, loader.dataset, loader.batch_size
        if isinstance(self.sampler, BrandSampler):
            self.sampler._pin_ranks(accelerator.process_index, accelerator.num_processes)
        sampler: Any = self.sampler
        self.batch_sampler: Any = PreparedBatches.of(sampler, loader.batch_size or 1, drop_last=loader.drop_last)
        self.total_batch_size = (loader.batch_size or 1) * accelerator.num_processes
        self.gradient_state = GradientState()
        self._accelerator = accelerator
        self._drop_last = True  # so Accelerate takes no samples away from the last global batch
        self._handed_out: int | None = None
        """Number of batches returned in the present iteration; None if the next iteration has not begun."""

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        try:
            batches = iter(self.loader)
            self._handed_out = None
            batch, number = next(batches, _END), 0
            while batch is not _END:
                following = next(batches, _END)
                self.end_of_dataloader = following is _END
                number += 1
                self._handed_out = number
                yield self._on_device(batch)
                batch = following
        finally:
            self.end()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader state after the last batch returned; after an epoch's last batch, in the next epoch.

        Raises `UsageError` between the batches of one optimizer step, whose gradients no checkpoint has.
        """
        if self._handed_out is None or is_announced(self.sampler):
            return self.sampler.state_dict()
        if not self._accelerator.sync_gradients:
            raise UsageError(
                f"{counted(self._handed_out, 'batch', 'batches')} of this epoch were returned, and the gradients of "
                "the last ones wait for the next optimizer step: a checkpoint does not have them. Save after a step, "
                "if accelerator.sync_gradients (docs/guides/frameworks.md)"
            )
        if self.end_of_dataloader:
            return state_of_next(self.sampler)
        if isinstance(self.sampler, PlannedBatchSampler):
            return self.sampler.state_dict(batches=self._handed_out)
        return self.sampler.state_dict(batches=self._handed_out, batch_size=self.batch_size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration continue from a loader state."""
        self.sampler.load_state_dict(state)
        self._handed_out = None

    def _on_device(self, batch: Any) -> Any:
        accelerator = self._accelerator
        if not accelerator.device_placement:
            return batch
        return send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)


def _sampler_of(loader: DataLoader[Any]) -> BrandSampler | PlannedBatchSampler:
    """Return the sampler of a loader. Raises `UsageError` if it is not one of Brand."""
    for sampler in (loader.sampler, loader.batch_sampler):
        if isinstance(sampler, PlannedBatchSampler):
            return sampler
    if isinstance(loader.sampler, BrandSampler) and loader.batch_size is not None:
        return loader.sampler
    other = "" if isinstance(loader, BrandLoader) else "; any other one is for accelerator.prepare(loader)"
    raise UsageError(
        f"a loader with a {type(loader.sampler).__name__}: give a BrandLoader or a DataLoader with "
        f"sampler=BrandSampler(dataset) and batch_size={other}"
    )


def _check_options(loader: DataLoader[Any], accelerator: Accelerator, *, drop_last: bool) -> None:
    """Raise `UsageError` if Accelerate would not divide the batches as the sampler does, or if it reorders them."""
    cures = {}
    if accelerator.num_processes > 1:
        if accelerator.split_batches:
            cures["split_batches=True"] = "give the loader the samples of one process as batch_size="
        if accelerator.dispatch_batches:
            cures["dispatch_batches=True"] = "each process fetches its own batches"
        if not accelerator.even_batches and not drop_last:
            cures["even_batches=False"] = (
                "all processes get equally many batches; BrandSampler(drop_last=True) repeats none"
            )
    if not getattr(loader, "in_order", True):
        cures["in_order=False"] = "a loader state counts batches in their order"
    for option, cure in cures.items():
        raise UsageError(f"leave out {option}: {cure} (docs/guides/frameworks.md)")
