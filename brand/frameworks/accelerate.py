"""How does a loader that fetches in shuffled order run under Accelerate, and continue after a stop?

Accelerate's own `prepare` divides a loader's batches among the processes and resumes by skipping, which needs the same
number of processes and the right epoch. `prepare` in this module leaves the division to the `BrandSampler` and saves
its state: Accelerate writes it with `accelerator.save_state`, and any number of processes can continue from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from brand.errors import MissingExtraError, UsageError
from brand.torch import BrandSampler
from brand.torch.loader.loader import BrandLoader, OwnBatches
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
    `BrandSampler` as its sampler. Raises `UsageError` for any other loader; use `accelerator.prepare` for it.
    """
    prepared = PreparedLoader(loader, accelerator)
    accelerator.register_for_checkpointing(prepared)
    return prepared


class PreparedLoader(DataLoaderStateMixin):  # type: ignore[misc]
    """Iterates over a loader as a prepared loader of Accelerate does, one batch ahead.

    Each process gets its own samples. If the processes do not divide the last global batch evenly, some of its samples
    are repeated. `accelerator.gather_for_metrics` does not know of these repeats, so it does not remove them.
    """

    def __init__(self, loader: DataLoader[Any], accelerator: Accelerator) -> None:
        for sampler in (loader.sampler, loader.batch_sampler):
            if isinstance(sampler, PlannedBatchSampler):
                raise UsageError(
                    f"a {type(sampler).__name__} gives each process its own batches: iterate over the loader itself, "
                    "without preparing it, and keep its state_dict() next to the checkpoint"
                )
        if not isinstance(loader.sampler, BrandSampler) or loader.batch_size is None:
            other = "" if isinstance(loader, BrandLoader) else "; any other one is for accelerator.prepare(loader)"
            raise UsageError(
                f"a loader with a {type(loader.sampler).__name__}: give a BrandLoader or a DataLoader with "
                f"sampler=BrandSampler(dataset) and batch_size={other}"
            )
        self.loader, self.dataset, self.batch_size = loader, loader.dataset, loader.batch_size
        self.sampler: BrandSampler = loader.sampler
        self.sampler._pin_ranks(accelerator.process_index, accelerator.num_processes)
        self.batch_sampler = OwnBatches.of(loader.sampler, loader.batch_size, drop_last=loader.drop_last)
        self.total_batch_size = loader.batch_size * accelerator.num_processes
        self.gradient_state = GradientState()
        self._device = accelerator.device if accelerator.device_placement else None
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
                yield batch if self._device is None else send_to_device(batch, self._device)
                batch = following
        finally:
            self.end()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader state after the last batch returned; after an epoch's last batch, in the next epoch."""
        if self._handed_out is None or is_announced(self.sampler):
            return self.sampler.state_dict()
        if self.end_of_dataloader:
            return state_of_next(self.sampler)
        return self.sampler.state_dict(batches=self._handed_out, batch_size=self.batch_size)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration continue from a loader state."""
        self.sampler.load_state_dict(state)
        self._handed_out = None
