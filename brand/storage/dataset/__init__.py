"""A data set opened for reading: its index, its samples, its columns.

reader        `brand.open`, and the `Reader` that it returns
dataset       rows -> ranges -> checked records
catalogue     facts, index and columns: indices -> places -> rows
cached        samples copied from the page cache
summary       sizes and classes in numbers
blame         errors that name the faulty file, chunk and sample
indexes       the index files of a data set
tables        comparison of the index with the chunks' own tables
joined        a version of a collection as one data set
joinedarrays  the arrays of its segments, read as one array
partindex     the index of one segment of a collection
lists         files of a collection that hold numbers
"""
