"""The decisions about a source that follow from a few random samples."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np

from brand.chunker.plan.options import Options
from brand.chunker.plan.plan import ChunkPlan, Layout, make_plan
from brand.chunker.sources.shuffle import open_order, write_order
from brand.chunker.sources.source import Source
from brand.formats.compression import Compression, Mode
from brand.formats.publish import storage_errors

_PROBE_SAMPLES: Final = 16_384
_PROBE_BYTES: Final = 8 << 20


def decide(
    source: Source, kind: str, classes: tuple[str, ...] | None, options: Options, order_path: Path
) -> tuple[ChunkPlan, float]:
    """Return the plan of a conversion, and the speed of reading and compression in bytes per second.

    Writes the order of the samples. `kind` is the name of the source in the header. Raises `SourceError`,
    `SchemaError`, `StorageError`.
    """
    compression: Mode | Compression = options.compression
    layout, like = options.layout, options.like
    if like is not None:
        like.check(source.schema, classes)
        compression, layout = like.compression, Layout(like.chunk_size)
    with storage_errors(order_path, "cannot write"):
        write_order(order_path, source.stretches, options.seed)
    started = time.monotonic()
    probe = _probe(source, order_path)
    plan = make_plan(
        samples=len(source),
        raw_bytes=source.raw_bytes,
        probe=probe,
        compression=compression,
        layout=layout,
        schema=source.schema,
        classes=classes,
        seed=options.seed,
        source={"kind": kind} | ({"file_field": source.file_field} if source.file_field else {}),
        fingerprint=source.fingerprint(times=False),
    )
    return plan, sum(map(len, probe)) / max(1e-3, time.monotonic() - started)


def _probe(source: Source, order_path: Path) -> list[bytes]:
    """Return records of random samples, which are those of the first places: up to 16,384 samples or 8 MiB."""
    indices = open_order(order_path, len(source))[:_PROBE_SAMPLES]
    sizes = source.sizes(indices)
    if sizes is not None:
        return list(source.records(indices[: 1 + int(np.searchsorted(np.cumsum(sizes), _PROBE_BYTES))]))
    probe: list[bytes] = []
    while len(probe) < len(indices) and sum(map(len, probe)) < _PROBE_BYTES:
        probe += source.records(indices[len(probe) : 2 * len(probe) + 16])  # sizes unknown: twice as many each time
    return probe
