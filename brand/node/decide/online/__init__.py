"""Feature: orders that are decided while jobs draw (JOADER).

online_orders   how far each order is decided, and the progress of the epochs of such orders
order_messages  the messages by which the first of several nodes decides an order for all
rounds          the next draws of the jobs
"""
