"""Ranges of bytes from files, and the data sets they belong to.

location   where a data set lies: what reads its chunks there, and what they are called
files      range reads from many files with few open: what is cached at once, the rest all together
vectored   one large range into many pieces of memory
cuts       which ranges are read for some samples
fronts     the front of a chunk, and that it is the one that is meant
tables     that the index says what the chunks' own tables say
catalogue  what a data set is, and where its samples are: indices -> places -> rows
dataset    a data set opened for reading: rows -> ranges -> checked records
blame      which file, chunk and sample is to blame, and which error says so
verify     is everything as it was written?
progress   how far a pass over all chunks is
summary    sizes and classes in numbers
reindex    manifest and index again from the chunks alone
unpack     a converted folder back as it was
partition  a data set divided over the disks of several nodes
copies     a file into another folder: a hard link or a copy
"""
