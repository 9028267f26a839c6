"""Engines that make the chunks of a planned conversion on many machines. Each has a module, which alone imports it.

ray  one task of a Ray cluster for each chunk

An engine calls `brand.chunker.distributed.run(job, k)` for each chunk `k` of a `Job`, in any process, any number of
times.
"""
