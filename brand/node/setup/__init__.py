"""Everything that is decided before a server runs.

memory   how much memory samples may take          groups   the limits of control groups
measure  the page size, the pages of each sample, and the home node of each sample
choose   orders and read sizes that users rarely set
member   the configuration of a server in a cluster
tls      certificates
"""
