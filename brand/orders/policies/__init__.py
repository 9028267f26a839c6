"""The orders. A policy has the numbers of an order and makes its plans; a choice has the options of a user.

registry    the orders by name
stripe_policy   the default order, and the base of the policies whose jobs draw its laps
windows     the plan of any consecutive positions of an epoch of the default order
tapes       the order of the samples of each group there
slots       the paper's order on one node (section 3.3), and the JSON of the first two policies
slot_policy the numbers of that order, and its plan on several nodes: samples that are sent ahead (section 3.4)
uniform     a uniform shuffle of single samples, and the plan of any consecutive positions of it
storage_order   the order of the chunks, for evaluation
shared_policy   jobs that follow the fastest job
other_systems   baselines: a chunk-wise shuffle, jobs in lock step, jobs that fetch one sample at the same time
"""
