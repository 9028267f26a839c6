"""A data set opened for reading: its index, its samples, its columns.

reader        `brand.open`, and the `Reader` that it returns
dataset       rows -> ranges -> checked records
catalogue     facts, index and columns: indices -> places -> rows
cached        samples that the page cache holds, copied at once
summary       sizes and classes in numbers
blame         which file, chunk and sample is to blame, and which error says so
indexes       which files are the index of a data set
tables        whether the index agrees with the chunks' own tables
joined        a version of a collection as one data set
joinedarrays  the arrays of its parts, read as one array
partindex     the index of one part of a collection
lists         files of a collection that hold numbers
"""
