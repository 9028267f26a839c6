"""Which ticket or index does a sampler yield at each position of each epoch?

sequence         the sequence of a sampler, and its facts in a loader state
mixed_sequence   the sequence of a sampler of a mixture, and the members of the mixture
draw_port        the connection of a sequence to a data set and its server, and the origin of a sampler
ordering         the order of a data set, and the subset that is drawn
"""
