"""Which loaders does a Lightning Trainer need?

Lightning saves the state of a loader that has one, and leaves a `BrandLoader` and its sampler as they are. So the same
module trains on any number of processes, and `trainer.fit(..., ckpt_path=...)` goes on inside an epoch.
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
    """Draws for training, and for validation where there is a data set for it.

    Args:
        train: What is trained: a `BrandDataset` or a `Mixture`.
        val: What is validated after each epoch; None: nothing.
        batch_size: Samples of a batch of each process.
        seed: Fixes the order of all epochs.
        options: More arguments of `BrandLoader`: `threads`, `collate_fn`, `drop_last`, `pin_memory`, `ahead`.
    """

    def __init__(
        self,
        train: Drawable,
        val: Drawable | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.train, self.val, self.batch_size, self.seed, self.options = train, val, batch_size, seed, options

    def train_dataloader(self) -> BrandLoader:
        """Every sample once an epoch, in random order."""
        return self._loader(self.train)

    def val_dataloader(self) -> BrandLoader | list[Any]:
        """Every sample once; the order does not matter, the speed does."""
        return [] if self.val is None else self._loader(self.val)

    def _loader(self, dataset: Drawable) -> BrandLoader:
        sampler = BrandSampler(dataset, seed=self.seed)
        return BrandLoader(dataset, self.batch_size, sampler=sampler, **self.options)
