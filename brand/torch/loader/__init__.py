"""How are batches made without worker processes?

loader      BrandLoader: the DataLoader's contract
iteration   one iteration: its threads, and the order of batches
batches     where a loader takes its batches from
assemble    batches made of columns; page-locked memory
gate        how many threads work at a time
threads     how many threads feed the loop
stages      where the time goes
waits       why the training loop waits
seeding     random transforms that are the same in every run
"""
