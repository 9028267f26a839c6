"""Options, decisions and reports of a conversion; no file is read or written here.

plan        the options of a user, and pure decisions: chunk size, compression, identity
report      progress and result
"""
