"""How fast is a storage, and which reads suit it?

profile     the measured table, and its consequences: read size, reads in flight
probe       the measurement of a folder, or of an object store
ranges      the ranges that are read to measure
"""
