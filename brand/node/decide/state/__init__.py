"""Vocabulary and state that all decisions of a node share.

features    the hooks by which features take part
tasks       instructions: the work that the server has to do
choosing    the planner's choice of samples for the memory cache and the cache folder
counters    counts of the server's work
members     the nodes of a cluster, and the owner of each sample
runs        trainings, and the ranks and nodes that draw in them
account     whether all positions were drawn
lives       the stage of each epoch
epoch       the progress of one epoch
division    the rank that draws each position
draw        one request that waits
states      the state of each sample of an epoch
progress    how far the ranks have drawn an epoch
read_queue  the reads of an epoch that have not started
limits      the largest samples that are held or sent
"""
