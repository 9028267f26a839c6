"""Who draws what, when, and what must have been read by then? Pure: arrays in, plan out.

random      bits and permutations that are the same everywhere
mapping     samples, chunks, groups, abstract memory (paper, section 3.2)
plan        the two tables that every protocol makes, and what follows from them: memory over time, kept samples
stripes     the default protocol
slots       the paper's protocol (section 3.3)
order       what fixes the order of every epoch; makes plans
tickets     epoch and position as one int
"""
