"""How are batches made without worker processes?

loader      BrandLoader: the DataLoader's contract
iteration   one iteration: its threads, and the order of batches
batches     sources of batches: a sampler or a batch sampler
assemble    batches made of columns; page-locked memory
gate        a limit for the threads that work at a time
threads     the number of threads that feed the loop
stages      time by stage
waits       data stalls of the training loop, by cause
seeding     random transforms that are the same in every run
"""
