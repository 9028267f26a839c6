"""How is a data set copied into its cache folder before a training? Chunk after chunk, with a check of each sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from brand.formats.contents import StoredSamples
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.frontback import front_to_back

STEP_BYTES: Final = 8 << 20
"""Approximate number of bytes of one read."""

OnChunk = Callable[[int, int, int], object]
"""Receives the number of chunks that are done, the number of all chunks, and the bytes copied from this chunk."""


@dataclass(slots=True)
class Filled:
    """Counts of a completed fill."""

    samples: int = 0
    bytes: int = 0
    damaged: int = 0
    """Samples that cannot be read from the storage, or whose checksums are wrong."""


def fill(data: StoredDataSet, folder: CacheFolder, on_chunk: OnChunk) -> Filled:
    """Copy the samples that the folder does not hold, until it accepts no more (`folder.stopped`), and publish them.

    Raises `FormatError` if the index cannot be read.
    """
    filled, chunks = Filled(), data.chunks_here
    drawn = data.drawn()
    wanted = ~folder.held if drawn is None else drawn & ~folder.held
    lacking = [number for number in chunks if wanted[_places(data, number)].any()]
    with front_to_back(data.location, lacking) as passing:
        source = StoredDataSet(passing)
        for done, number in enumerate(lacking, len(chunks) - len(lacking) + 1):
            before = filled.bytes
            places = np.flatnonzero(wanted[_places(data, number)]) + _places(data, number).start
            ends = np.cumsum(data.rows_at(places)["size"], dtype=np.int64)
            for part in np.split(places, np.flatnonzero(np.diff(ends // STEP_BYTES)) + 1):
                if not folder.stopped:
                    _copy(source, folder, part, filled)
                    folder.publish_if_due()
            if folder.stopped:
                break
            on_chunk(done, len(chunks), filled.bytes - before)
    folder.publish()
    return filled


def _places(data: StoredDataSet, number: int) -> slice:
    """Return the places of the samples of a chunk."""
    return slice(number * data.header.chunk_size, min((number + 1) * data.header.chunk_size, data.header.samples))


def _copy(data: StoredDataSet, folder: CacheFolder, places: np.ndarray, filled: Filled) -> None:
    found = data.stored_bytes(places)
    right = np.array([each is not None for each in found])
    samples = [each for each in found if each is not None]
    filled.damaged += len(found) - len(samples)
    lengths = np.array([len(each) for each in samples], np.int64)
    memory = np.frombuffer(b"".join(samples), np.uint8)
    held = folder.store(places[right], StoredSamples(memory, np.cumsum(lengths) - lengths, data.rows_at(places[right])))
    filled.samples += int(held.sum())
    filled.bytes += int(lengths[held].sum())
