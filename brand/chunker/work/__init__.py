"""The places of finished chunks, and the results of earlier runs.

work        the work folder, its lock and its claim, and a conversion into a folder
store_work  a conversion into a store
chunks      the chunks of a source: decided, made, and found again
"""
