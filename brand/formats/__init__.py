"""Bytes <-> values: everything that `docs/format.md` specifies. A leaf: it imports no other room.

constants     persistent numbers and limits
old_names     names in files that are not those of this version
schema        names and codecs of the fields
values        one field <-> payload
instead       what to write instead of a value that does not fit
record        one sample <-> record
compression   whether compression is worth it, and one record <-> stored bytes
header        what every chunk and the manifest say about the data set
chunk         preamble, header and table of a chunk file
contents      the samples of a chunk file, one after the other
signed        the frame of brand.json and share.json: version and checksum
manifest      brand.json
share         share.json
extras        how large the contents of extras.zip may be
index         the .npy files that follow from the tables
arrays        one array in a file, read so that damage to the file never ends the process
mapped        arrays in mapped work files, touched a window at a time
publish       how a file appears whole or not at all
media         what kind of image or audio file some bytes are, and decoding them
preparation   what is done to pictures and clips before anything random is
"""
