"""Which loaders does a Lightning Trainer need? The loaders of a `BrandDataModule`.

Lightning saves the state of a loader that has one, and does not replace a `BrandLoader` or its sampler. So the same
module trains on any number of processes, and `trainer.fit(..., ckpt_path=...)` continues inside an epoch.
"""

from __future__ import annotations

from typing import Any

from brand.errors import MissingExtraError
from brand.torch import BrandLoader, BrandSampler
from brand.torch.data.drawable import Drawable

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingExtraError("brand.frameworks.lightning needs Lightning: pip install lightning") from error


class BrandDataModule(LightningDataModule):  # type: ignore[misc]
    """Shuffled fetches for training, and for validation if there is a data set for it.

    Args:
        train: The data set to train on: a `BrandDataset` or a `Mixture`.
        val: The data set to validate on after each epoch; None: no validation.
        batch_size: Samples of a batch of each process.
        seed: Seed of the order of all epochs.
        options: More arguments of `BrandLoader`: `num_workers`, `collate_fn`, `drop_last`, `pin_memory`,
            `prefetch_batches`.
    """

    def __init__(
        self, train: Drawable, val: Drawable | None = None, *, batch_size: int, seed: int = 0, **options: Any
    ) -> None:
        super().__init__()
        self.train, self.val, self.batch_size, self.seed, self.options = train, val, batch_size, seed, options

    def train_dataloader(self) -> BrandLoader:
        """Return a loader of every sample once an epoch, in random order."""
        return self._loader(self.train)

    def val_dataloader(self) -> BrandLoader | list[Any]:
        """Return a loader of every sample once, in the fastest order; an empty list if `val` is None."""
        return [] if self.val is None else self._loader(self.val)

    def _loader(self, dataset: Drawable) -> BrandLoader:
        sampler = BrandSampler(dataset, seed=self.seed)
        return BrandLoader(dataset, self.batch_size, sampler=sampler, **self.options)
