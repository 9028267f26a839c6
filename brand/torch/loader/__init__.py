"""How are batches made, in threads or in processes?

loader     BrandLoader: the DataLoader's contract
tensors    its batches: tensors, collated as PyTorch does it
arrays     ArrayLoader: batches of NumPy arrays, without PyTorch
core       the part of both that does not depend on the form of batches
iteration  one iteration: its threads, and the order of batches
making     from ints to batches: requests, and the tasks of the threads that decode
processes  processes that make batches in place of threads
memory_pipe  values on their way between processes
collected  how an iteration is closed that the garbage collector finalises
batches    sources of batches, and batches made of columns
threads    the number of threads that feed the loop, and the pool that obeys it
timing     time by stage, and data stalls of the training loop by cause
seeding    the seed of a sample for torch's random functions
copies     a transform of its own for each thread
assigned   variables that a transform changes and that no copy has for itself
randomness  random functions that take their numbers from a generator of the whole process
"""
