"""The sources of samples: folders, shards and Python objects, each with one interface.

request     from the folder that a user names to a source, with skipped.tsv and extras.zip
folders     the files of an image or audio folder, in ImageFolder's order
listing     the found files, and the texts of audio files, as arrays on disk
filetable   a table with a row for each file of a folder
source      the sources that are read in any order
shards      a source that is read from its front -> sorted parts
spool       samples read in order -> sorted parts
shuffle     the permutation, in bounded memory
workers     processes that stop cleanly
"""
