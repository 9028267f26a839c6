"""Which samples are read next?

reads       the read that starts next, and the effects of reads that end
operations  the operations that load the absent samples of the next reads
"""
