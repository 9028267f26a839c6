"""What is settled before a server runs?

memory   how much memory samples may take          groups   what control groups allow
measure  the page size, the pages of each sample, and which node owns which samples
choose   orders and ways of reading that users rarely name
member   what a server is told where it is one of several
tls      certificates
"""
