"""Bytes <-> values: everything that `docs/reference/format.md` specifies. A leaf: it imports no other package of Brand.

constants     persistent numbers, names and limits
values        one field <-> payload
header        the schema, and facts about the data set, stored in every chunk and in the manifest
record        one sample <-> record, and many records in one memory
compression   whether compression is worthwhile, and one record <-> stored bytes
chunk         preamble, header and table of a chunk file
contents      the samples of a chunk file, and stored samples in one memory
manifest      brand.json and share.json, and their frame: version and checksum
index         the .npy files that follow from the tables
version       the versions of a collection
arrays        one array in a file, also mapped
publish       files that appear whole or not at all
locks         one process at a time holds a file
heads         properties of an image that its head tells
manyheads     the same for the images of a chunk, by NumPy
noticed       facts with counts that a conversion noticed
endings       which `brand convert` command reads files with these names, for hints
media         detection of image and audio files, and opening of images
pixels        from an image file to pixels: mode, orientation, frame
audio         lengths of audio files, and decoding
audiostreams  the streams of an audio file, with heads that state their lengths
jpeg          the head of a JPEG, and its pixels at a fraction of its size
parts         from an image file to the pixels that a crop needs
crops         the part of an image that a model gets, and its size
preparation   decoding and resizing of images and audio, before any random transform
"""
