"""Which positions of an epoch make a batch?

batching    batches of similar length, batches of packed rows, and the numbers that fix how an epoch is cut
"""
