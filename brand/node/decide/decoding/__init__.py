"""Feature: server-side decoding. The package decides which samples the decode workers decode next.

server_decoding  the next instructions to decode workers, and the decoded samples of a draw
workers          the states of the decode workers
specs            the decode specs of clients
ahead            the order in which the samples of a rank are decoded, and the eviction of decoded samples
queues           the rank for which a decode worker works next, by the measured time to decode a sample
allotment        the decode workers of each rank by Lobster's Algorithm 1, or in equal numbers
"""
