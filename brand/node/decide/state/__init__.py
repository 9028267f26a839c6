"""Which words and which state do all decisions of a node share?

features    the hooks by which features take part
tasks       instructions: what the server has to do
choosing    what memory keeps, and what the cache folder holds: the choice of the planner
counters    what the server has done so far
members     which nodes exist, and which node owns what
runs        trainings, and the ranks and nodes that draw in them
account     whether all positions were drawn
lives       where in its life an epoch is
epoch       the progress of one epoch
division    which rank draws which position
draw        one request that waits
states      the state of each sample of an epoch
progress    how far the ranks have drawn an epoch
read_queue  which reads of an epoch have not started
limits      which samples are held, or sent
"""
