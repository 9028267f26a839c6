"""Byte ranges of files, and the data sets that the files belong to.

io           bytes: the location of a data set, and readers of its chunks
dataset      a data set opened for reading: its index, its samples, its columns
cache        a cache folder: samples of a data set on a local disk
profile      the measured speed of a storage, and the reads that suit it
maintenance  passes over a whole data set: verify, reindex, unpack, partition, copy
"""
