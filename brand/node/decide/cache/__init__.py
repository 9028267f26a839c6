"""Which samples do the memory cache and the cache folder hold?

keeping  when the node chooses its cached samples again
caching  the contents of the cache folder
placing  the placement of the cache folder
writing  the samples that are written to it
leaving  the samples that are evicted from it
"""
