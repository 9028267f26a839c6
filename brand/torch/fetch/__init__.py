"""How do ints become samples?

fetch    from ints to samples, with one request
fetched  from samples to columns and decoded samples, of one data set or of a mixture
"""
