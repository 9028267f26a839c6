"""A data set opened for reading: its index, its samples, its columns.

reader        `brand.open`, and the `Reader` that it returns
scan          many samples in the order of the chunks
dataset       rows -> ranges -> checked records
selection     the samples that a user means by `subset=`
weighting     the weight of each sample that a user means by `weights=`
predicate     the samples that an expression over columns chooses
catalogue     facts, index and columns: indices -> places -> rows
cached        samples copied from the page cache
summary       sizes and classes in numbers
blame         errors that name the faulty file, chunk and sample
indexes       the index files of a data set, compared with the chunks' own tables
joined        a version of a collection as one data set
segments      the index of one segment of a collection, and its files that hold numbers
"""
