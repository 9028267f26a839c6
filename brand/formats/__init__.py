"""Bytes <-> values: everything that `docs/format.md` specifies, as pure functions. A leaf: it imports no other room.

constants     persistent numbers and limits                     schema       names and codecs of the fields
values        one field <-> payload                             record       one sample <-> record
compression   which compression, and one record <-> stored bytes
chunk         preamble, header, table of a chunk file           manifest     brand.json
index         the .npy files that follow from the tables        publish      how a file appears whole or not at all
media         what kind of image or audio file some bytes are, and decoding them (Pillow, libsndfile)
"""
