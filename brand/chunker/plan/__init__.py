"""What is converted how? Options, decisions and reports; no file is read or written here.

options     the options of a user                   plan        pure decisions: chunk size, compression, identity
like        properties that the parts of a collection have in common
report      progress and result
"""
