"""The costs of a run before it is run: decisions over plans are counted, and clocks turn the counts into time.

whatif     the time and the reads of a training, for each storage and memory that a user asks about
running    the work of each node in each epoch
drawing    the work of a server whose ranks draw a subset or have weights
alone      the contents of a server that is alone, through an epoch
pace       the clock of a node
storages   the time that a storage takes to read
together   the reads of several jobs that share a data server
following  draws and reads of jobs that follow the fastest job
rounds     draws and reads of jobs with online orders (JOADER)
"""
