"""Feature: orders that are decided while jobs draw (JOADER).

order_table     how far each order is decided, known to other nodes, and asked for
online_epoch    the progress of an epoch with such an order
online_orders   when and how far each order is decided, and what a new server learns from clients
order_messages  the messages by which the first of several nodes decides an order for all
rounds          the next draws of the jobs
"""
