"""Bytes: where a data set is, and readers of its chunks.

location   where a data set is: names of its chunks, and readers for them
versions   which version of a collection a path names
remote     a data set at a URL: its index on this machine, its chunks in the store
indexcopy  a child process that copies the index of a data set from a store
files      range reads from many files with few open: cached ranges at once, the rest all together
vectored   one large range into many pieces of memory
fronts     the front of a chunk: read, checked, and the right one
frontback  a pass over a whole data set, read from front to back
crew       threads that copy together
ownfolder  folders and files that no other user can change
device     the storage that a path is on, and its name
pagecache  whether the page cache holds a part of a file
"""
