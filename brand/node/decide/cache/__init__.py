"""Which samples do the memory cache and the cache folder hold?

keeping  when the node chooses its cached samples again, and the placement of the cache folder
caching  the contents of the cache folders, and the samples that are written to them and evicted from them
"""
