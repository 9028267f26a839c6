"""Feature: orders that are decided while jobs draw (JOADER).

growth          how far each order is decided
growing_orders  the orders, and the positions that clients have asked for
growing_epoch   the progress of such an epoch
rounds          the next draws of the jobs
"""
