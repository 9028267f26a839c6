"""The places of finished chunks, and the results of earlier runs.

work        the work folder, and its lock           claim       the conversion that has a target
folder_work a conversion into a folder              store_work  a conversion into a store
chunks      one chunk: records -> file              kept        rows of chunks that another process has made
"""
