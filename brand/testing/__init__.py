"""Test a training against broken storage, and measure how well a loader shuffles.

node       a data server in a thread of the test
storage    storage that is slow, broken or stuck on purpose
shuffling  figures of a shuffle, for any loader
"""
