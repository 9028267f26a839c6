"""What does a sampler draw at each position of each epoch?

sequence         what a sampler draws, and what its state says of that
mixed_sequence   the same for a mixture
mixture_members  which member of a mixture a ticket belongs to
draw_port        how a sequence reaches a data set and its server
ordering         in which order a data set is drawn, and which part of it
"""
