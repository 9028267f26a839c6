"""Ranges of bytes from files, and the data sets they belong to.

io           bytes: where a data set is, and readers of its chunks
dataset      a data set opened for reading: its index, its samples, its columns
cache        a cache folder: samples of a data set on a local disk
profile      how fast a storage is, measured, and the reads that suit it
maintenance  passes over a whole data set: verify, reindex, unpack, partition, copy
"""
