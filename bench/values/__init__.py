"""Comparison of the values of Brand with those of the tools that its users come from (`python -m bench.values`).

compare      a case, equality of values, and the counts of a case
media        images and sounds that are made for the cases
huggingface  data sets of Hugging Face: folders, Parquet, tables of text, `Dataset`, streams
folders      image folders, read by torchvision and timm
tars         tar files, read by webdataset
tables       CSV and Parquet, read by pandas and pyarrow
real         real images, recordings and texts, if there are some
sounds       audio files, read by soundfile and FFmpeg
"""
