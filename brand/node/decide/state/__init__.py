"""Vocabulary and state that all decisions of a node share.

features      the hooks by which features take part
instructions  the work that the server has to do
choosing      the planner's choice of samples for the memory cache and the cache folder
counters      counts of the server's work
members       the nodes of a cluster, the owner of each sample, and the largest samples that are held or sent
runs          trainings, and the ranks and nodes that draw in them
account       whether all positions were drawn
epoch_table   the stage of each epoch, and the requests that wait for it
epoch         the progress of one epoch, and the rank that draws each position
windowed      the progress of an epoch whose plan is made in windows
connected     the same on one of several nodes
single_reads  the same, if each sample is a read of its own
states        the state of each sample of an epoch, and its reads that have not started
"""
