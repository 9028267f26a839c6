"""Which samples does a user mean by keys and indices?

Keys are stored in the samples and in no index, so all chunks are read once, whatever the number of keys. A key that
ends with `/` means all keys that begin with it: all files of a folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.formats.record import RecordDecoder
from brand.printable import printable
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.maintenance.progress import OnChunk

_SHOWN = 10


@dataclass(frozen=True)
class NamedSamples:
    """The samples that a user names."""

    keys: Sequence[str] = ()
    """Whole keys, or beginnings of keys, up to a `/` at the end."""
    indices: Sequence[int] = ()


@dataclass(frozen=True)
class FoundSamples:
    """Samples of a collection."""

    indices: NDArray[np.int64]
    """Ascending, each once."""
    keys: dict[int, str]
    """The keys of those that were found by a key."""


def find(index: JoinedIndex, wanted: NamedSamples, on_chunk: OnChunk, *, deleted: bool = False) -> FoundSamples:
    """Return the named samples; with `deleted`, deleted samples as well.

    Raises `UsageError` if a key or an index names none, or a deleted sample; `FormatError`.
    """
    if not wanted.keys and not wanted.indices:
        raise UsageError("no sample is named: give keys or indices")
    name, samples = f"{index.folder}@{index.version.number}", index.samples
    outside = [each for each in wanted.indices if not 0 <= each < samples]
    if outside:
        raise UsageError(f"{name} has no sample {outside[0]}: it has samples 0 to {samples - 1:,}")
    given = np.unique(np.array(wanted.indices, np.int64))
    if not deleted and len(gone := np.intersect1d(given, index.deleted)):
        raise UsageError(f"{name}: sample {gone[0]} is deleted already")
    keys = _by_key(index, wanted.keys, on_chunk, deleted=deleted) if wanted.keys else {}
    return FoundSamples(np.union1d(given, np.array(list(keys), np.int64)), keys)


def _by_key(index: JoinedIndex, wanted: Sequence[str], on_chunk: OnChunk, *, deleted: bool) -> dict[int, str]:
    """Return index -> key of the samples that keys name."""
    whole = {key for key in wanted if not key.endswith("/")}
    folders = tuple({key for key in wanted if key.endswith("/")})
    found: dict[int, str] = {}
    met: set[str] = set()
    for number, key in keys_of(index, on_chunk, deleted=deleted):
        if key in whole:
            found[number] = key
            met.add(key)
        if folders and key.startswith(folders):
            found[number] = key
            met.update(folder for folder in folders if key.startswith(folder))
    lost = sorted((whole | set(folders)) - met)
    if lost:
        shown = ", ".join(printable(key) for key in lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
        raise UsageError(
            f"{index.folder} has no sample for {counted(len(lost), 'key')} of {len(set(wanted)):,}: {shown}. Nothing "
            "was done"
        )
    return found


def keys_of(index: JoinedIndex, on_chunk: OnChunk, *, deleted: bool) -> Iterator[tuple[int, str]]:
    """Yield index and key of each sample, chunk by chunk; with `deleted`, also of deleted ones whose bytes are stored.

    Raises `FormatError`.
    """
    header, chunks = index.manifest.header, index.manifest.header.chunks
    decode = RecordDecoder(header.schema, ("key",)) if "key" in header.schema.names else None
    for part in index.parts:
        data = StoredDataSet(part.location)
        for number in range(part.header.chunks):
            first = number * header.chunk_size
            local = data.indices(np.arange(first, first + part.header.chunk_samples(number)))
            public = part.public(local)
            shown = np.ones(len(local), np.bool_) if deleted else ~np.isin(public, index.deleted)
            if decode is None:
                yield from ((each, str(each)) for each in public[shown].tolist())
            else:
                samples = data.samples(local[shown], decode)
                yield from zip(public[shown].tolist(), (sample["key"] for sample in samples), strict=True)
            on_chunk(part.first_chunk + number + 1, chunks, 0)
