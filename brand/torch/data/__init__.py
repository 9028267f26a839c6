"""Which data sets can a sampler draw from?

dataset     BrandDataset: a map-style data set
set_source  how it gives samples for ints: exact reads and draws
mixture     Mixture: several data sets as one, with shares
drawable    what a sampler and a loader need of a data set
habit       a hint for users who read at random without a BrandSampler
handover    how a worker of a DataLoader hands a batch over
crates      the memory in which it does so
"""
