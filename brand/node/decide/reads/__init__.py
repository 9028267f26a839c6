"""Which samples are read next?

reads      the read that starts next
stripes    the operations that load the absent samples of the next reads
gaps       whether gaps are read
wholes     reads of neighbouring samples
under_way  the reads that have started and not ended
"""
