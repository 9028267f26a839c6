"""Who draws what, when, and what must have been read by then? Pure: arrays in, plan out.

random      bits and permutations that are the same everywhere
mapping     samples, chunks, groups, abstract memory (paper, section 3.2)
plan        the tables that every protocol makes, and what follows from them: memory over time
placement   which samples stay in memory or in a cache folder
stripes     the default protocol
slots       the paper's protocol (section 3.3)
uniform     a uniform shuffle of single samples
pool        chunk-wise shuffle, a baseline
minio       `uniform` under the name of a baseline
prefetch    the paper's protocol across nodes: what nodes ask for, and what is sent ahead (section 3.4)
batching    batches of samples of similar length
packing     batches of packed rows
batch_limits    what fixes how an epoch is cut into batches
owners      which node owns which chunk
split       which rank draws which position, so that ranks first take what their own node owns
order       what fixes the order of every epoch; makes plans
policy      what of it a protocol decides: the seam at which one is added
policies    which policies there are, by name
flat        JSON of the first two: stripe_policy, slot_policy
tickets     epoch and position as one int
"""
