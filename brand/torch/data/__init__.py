"""Which data sets can a sampler fetch from?

dataset     BrandDataset: a map-style data set
set_source  the samples of a data set for ints: direct reads and draws
mixture     Mixture: several data sets as one, with weights
drawable    the interface that a sampler and a loader need of a data set
habit       a hint for users who read in random order without a BrandSampler
handover    how a worker of a DataLoader sends a batch to the training process
crates      the shared memory through which it does so
"""
