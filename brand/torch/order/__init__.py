"""Which ticket or index does a sampler yield at each position of each epoch?

sequence           the sequence of a sampler, and its facts in a loader state
mixed_sequence     the sequence of a sampler of a mixture, and the members of the mixture
pairs              the sequence of a sampler of pairs: of samples and elements of their lists
weighted_sequence  the sequence of a sampler with weights
draw_port          the orders of a data set, the subset that is drawn, and the connection to its server
index_order        the cost of the order of the indices
"""
