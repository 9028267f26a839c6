"""Which samples are in memory, in which pages, and who still needs them?

pages        how large a page is, and how many each sample takes
allocator    which pages are free, and which belong together
page_memory  what decisions ask of the memory behind the pages
arena        the bytes: shared memory that clients map
residents    which samples are in memory, and who still refers to them
leases       which samples clients are copying just now
"""
