"""The records of a spool, for tests."""

from __future__ import annotations

from brand.chunker.sources.shuffle import open_order
from brand.chunker.sources.spool import SpoolSource


def by_index(source: SpoolSource, seed: int = 0) -> list[bytes]:
    """All records in the order of the source, read in storage order."""
    source.write_order(source.folder / "order.bin", seed)
    order = open_order(source.folder / "order.bin", len(source))
    found = dict(zip(order.tolist(), source.records(order, 0), strict=True))
    return [found[index] for index in range(len(source))]
