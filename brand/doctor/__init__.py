"""Does Brand work here, and if not, how can it be repaired?

packages    installed and missing packages, by purpose, and the result of a check
system      Python and the kernel; memory, processors, processes, open files and folders
filesystem  what the file system of a folder can do
selftest    a small training in a child process
examine     all checks, one after the other, and those of a data set
"""
