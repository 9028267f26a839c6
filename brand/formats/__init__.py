"""Bytes <-> values: everything that `docs/format.md` specifies. A leaf: it imports no other package of Brand.

constants     persistent numbers and limits
old_names     names in files that differ from those of this version
schema        names and codecs of the fields
values        one field <-> payload
instead       advice for a value that does not fit its codec
record        one sample <-> record
compression   whether compression is worthwhile, and one record <-> stored bytes
header        facts about the data set, stored in every chunk and in the manifest
chunk         preamble, header and table of a chunk file
contents      the samples of a chunk file, one after the other
signed        the frame of brand.json and share.json: version and checksum
manifest      brand.json
share         share.json
extras        the maximum size of the contents of extras.zip
index         the .npy files that follow from the tables
arrays        one array in a file, read so that damage to the file never ends the process
mapped        arrays in mapped work files, touched a window at a time
publish       files that appear whole or not at all
media         detection of image and audio files, and decoding
preparation   decoding and resizing of images and audio, before any random transform
"""
