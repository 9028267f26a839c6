"""What does a PyTorch training script see? With `brand.frameworks`, the only room that imports torch.

dataset     BrandDataset: a map-style data set of exact reads and draws
sampler     BrandSampler: which positions this rank draws, and the state of a run
positions   one iteration of a sampler
set_source  how a data set gives samples for ints: exact reads and draws
ordering    in which order a data set is drawn, and which part of it
origin      which samplers of several nodes are the same one
dealing     what frameworks do with the batches of a sampler
fetch       from ints to samples, with one request
fetched     from samples to columns and decoded samples
spans       what a request waited for
mixture     Mixture: several data sets as one, with shares
mixture_members  which member a ticket belongs to
drawable    what a sampler and a loader need of a data set
draw_port   how a sampler's sequence reaches a data set and its server
sequence    what a sampler draws at each position, and what its state says of that
mixed_sequence  the same for a mixture
mixed_fetched   samples of several members, in the order of one request
batch_plan  BatchPlan: which samples make a batch together, where they differ in length
planned     the batches of an epoch, and one iteration of a batch plan
upcoming    where the next iteration of a sampler begins
lengths     how long each sample is, before it is read
packed      tensors of packed rows
handover    how a worker of a DataLoader hands a batch over
crates      the memory in which it does so
batches     where a loader takes its batches from
loader      BrandLoader: the DataLoader's contract without worker processes
iteration   one iteration of a loader: its threads, and the order of batches
gate        how many threads work at a time
threads     how many threads feed the loop
waits       why the training loop waits
assemble    batches made of columns; page-locked memory
seeding     random transforms that are the same in every run
stages      where a loader's time goes
ranks       which rank of how many, on which node, of which job
way         which node server a data set draws from
discovery   how the node servers of a job find each other, and whether its ranks agree
habit       a hint for users who read at random without a BrandSampler
replacements    what the log says of replaced samples
rebase      what becomes of a state of an older version of a collection
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
