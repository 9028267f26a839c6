"""How fast is a storage, and which reads suit it?

profile     the measured table, and what follows from it: read size, reads in flight
probe       the measurement of a folder
probestore  the measurement of an object store
ranges      which ranges are read to measure
"""
