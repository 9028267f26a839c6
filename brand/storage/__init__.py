"""Ranges of bytes from files, and the data sets they belong to.

files      range reads from many files with few open: what is cached at once, the rest all together
cuts       which ranges are read for some samples
fronts     the front of a chunk, and that it is the one that is meant
tables     that the index says what the chunks' own tables say
dataset    a data set opened for reading: indices -> rows -> ranges -> checked records
verify     is everything as it was written?
progress   how far a pass over all chunks is
summary    sizes and classes in numbers
reindex    manifest and index again from the chunks alone
unpack     a converted folder back as it was
partition  a data set divided over the disks of several nodes
copies     a file into another folder: a hard link or a copy
"""
