"""The command `brand`: a file for each command, without logic. Results go to stdout, everything else to stderr.

Only this package imports click and rich. `main` is the group with its exit codes, `output` prints tables, progress and
JSON, `dataset` and `naming` parse arguments, and `several` and `jobs` belong to `convert` and `simulate`.
"""
