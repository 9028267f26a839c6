"""The sources of samples: folders, shards and Python objects, each with one interface.

request     from the folder that a user names to a source, with skipped.tsv and extras.zip
folders     the files of an image or audio folder, in ImageFolder's order
splits      splits and configurations in the names of files
card        splits and configurations in the card of a Hub data set
labels      new numbers for the classes of a source
objects     the files of a source in a store or in a zip, read as streams
zips        the files of a zip
trees       a folder of files, wherever it is: what is in it, and the contents of files
listing     the found files, and the texts of audio files, as arrays on disk
texttable   the rows of CSV and TSV files
encoding    text files that are not in UTF-8
pictures    Pillow images that are stored as PNG
blocks      samples from Python -> records, in blocks that are bounded by bytes
filetable   a table with a row for each file of a folder
source      the sources that are read in any order
shards      a source that is read from its front -> sorted parts
spool       samples read in order -> sorted parts
shuffle     the permutation, in bounded memory
workers     processes that stop cleanly
"""
