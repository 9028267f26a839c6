"""What is in a data set, in numbers: sizes and classes, from the index alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from brand.formats.header import Header
from brand.formats.share import Share
from brand.storage.catalogue import Catalogue

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Summary:
    """Facts about a data set, for readers and for `--json`."""

    path: str
    id: str
    samples: int
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
    share: dict[str, int] | None
    """Where this is one node's share: the node, the number of nodes, and the contents; else None.

    All other facts but `disk_bytes` describe the whole data set.
    """

    def to_json(self) -> dict[str, Any]:
        """The facts as plain values."""
        return asdict(self)


def summarise(data_set: Catalogue) -> Summary:
    """Count over the memory-mapped index, a block at a time."""
    manifest, header = data_set.manifest, data_set.header
    here = data_set.chunks_here
    return Summary(
        path=str(data_set.path),
        id=manifest.data_set_id.hex(),
        samples=header.samples,
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
        share=None if data_set.share is None else _share(data_set.share, header),
    )


def _share(share: Share, header: Header) -> dict[str, int]:
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
    for first in range(0, len(data_set), _BLOCK):
        raw = data_set.rows(first, min(first + _BLOCK, len(data_set)))["raw_size"]
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
