"""The history of a collection, version by version."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brand.chunker.sources.request import Target
from brand.collect.home import KEPT, STAGING, collection_folder
from brand.formats.manifest import read_manifest
from brand.formats.version import Version, read_version
from brand.storage.io.location import numbers


@dataclass(frozen=True)
class Line:
    """One version."""

    number: int
    id: str
    samples: int
    """Indices, deleted ones included."""
    present: int
    """Samples that are not deleted."""
    parts: int
    """Segments that hold samples."""
    stored_bytes: int
    """Stored bytes of its segments, deleted samples included."""
    columns: tuple[str, ...]
    """Names of the overlays."""
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return asdict(self)


def versions(collection: Target) -> list[Line]:
    """Return all versions, the present one last. Raises `UsageError`, `FormatError`."""
    folder = collection_folder(collection)
    sizes: dict[str, int] = {}
    return [_line(folder, read_version(folder, number), sizes) for number in numbers(folder)]


def unfinished(collection: Target) -> list[Path]:
    """Return the folders of conversions that were stopped before they became a segment. Raises `UsageError`."""
    folder = collection_folder(collection)
    return sorted(path for path in (folder / STAGING).glob(f"{KEPT}*") if path.is_dir())


def _line(folder: Path, version: Version, sizes: dict[str, int]) -> Line:
    held = [part for part in version.parts if part.id is not None]
    for part in held:
        if part.name not in sizes:
            sizes[part.name] = read_manifest(folder / part.name).stored_bytes
    return Line(
        number=version.number,
        id=version.id,
        samples=version.samples,
        present=version.present,
        parts=len(held),
        stored_bytes=sum(sizes[part.name] for part in held),
        columns=tuple(version.overlays),
        note=version.note,
    )
