"""Which loaders does a Lightning Trainer need? The loaders of a `BrandDataModule`.

Lightning saves the state of a loader that has one, and does not replace a `BrandLoader` or its sampler. So the same
module trains on any number of processes, and `trainer.fit(..., ckpt_path=...)` continues inside an epoch.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from brand.errors import MissingExtraError, UsageError
from brand.torch import BrandLoader, BrandSampler
from brand.torch.data.drawable import Drawable
from brand.torch.sampler.batch_samplers import LengthBatchSampler, PackedBatchSampler, PlannedBatchSampler

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise MissingExtraError("brand.frameworks.lightning needs Lightning: pip install lightning") from error

Samples = Drawable | BrandSampler | LengthBatchSampler | PackedBatchSampler


class BrandDataModule(LightningDataModule):  # type: ignore[misc]
    """Shuffled fetches for training, validation and tests; random access for predictions and `overfit_batches`.

    Args:
        train: The samples to train on: a `BrandDataset`, a `Mixture`, or a sampler of one, for example
            `BrandSampler(dataset, subset=...)` or a `LengthBatchSampler`.
        val, test: The samples for `validate` and `test`, as for `train`; None: there are none.
        predict: The data set for `predict`, read by random access, so that predictions have the order of its indices.
        batch_size: Samples of a batch of each process. Batch samplers have limits of their own.
        seed: Seed of the order of all epochs of a data set.
        options: More arguments of `BrandLoader`: `num_workers`, `collate_fn`, `drop_last`, `pin_memory`,
            `prefetch_batches`.
    """

    def __init__(
        self,
        train: Samples | None = None,
        val: Samples | None = None,
        *,
        test: Samples | None = None,
        predict: Drawable | None = None,
        batch_size: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.train, self.val, self.test, self.predict = train, val, test, predict
        self.batch_size, self.seed, self.options = batch_size, seed, options

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of every sample once an epoch, in random order."""
        return self._loader(self.train, "train")

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Return a loader of every sample once, in the fastest order; an empty list if `val` is None."""
        return [] if self.val is None else self._loader(self.val, "val")

    def test_dataloader(self) -> DataLoader[Any]:
        """Return a loader of every sample once, in the fastest order."""
        return self._loader(self.test, "test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return a loader of every sample, in the order of indices."""
        return self._by_index(self.predict, "predict")

    def _loader(self, samples: Samples | None, name: str) -> DataLoader[Any]:
        if samples is None or (self.trainer is not None and self.trainer.overfit_batches):
            return self._by_index(samples, name)
        sampler = BrandSampler(samples, seed=self.seed) if isinstance(samples, Drawable) else samples
        if self.trainer is not None and name == "train":  # Lightning counts the batches of the epoch before it names it
            sampler.set_epoch(self.trainer.current_epoch)
        if isinstance(sampler, PlannedBatchSampler):
            options = {name: value for name, value in self.options.items() if name != "drop_last"}
            return BrandLoader(sampler.dataset, batch_sampler=sampler, **options)
        return BrandLoader(sampler.dataset, self.batch_size, sampler=sampler, **self.options)

    def _by_index(self, samples: Samples | None, name: str) -> DataLoader[Any]:
        if not isinstance(samples, Drawable):
            raise UsageError(f"BrandDataModule({name}={samples!r}): give the data set itself, to read by random access")
        return DataLoader(samples, batch_size=self.batch_size, collate_fn=self.options.get("collate_fn"))
