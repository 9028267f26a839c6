"""Feature: orders that are decided while jobs draw (JOADER).

growth          how far each order is decided
growing_orders  the orders, and what clients have asked of each
growing_epoch   the progress of such an epoch
rounds          what jobs draw next
"""
