"""How do ints become samples?

fetch          from ints to samples, with one request
fetched        from samples to columns and decoded samples
mixed_fetched  samples of several members, in the order of one request
"""
