"""Which classes does a PyTorch training script use? Data sets, samplers and a loader. Only this package and
`brand.frameworks` import torch.

loader      BrandLoader: the DataLoader's contract without worker processes
sampler     BrandSampler, LengthBatchSampler, PackedBatchSampler: samples and batches of a rank, and the loader state
data        BrandDataset, Mixture: map-style data sets that a sampler can fetch from
order       the sequence of a sampler: a ticket or an index at each position of each epoch
fetch       from ints to samples
job         the rank, node, job and data server that this process belongs to

Each package imports only those below it.
"""

from __future__ import annotations

from brand.errors import missing_extra

try:
    import torch as torch
except ImportError as error:
    raise missing_extra(error, "brand.torch needs PyTorch", "'brand-data[train]'") from error

from brand.torch.data.dataset import BrandDataset as BrandDataset
from brand.torch.data.mixture import Mixture as Mixture
from brand.torch.loader.loader import BrandLoader as BrandLoader
from brand.torch.sampler.batch_samplers import LengthBatchSampler as LengthBatchSampler
from brand.torch.sampler.batch_samplers import PackedBatchSampler as PackedBatchSampler
from brand.torch.sampler.sampler import BrandSampler as BrandSampler

__all__ = ["BrandDataset", "BrandLoader", "BrandSampler", "LengthBatchSampler", "Mixture", "PackedBatchSampler"]
