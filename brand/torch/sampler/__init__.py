"""Which samples does a rank fetch, in which batches, and from which sample does a run continue?

sampler         BrandSampler: the positions of this rank, and the loader state; migrate_state
positions       one iteration of a sampler, and the place at which the next one begins
batch_samplers  LengthBatchSampler, PackedBatchSampler: batches of samples that differ in length
planned         the batches of an epoch, and one iteration of a batch sampler
frameworks      how frameworks divide the batches of a sampler
lightning_epochs  whether a Trainer trains exactly the rest of an epoch, and names the samples of predict
streams         whether a framework resumes an IterableDataset by skipping
packed          tensors of packed rows
"""
