"""Which samples are read next?

reads       the read that starts next, and the reads that have started and not ended
operations  the operations that load the absent samples of the next reads
"""
