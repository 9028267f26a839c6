"""The data set from which each position of a mixture draws.

mixed_order the order of a mixture, and the member at each position
weights     samples with weights -> the orders of which an epoch is a mixture
"""
