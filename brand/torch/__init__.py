"""What does a PyTorch training script see? With `brand.frameworks`, the only room that imports torch.

dataset     BrandDataset: a map-style data set of exact reads and draws
sampler     BrandSampler: which positions this rank draws, and the state of a run
positions   one iteration of a sampler
ordering    in which order a data set is drawn
origin      which samplers of several nodes are the same one
dealing     what frameworks do with the batches of a sampler
fetch       from ints to samples: exact reads and draws
mixture     Mixture: several data sets as one, with shares
drawable    what a sampler and a loader need of a data set
sequence    what a sampler draws at each position, and what its state says of that
mixed_sequence  the same for a mixture
mixed_fetched   samples of several members, in the order of one request
batch_plan  BatchPlan: which samples make a batch together, where they differ in length
planned     one iteration of a batch plan
lengths     how long each sample is, before it is read
packed      tensors of packed rows
handover    how a worker of a DataLoader hands a batch over
crates      the memory in which it does so
batches     where a loader takes its batches from
loader      BrandLoader: the DataLoader's contract without worker processes
iteration   one iteration of a loader: its threads, and the order of batches
assemble    batches made of columns; page-locked memory
agreement   whether the ranks of a job say the same
seeding     random transforms that are the same in every run
stages      where a loader's time goes
ranks       which rank of how many, on which node, of which job
way         which node server a data set draws from
discovery   how the node servers of a job find each other
habit       a hint for users who read at random without a BrandSampler
replacements    what the log says of replaced samples
labels      what code for ImageFolder needs beside samples
"""

from __future__ import annotations

from brand.errors import MissingExtraError

try:
    import torch as torch
except ImportError as error:
    raise MissingExtraError("brand.torch needs PyTorch: pip install 'brand-data[train]'") from error

from brand.torch.batch_plan import BatchPlan as BatchPlan
from brand.torch.dataset import BrandDataset as BrandDataset
from brand.torch.loader import BrandLoader as BrandLoader
from brand.torch.mixture import Mixture as Mixture
from brand.torch.sampler import BrandSampler as BrandSampler

__all__ = ["BatchPlan", "BrandDataset", "BrandLoader", "BrandSampler", "Mixture"]
