"""Feature: server-side decoding. The package decides which samples the decode workers decode next.

preparing  the next instructions to decode workers, and the decoded samples of a draw
preparers  the states of the decode workers
wants      the decode specs of clients
ahead      the order in which the samples of a rank are decoded
allotting  the rank for which a decode worker works next
allotment  lateness of each queue for a given number of threads
costs      measured time to decode a sample
clearing   eviction of decoded samples
"""
