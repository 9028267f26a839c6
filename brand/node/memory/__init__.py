"""Which samples are in memory, in which pages, and how long does each stay?

pages        how large a page is, and how many pages each sample takes
allocator    which pages are free, and which belong together
page_memory  what decisions ask of the memory behind the pages
arena        the bytes: shared memory that clients map
residents    which samples are in memory, and how many references each has
leases       which samples clients are copying just now
"""
