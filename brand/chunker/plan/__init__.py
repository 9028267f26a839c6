"""Options, decisions and reports of a conversion; no file is read or written here.

options     the options of a user                   plan        pure decisions: chunk size, compression, identity
like        properties that the segments of a collection have in common
report      progress and result
"""
