"""Which classes does a training script use? Data sets, samplers and loaders. Only this package and `brand.frameworks`
import torch, and all but `BrandLoader` works without it, for JAX and NumPy.

loader      BrandLoader: the DataLoader's contract without worker processes; ArrayLoader: batches of NumPy arrays
sampler     BrandSampler, LengthBatchSampler, PackedBatchSampler: samples and batches of a rank, and the loader state
data        BrandDataset, Mixture: map-style data sets that a sampler can fetch from
order       the sequence of a sampler: a ticket or an index at each position of each epoch
fetch       from ints to samples
job         the rank, node, job and data server that this process belongs to
pytorch     PyTorch, or that it is not installed

Each package imports only those below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brand.torch.data.dataset import BrandDataset as BrandDataset
from brand.torch.data.mixture import Mixture as Mixture
from brand.torch.loader.arrays import ArrayLoader as ArrayLoader
from brand.torch.pytorch import missing_torch, torch
from brand.torch.sampler.batch_samplers import LengthBatchSampler as LengthBatchSampler
from brand.torch.sampler.batch_samplers import PackedBatchSampler as PackedBatchSampler
from brand.torch.sampler.sampler import BrandSampler as BrandSampler

if TYPE_CHECKING or torch is not None:
    from brand.torch.loader.loader import BrandLoader as BrandLoader

__all__ = [
    "ArrayLoader",
    "BrandDataset",
    "BrandLoader",
    "BrandSampler",
    "LengthBatchSampler",
    "Mixture",
    "PackedBatchSampler",
]


def __getattr__(name: str) -> Any:
    if name == "BrandLoader":
        raise missing_torch("BrandLoader needs PyTorch, and ArrayLoader does without")
    raise AttributeError(f"module 'brand.torch' has no attribute {name!r}")
