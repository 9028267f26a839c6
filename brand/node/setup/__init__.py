"""Everything that is decided before a server runs.

server_spec  the specification of a server, of a node of a cluster, and its certificates
memory       how much memory samples may take
measure      the page size, the pages of each sample, and the home node of each sample
choose       orders and read sizes that users rarely set
weighted     the orders that a sampler draws for its subset and weights
caching      the cache folder
decoding     the memory and the processes that decode samples
"""
