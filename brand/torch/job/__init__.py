"""Which rank, node, job and data server does this process belong to?

ranks      the rank, number of ranks, node and job of this process
discovery  the data server of a data set, how the servers of a job find each other, and whether its ranks agree
rank_log   log messages about the rank of this process
twins      another process of the same command that fetches the same samples
"""
