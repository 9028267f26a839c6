"""What do the memory cache and the cache folder hold?

keeping  when the node chooses kept samples anew
caching  what the cache folder holds
placing  which placement it has
writing  what is written to it
leaving  what leaves it
"""
