"""Tools for the tests and the benchmarks of this repository; no wheel has them.

damage     flipped bits, truncated files, misplaced sectors: storage faults in the files of a data set
trials     one damage: the results of `verify`, of reads and of a training
integrity  thousands of damages, and a table (python -m tests.tools.integrity)
forge      files of a hostile writer: any change, with valid checksums
objects    an object store over HTTP that fails as scripted, and records its requests
link       a network link that can be slowed, held, cut and garbled
cluster    several nodes in threads, joined by such links
network    a network between nodes of one process, without clock and threads
replay     repeats the decisions of a recorded server (python -m tests.tools.replay)
"""
