"""Bytes: the location of a data set, and readers of its chunks.

location   the location of a data set: the version that a path names, names of its chunks, and readers for them
present    the numbers of a collection's versions, and which one is the present one
remote     a data set at a URL: its index on this machine, its chunks in the store
indexcopy  a child process that copies the index of a data set from a store
files      range reads from many files with few open: cached ranges at once, the rest all together
vectored   one large range read into many pieces of memory
fronts     the front of a chunk, read and checked
frontback  a pass over a whole data set, read from front to back, and its progress
crew       threads that copy together
ownfolder  folders and files that no other user can change
device     the storage device of a path, and its name
pagecache  whether the page cache holds a range of a file
"""
