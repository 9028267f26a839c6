"""What the tests of storage share: reading everything, with errors as values, and what `verify` tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brand.errors import FormatError
from brand.formats.manifest import read_manifest
from brand.orders.base.owners import owner_of_chunk
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.partition import PartitionMade, partition
from brand.storage.maintenance.verify import verify

SCHEMA = {"label": "int", "text": "str", "ratio": "float", "key": "str"}
SAMPLES: list[dict[str, Any]] = [
    {"label": k % 3 - 1, "text": "text " * k, "ratio": k / 7, "key": f"folder/{k}"} for k in range(10)
]
"""The data set `plain`: ten samples in chunks of four, stored raw."""

NOTES: list[dict[str, Any]] = [
    {"text": f"The {('red', 'green', 'blue')[k % 3]} note number {k} says: {k * k} is the square of {k}.", "number": k}
    for k in range(130)
]
"""The data set `dense`: 130 samples in chunks of 100, compressed with a dictionary."""

Found = dict[str, Any] | FormatError


def read_each(folder: Path, count: int) -> list[Found]:
    """Each sample, read by itself, or the error in its place."""
    try:
        data_set = StoredDataSet(folder)
    except FormatError as error:
        return [error] * count
    found: list[Found] = []
    for index in range(count):
        try:
            found.append(data_set.sample(index))
        except FormatError as error:
            found.append(error)
    return found


def told_by_verify(folder: Path) -> list[FormatError]:
    """All that `verify` finds wrong; where there is no readable manifest, that one error. The sets here are small."""
    found: list[FormatError] = []
    steps = verify(folder)
    try:
        first = next(steps)
    except FormatError as error:
        return [error]
    found += first.errors
    for step in steps:  # only the manifest may raise
        found += step.errors
        assert len(found) < 1000, "verify does not come to an end"
    return found


def chunk(folder: Path, number: int) -> Path:
    """Where a chunk lies."""
    return folder / f"chunks/{number:08d}.brand"


def divide(folder: Path, outs: list[Path], group_chunks: int = 1, **more: Any) -> list[PartitionMade]:
    """Shares of a data set, as `brand partition` makes them."""
    owners = owner_of_chunk(read_manifest(folder).header.chunks, group_chunks, len(outs))
    return partition(folder, outs, owners, group_chunks, **more)
