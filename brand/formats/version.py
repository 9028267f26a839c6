"""versions/00000003.json: the segments, deletions and columns of a version (docs/reference/format.md, section 11).

A collection is a folder of data sets, its segments, that grows. Existing files never change: each change is a new
version, and the segments and lists that a version names are written before it. `Version` holds one file's facts.
`npy_list` makes the files of `lists/`, which are named by their contents.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import LayoutError, MissingFileError, OversizedError, TargetExistsError, UnreadableError
from brand.formats.constants import (
    MAX_MANIFEST,
    MAX_PARTS,
    MAX_SAMPLES,
    MAX_VERSIONS,
    VERSION_OF_COLLECTIONS,
    VERSION_OF_MERGES,
    VERSIONS_NAME,
)
from brand.formats.header import canonical_json, is_field_name, natural
from brand.formats.manifest import identity, pack_signed, parse_signed, read_limited
from brand.formats.publish import remedy_for

MARKER: Final = "brand-version"
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
PINNED: Final = re.compile(r"(.+)@(\d{1,10})")
"""The path of a collection, and the number of a version."""
_FILE: Final = re.compile(r"(\d{8,10})\.json")
_HINT: Final = "`brand versions` lists the others"


@dataclass(frozen=True, slots=True)
class Listed:
    """Numbers in a file of `lists/`: their count, and the XXH3-128 of the file, which names it."""

    count: int
    digest: str

    @property
    def name(self) -> str:
        """Path of the file below the folder of the collection."""
        return f"lists/{self.digest}.npy"


@dataclass(frozen=True, slots=True)
class PartOf:
    """A segment of a collection: a data set that has a run of the public indices."""

    id: str | None
    """Id of the data set in `parts/`; None if no sample is left."""
    first: int
    """The first index of its run."""
    end: int
    """The index after its last one."""
    samples: int
    """Number of samples that it holds."""
    origin: str
    """XXH3-128 of the checksums of the samples that were added, in the order of their indices."""
    absent: Listed | None = None
    """The indices of the run whose samples were removed from the segment; None if there are none."""
    merged: Listed | None = None
    """The first 64 bits of the origins of the segments that were merged into this one, ascending; None if none was."""

    @property
    def name(self) -> str:
        """Path of the segment below the folder of the collection."""
        return part_name(self.id or "")


@dataclass(frozen=True, slots=True)
class Overlay:
    """A column that is in no segment."""

    codec: str
    """`int` or `float`."""
    values: Listed

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<i8" if self.codec == "int" else "<f8")


@dataclass(frozen=True)
class Version:
    """The checked contents of a version."""

    id: str
    """32 hexadecimal digits: collection, number, checksum."""
    parts: tuple[PartOf, ...]
    deleted: Listed | None
    overlays: Mapping[str, Overlay]
    parent: str | None
    note: str

    @property
    def collection(self) -> str:
        """16 hexadecimal digits that all versions of the collection have in common."""
        return self.id[:16]

    @property
    def number(self) -> int:
        return int(self.id[16:24], 16)

    @property
    def samples(self) -> int:
        """Number of public indices, including deleted ones."""
        return self.parts[-1].end

    @property
    def lists(self) -> list[Listed]:
        of_parts = [each for part in self.parts for each in (part.absent, part.merged)]
        found = [self.deleted, *of_parts, *(o.values for o in self.overlays.values())]
        return [each for each in found if each is not None]

    @cached_property
    def present(self) -> int:
        return self.samples - (0 if self.deleted is None else self.deleted.count)


def number_within(collection: str, data_set: object) -> int | None:
    """Return the number of the version of this collection that has the id `data_set`; None for any other value."""
    if not isinstance(data_set, str) or not _DIGEST.fullmatch(data_set) or data_set[:16] != collection:
        return None
    return int(data_set[16:24], 16)


def make_version(
    collection: str,
    number: int,
    parts: Sequence[PartOf],
    deleted: Listed | None,
    overlays: Mapping[str, Overlay],
    parent: str | None,
    note: str,
) -> Version:
    """Return a new version. Its id follows from all other fields."""
    draft = Version("", tuple(parts), deleted, dict(overlays), parent, note)
    return replace(draft, id=f"{collection}{number:08x}{_seal(_facts(draft))}")


def pack_version(version: Version) -> bytes:
    facts, minor = _facts(version), VERSION_OF_COLLECTIONS
    for part, entry in zip(version.parts, facts["parts"], strict=True):
        if part.merged is not None:
            entry["merged"], minor = _pair(part.merged), VERSION_OF_MERGES
    return pack_signed(MARKER, {"id": version.id, **facts}, minor=minor)


def version_name(number: int) -> str:
    """Return the path of a version below the folder of the collection."""
    return f"{VERSIONS_NAME}/{number:08d}.json"


def collection_of(path: Path) -> Path | None:
    """Return the folder of a collection if a path that does not exist names a version of it: `photos.brand@3`."""
    match = None if os.path.lexists(path) else PINNED.fullmatch(str(path))
    if match is None or not os.access(match[1], os.X_OK):
        return None
    return Path(match[1]) if (Path(match[1]) / VERSIONS_NAME).is_dir() else None


def check_target_name(target: Path) -> None:
    """Raise `TargetExistsError` if the name of a new data set is that of a version of a collection."""
    if (collection := collection_of(target)) is not None:
        raise TargetExistsError(f"{target} names a version of the collection {collection}. Choose another target")


def version_number(file: str) -> int | None:
    """Return the number of a version, from the name of its file; None for any other file."""
    match = _FILE.fullmatch(file)
    return None if match is None or f"{int(match[1]):08d}" != match[1] else int(match[1])


def part_name(part: str) -> str:
    """Return the path of a segment below the folder of the collection."""
    return f"parts/{part}"


def read_version(folder: Path, number: int) -> Version:
    """Read and check a version of the collection in `folder`. Raises a `FormatError`."""
    path = folder / version_name(number)
    try:
        version = parse_version(read_limited(path, MAX_MANIFEST, "version"), path)
    except FileNotFoundError:
        raise MissingFileError("there is no such version", path=path, hint=_HINT) from None
    except OSError as error:
        hint = remedy_for(error, _HINT)
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=hint) from error
    if version.number != number:
        what = "a version with the name of another version"
        raise LayoutError(what, path=path, expected=number, found=version.number, hint=_HINT)
    return version


def parse_version(data: bytes, path: Path) -> Version:
    """Parse and check a version. Raises `LayoutError`, `VersionError`, `ChecksumError`, `OversizedError`."""
    value = parse_signed(data, path, marker=MARKER, name="version", hint=_HINT)
    try:
        version = _parsed(value)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LayoutError(f"the version is malformed: {error!r}", path=path, hint=_HINT) from error
    if version.samples > MAX_SAMPLES or len(version.parts) > MAX_PARTS or version.number > MAX_VERSIONS:
        raise OversizedError("the version exceeds a limit of the format", path=path, hint=_HINT)
    if (fault := _fault(version, _seal(_facts(version)))) is not None:
        raise LayoutError(f"the version is malformed: {fault}", path=path, hint=_HINT)
    return version


def npy_list(values: NDArray[Any]) -> tuple[Listed, bytes]:
    """Return the file of these values, and the entry that names it in a version."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(values), version=(1, 0), allow_pickle=False)
    data = file.getvalue()
    return Listed(len(values), xxhash.xxh3_128_hexdigest(data)), data


def _facts(version: Version) -> dict[str, Any]:
    """Return the keys from which the id follows: those of version 1.1, so that its readers find the same id."""
    return {
        "parts": [
            {"id": p.id, "end": p.end, "samples": p.samples, "origin": p.origin, "absent": _pair(p.absent)}
            for p in version.parts
        ],
        "deleted": _pair(version.deleted),
        "overlays": {name: [o.codec, o.values.count, o.values.digest] for name, o in version.overlays.items()},
        "parent": version.parent,
        "note": version.note,
    }


def _seal(facts: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(canonical_json(facts))[:8]


def _pair(listed: Listed | None) -> list[Any] | None:
    return None if listed is None else [listed.count, listed.digest]


def _parsed(value: Mapping[str, Any]) -> Version:
    parts, first = [], 0
    for each in value["parts"]:
        part_id = None if each["id"] is None else identity(each["id"]).hex()
        end, samples = natural(each["end"], "end"), natural(each["samples"], "samples")
        lists = _listed(each["absent"]), _listed(each.get("merged"))
        parts.append(PartOf(part_id, first, end, samples, identity(each["origin"]).hex(), *lists))
        first = end
    if not parts:
        raise ValueError("it has no segment")
    overlays = {}
    for name, (codec, *values) in value["overlays"].items():
        listed = _listed(values)
        if not is_field_name(name) or codec not in ("int", "float") or listed is None:
            raise ValueError(f"{name!r} is not a column of {codec!r}")
        overlays[name] = Overlay(codec, listed)
    parent = None if value["parent"] is None else identity(value["parent"]).hex()
    return Version(
        identity(value["id"]).hex(), tuple(parts), _listed(value["deleted"]), overlays, parent, str(value["note"])
    )


def _listed(value: Any) -> Listed | None:
    if value is None:
        return None
    count, digest = value
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a digest")
    return Listed(natural(count, "count"), digest)


def _fault(version: Version, seal: str) -> str | None:
    """Return how a version contradicts itself; None if it does not."""
    if version.id[24:] != seal or version.number < 1:
        return "its id is not that of its contents"
    if version.parent is not None and version.collection != version.parent[:16]:
        return "its parent is a version of another collection"
    for part in version.parts:
        absent = 0 if part.absent is None else part.absent.count
        if part.end <= part.first or part.samples != part.end - part.first - absent:
            return f"a segment of {part.samples} samples for the indices {part.first} to {part.end - 1}"
        if (part.id is None) != (part.samples == 0):
            return "a segment without samples, but with an id"
    ids = [part.id for part in version.parts if part.id is not None]
    if len(set(ids)) < len(ids):
        return "a segment twice"
    if version.deleted is not None and version.deleted.count > version.samples:
        return "more deleted indices than there are"
    return None
