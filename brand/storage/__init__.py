"""Ranges of bytes from files, and the data sets they belong to.

location   where a data set lies: names of its chunks, and readers for them
files      range reads from many files with few open: cached ranges at once, the rest all together
vectored   one large range into many pieces of memory
fronts     the front of a chunk: read, checked, and the right one
tables     whether the index agrees with the chunks' own tables
catalogue  what a data set is, and where its samples are: indices -> places -> rows
dataset    a data set opened for reading: rows -> ranges -> checked records
reader     `brand.open`, and the `Reader` that it returns
joined     a version of a collection as one data set (`joinedarrays`, `partindex`, `lists`)
blame      which file, chunk and sample is to blame, and which error says so
verify     is everything as it was written?
progress   how far a pass over all chunks is
summary    sizes and classes in numbers
reindex    manifest and index, made again from the chunks alone
unpack     a converted folder back as it was
partition  a data set divided over the disks of several nodes
copying    a data set from one place to another, folders or stores
origins    what is copied: its files, each read once           destinations  where a copy goes, and what is there
passing    a chunk that passes by, compared with the index
copies     a file into another folder: a hard link or a copy
"""
