"""The parts that all orders need: plans, the data mapping, random numbers, and the base classes of policies.

policy      the base class of policies, and from the options of a user to a policy
plan        the tables of an epoch, and memory over time
access      the groups from which positions are drawn, in parts
mapping     samples, chunks, groups, abstract memory (paper, section 3.2)
part        subsets of the samples
joins       the points at which a job joined other jobs
placement   the samples that are cached in memory or in a cache folder
owners      the node that owns each chunk, the node that caches a sample, and the rank that draws each position
tickets     epoch and position as one int
random      bits and permutations, the same on every machine
feistel     a permutation without a table: any positions of it, and its inverse
dtypes      the smallest types of numpy that hold given numbers, and a mask of bits
"""
