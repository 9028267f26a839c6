"""The orders. A policy has the numbers of an order and makes its plans; a choice has the options of a user.

registry    the orders by name
stripe_policy   the default order, and the base of the policies whose jobs draw its laps
slots       the paper's order on one node (section 3.3), and the JSON of the first two policies
slot_policy the numbers of that order, and its plan on several nodes: samples that are sent ahead (section 3.4)
uniform     a uniform shuffle of single samples
pool_policy chunk-wise shuffle, a baseline
shared_policy   jobs that follow the fastest job
coordl      jobs in lock step, a baseline
joader_policy   jobs that fetch the same sample at the same time, a baseline
"""
