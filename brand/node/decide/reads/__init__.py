"""What is read next?

reads      which read starts next
stripes    which operations bring what is absent of the next reads
gaps       whether gaps are read through
wholes     reads of neighbouring samples
under_way  which reads have started and not ended
"""
