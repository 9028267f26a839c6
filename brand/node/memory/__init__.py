"""Which samples are in memory, in which pages, and for how long?

pages        the page size, and the number of pages of each sample
allocator    free pages, and chains of pages
page_memory  the interface of decisions to the memory behind the pages
arena        the bytes: shared memory that clients map
residents    samples in memory, and the number of references to each
leases       samples that clients are copying
"""
