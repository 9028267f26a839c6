"""The command `brand`: a module for each command, or for commands of one theme, without logic.

Results go to stdout, everything else to stderr. Only this package imports click and rich. `main` is the group with its
exit codes, `output` prints tables, progress, figures and JSON, `dataset` parses arguments, and `several` and `jobs`
belong to `convert` and `simulate`. `collection` changes collections, `show` prints facts and samples, and `upkeep` does
passes over whole data sets.
"""
