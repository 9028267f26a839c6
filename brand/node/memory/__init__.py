"""Which samples are in memory, in which pages, and for how long?

pages      the page size, the pages of each sample, and the interface to the bytes in them
allocator  free pages, and chains of pages
tables     tables whose memory follows the entries in use
arena      the bytes: shared memory that clients map
directory  the pages of cached samples, for clients
residents  samples in memory, the references to each, and the samples that clients are copying
decoded    decoded samples in memory
"""
