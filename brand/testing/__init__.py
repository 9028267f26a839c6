"""Tools for tests of Brand and of what is built on it: they break data sets on purpose, and only tests use them.

damage    what storage does to files: flipped bits, files cut short, sectors in a wrong place; to all of a data set
trials    one damage: what do verify, reads and draws make of it?
integrity thousands of damages, and a table (python -m brand.testing.integrity)
forge     what a hostile writer does: any change, with all checksums made right again
objects   an object store over HTTP that breaks as scripted; it also records what it is asked
"""
