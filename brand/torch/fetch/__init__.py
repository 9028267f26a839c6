"""How do ints become samples?

fetch    from ints to samples, with one request
fetched  from samples to columns and decoded samples, of one data set or of a mixture
cropping from an image file to the crop that a seed chooses
seeds    seeds of samples and batches, for crops and random transforms
"""
