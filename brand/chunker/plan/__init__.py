"""Options, decisions and reports of a conversion; no file is read or written here.

options     the options of a user                   plan        pure decisions: chunk size, compression, identity
report      progress and result
"""
