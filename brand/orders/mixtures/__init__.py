"""Which data set does each position of a mixture draw from?

mixed_order the order of a mixture          shares      the member at each position
"""
