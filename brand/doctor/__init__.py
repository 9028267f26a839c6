"""Does Brand work here, and if not, how can it be repaired?

packages  installed and missing packages, by purpose, and the result of a check
system    Python and the kernel; memory, processors, open files and folders
selftest  a small training in a child process
examine   all checks, one after the other, and those of a data set
"""
