"""The order of jobs whose order is decided while they draw (JOADER).

tree        the samples that several jobs still need, and the rounds of draws
growing     an order that is not complete, and the samples that a job has drawn, for its state
"""
