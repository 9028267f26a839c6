"""Which samples does a rank draw, in which batches, and where does a run go on?

sampler     BrandSampler: which positions this rank draws, and the state of a run
positions   one iteration of a sampler
batch_samplers  which samples make a batch together, if they differ in length
planned     the batches of an epoch, and one iteration of a sampler of batches
upcoming    where the next iteration begins
dealing     what frameworks do with the batches of a sampler
lengths     how long each sample is, before it is read
packed      tensors of packed rows
migration   what becomes of a state of an older version of a collection
"""
