"""Contents of a data set in numbers: sizes and classes, from the index alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brand.formats.header import Header
from brand.formats.manifest import Share
from brand.formats.noticed import Noticed
from brand.formats.version import Version
from brand.storage.dataset.catalogue import Catalogue

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Summary:
    """Facts about a data set, for readers and for `--json`."""

    path: str
    id: str
    samples: int
    """Number of samples, without deleted ones."""
    chunks: int
    chunk_size: int
    schema: dict[str, str]
    source: dict[str, str]
    seed: int
    compression: str
    dictionary_bytes: int
    stored_bytes: int
    raw_bytes: int
    disk_bytes: int
    """Bytes of the index and of the chunks in this folder together."""
    largest_sample: int
    size_histogram: dict[int, int]
    """Raw size, rounded down to a power of two -> number of samples."""
    class_counts: dict[str, int] | None
    """Samples of each class, in label order."""
    companions: dict[str, int]
    """Size of each companion file."""
    noticed: tuple[Noticed, ...]
    """What was noticed about the source and the samples at conversion. Counts include deleted samples."""
    partition: dict[str, int] | None
    """If this is the partition of one node: the node, the number of nodes, and the contents; else None.

    All other facts but `disk_bytes` describe the whole data set.
    """
    collection: dict[str, Any] | None
    """If this is a version of a collection: its number, indices, deleted indices, samples whose bytes are stored,
    segments, and columns that are in no segment; else None.
    """

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"noticed": [fact.to_json() for fact in self.noticed]}


def summarise(data_set: Catalogue) -> Summary:
    """Count over the memory-mapped index, a block at a time."""
    manifest, header = data_set.manifest, data_set.header
    here = data_set.chunks_here
    return Summary(
        path=str(data_set.path),
        id=manifest.data_set_id.hex(),
        samples=len(data_set) - (0 if data_set.deleted is None else len(data_set.deleted)),
        chunks=header.chunks,
        chunk_size=header.chunk_size,
        schema=dict(header.schema.fields),
        source=dict(header.source),
        seed=header.seed,
        compression=header.compression,
        dictionary_bytes=manifest.dictionary_size,
        stored_bytes=manifest.stored_bytes,
        raw_bytes=manifest.raw_bytes,
        disk_bytes=int(data_set.chunk_rows["file_size"][here.start : here.stop].sum())
        + sum(size for size, _ in manifest.files.values()),
        largest_sample=manifest.largest_sample,
        size_histogram=_sizes(data_set),
        class_counts=_classes(data_set),
        companions={name: size for name, (size, _) in manifest.companions.items()},
        noticed=manifest.noticed,
        partition=None if data_set.share is None else _partition(data_set.share, header),
        collection=None if data_set.version is None else _collection(data_set.version),
    )


def _collection(version: Version) -> dict[str, Any]:
    return {
        "id": version.collection,
        "version": version.number,
        "indices": version.samples,
        "deleted": version.samples - version.present,
        "held": sum(part.samples for part in version.parts),
        "segments": sum(part.id is not None for part in version.parts),
        "columns": sorted(version.overlays),
    }


def _partition(share: Share, header: Header) -> dict[str, int]:
    return {
        "node": share.node,
        "nodes": share.nodes,
        "group_chunks": share.group_chunks,
        "first_chunk": share.chunks[0],
        "last_chunk": share.chunks[-1],
        "samples": share.samples(header),
    }


def _sizes(data_set: Catalogue) -> dict[int, int]:
    counts = np.zeros(33, np.int64)
    places, drawn = data_set.header.samples, data_set.drawn()
    for first in range(0, places, _BLOCK):
        raw = data_set.rows(first, min(first + _BLOCK, places))["raw_size"]
        raw = raw if drawn is None else raw[drawn[first : first + len(raw)]]
        counts += np.bincount(np.log2(np.maximum(raw, 1)).astype(np.int64), minlength=33)
    used = np.flatnonzero(counts)
    return {1 << power: int(counts[power]) for power in range(used[0], used[-1] + 1)}


def _classes(data_set: Catalogue) -> dict[str, int] | None:
    names = data_set.header.classes
    if names is None:
        return None
    labels = data_set.column("label")
    inside = labels[(labels >= 0) & (labels < len(names))]
    counts = np.bincount(inside, minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))
