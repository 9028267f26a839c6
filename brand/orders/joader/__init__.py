"""The order of jobs whose order is decided while they draw (JOADER).

dependent   the rounds of draws             tree        the samples that several jobs still need
growing     an order that is not complete, and the samples that a job has drawn, for its state
"""
