"""Passes over a whole data set.

verify        is everything as it was written?
reindex       manifest and index, made again from the chunks alone
unpack        a converted folder back as it was
partition     a data set divided over the disks of several nodes
copying       a data set from one place to another, folders or stores
origins       the files of the copied data set, each read once
destinations  the target of a copy, and its files that are there already
passing       a chunk that passes by, compared with the index
copies        a file into another folder: a hard link or a copy
progress      how far a pass over all chunks is
"""
