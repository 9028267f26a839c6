"""Which samples does a rank fetch, in which batches, and from which sample does a run continue?

sampler         BrandSampler: the positions of this rank, and the loader state
positions       one iteration of a sampler
batch_samplers  LengthBatchSampler, PackedBatchSampler: batches of samples that differ in length
planned         the batches of an epoch, and one iteration of a batch sampler
upcoming        the epoch and position at which the next iteration begins
dealing         how frameworks divide the batches of a sampler
lengths         the length of each sample, before it is read
packed          tensors of packed rows
migration       migrate_state: a loader state for another version of a collection
"""
