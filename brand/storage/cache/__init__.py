"""A cache folder: samples of a data set on a local disk.

cachefolder  the samples that are held; how samples are stored, forgotten and published; a copy before a training
caches       the caches of a folder, the space that they leave free, and the folder of one cache
cachefiles   names and bytes of the files; part files, written at the offsets of the chunk, and freed again
"""
