"""The sources of samples: folders, shards and Python objects, each with one interface.

request     from the folder that a user names to a source
folders     the files of an image or audio folder, in ImageFolder's order
transcripts the texts of audio files                listing     the found files as arrays on disk
check       files that cannot be used               source      the sources that are read in any order
kinds       whether bytes are an image or audio     companions  skipped.tsv and extras.zip
shards      a source that is read from its front    exchange    shards, each read once -> sorted runs
sortedparts a stretch of a source in sorted runs    spool       samples read in order -> sorted runs
shuffle     the permutation, in bounded memory      probe       properties of a source, from a few samples
workers     processes that stop cleanly
"""
