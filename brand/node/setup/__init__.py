"""What is settled before a server runs?

memory   how much memory samples may take
measure  pages, and whose the samples are
choose   orders and ways of reading that users rarely name
member   a node of several, as it is told
tls      certificates
"""
