"""Passes over a whole data set.

verify        check of all stored bytes
reindex       manifest and index, rebuilt from the chunks alone
unpack        a converted folder restored
partition     a data set divided over the disks of several nodes
copying       a data set copied from one place to another, folders or stores
endpoints     the source of a copy, each file read once, and its target, with the files that exist already
copies        a file placed in another folder: a hard link or a copy
"""
