"""Which samples are read next?

reads       the read that starts next, and the effects of reads that end
sources     which source is fastest, a cache folder or the storage: HDMLP's model, with measured rates
operations  the operations that load the absent samples of the next reads
"""
