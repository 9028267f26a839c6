"""Tools for tests of Brand and of what is built on it: they break data sets on purpose, and nothing else uses them.

damage    what storage does to files: flipped bits, files cut short or too long
forge     what a hostile writer does: any change, with all checksums made right again
"""
