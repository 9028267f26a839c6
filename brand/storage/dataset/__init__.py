"""A data set opened for reading: its index, its samples, its columns.

dataset       rows -> ranges -> checked records; `brand.open`, and the `Reader` that it returns
catalogue     facts, index and columns: indices -> places -> rows
cached        samples copied from the page cache
summary       sizes and classes in numbers
blame         errors that name the faulty file, chunk and sample
indexes       the index files of a data set, compared with the chunks' own tables
joined        a version of a collection as one data set
segments      the index of one segment of a collection, and its files that hold numbers
"""
