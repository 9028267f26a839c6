"""Does Brand work here, and if not, how can it be repaired?

finding    the result of one check                              examine    all checks, one after the other
packages   installed and missing packages, by purpose           importing  a child process that imports packages
system     Python, kernel, shared memory, sockets, page cache   limits     memory, processors, open files, folders
folder     a data set and the file system below it
selftest   a small training in a child process                  trial      the steps in that process
"""
