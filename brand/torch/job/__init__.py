"""Which rank, node, job and data server does this process belong to?

ranks      the rank, number of ranks, node and job of this process
resolver   the data server of a data set
discovery  how the data servers of a job find each other, and whether its ranks agree
callers    objects whose methods call
readers    whether a stream is fetched for this process alone
wrappers   wrappers of other libraries around a loader or data set
model_parallel  ranks that need the same samples, as those of tensor parallelism
rank_log   log messages about the rank of this process
twins      another process of the same command that fetches the same samples
orphans    a worker of a DataLoader whose training was killed
workers    whether this process is a worker of a loader
worker_signals  workers of a DataLoader and the signals for their training
"""
