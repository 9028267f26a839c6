"""Which data sets can a sampler fetch from?

dataset         BrandDataset: a map-style data set
set_source      the samples of a data set for ints: direct reads and draws
expanded        the samples that the elements of a list make of one stored sample
mixture         Mixture: several data sets as one, with weights
drawable        the interface that a sampler and a loader need of a data set
shared_batches  how a worker of a DataLoader sends a batch to the training process
"""
