"""Can Brand work here, and if not, what is to be done?

finding    what one check says              examine    all checks, one after the other
packages   what is installed and what is missing for what       importing  a child process that imports packages
system     Python, kernel, shared memory, sockets, page cache   limits     memory, processors, open files, folders
folder     a data set and the file system below it
selftest   a small training in a child process                  trial      what that process does
"""
