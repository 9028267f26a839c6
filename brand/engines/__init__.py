"""Engines that make the chunks of a planned conversion on many machines. Each has a module, which alone imports it.

An engine gets a `Job` and calls `brand.chunker.run(job, k)` for each chunk `k`, in any process, as often as it likes.
"""
