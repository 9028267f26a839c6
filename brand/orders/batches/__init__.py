"""Which positions of an epoch make a batch?

batching    batches of similar length       packing     batches of packed rows
batch_limits    the numbers that fix how an epoch is cut into batches
"""
