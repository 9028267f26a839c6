"""How are batches made without worker processes?

loader     BrandLoader: the DataLoader's contract
iteration  one iteration: its threads, and the order of batches
batches    sources of batches, and batches made of columns
threads    the number of threads that feed the loop, and the pool that obeys it
timing     time by stage, and data stalls of the training loop by cause
seeding    random transforms that are the same in every run
copies     a transform of its own for each thread
"""
