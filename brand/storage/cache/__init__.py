"""A cache folder: samples of a data set on a local disk.

cachefolder  the samples that are held, and how samples are stored, forgotten and published
cachehome    the folder of one cache: opened safely, locked, with its small files
cacheparts   part files: written at the offsets of the chunk, and freed again
cacheroom    the caches of a folder, and the space that they leave free
cachelayout  names and bytes of the files of a cache
cachefill    a data set copied into its cache folder before a training
"""
