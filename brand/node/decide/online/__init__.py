"""Feature: orders that are decided while jobs draw (JOADER).

online_orders  how far each order is decided, and the progress of the epochs of such orders
rounds         the next draws of the jobs
"""
