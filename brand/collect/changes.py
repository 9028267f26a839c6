"""How does a version change without a new segment: samples deleted or restored, and columns for all samples?

find               the samples that a user names. Keys are stored in the samples and in no index, so all chunks are
                   read once, whatever the number of keys. A key that ends with `/` means all keys that begin with
                   it: all files of a folder
delete, undelete   the next version names the indices: no read and no fetch returns them from then on. Their bytes
                   remain in the segments, and older versions read them, until `compact` leaves them out
overlay            a list of values that a version names. A later overlay with the name replaces it. Samples that
                   are appended afterwards have no value in it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.chunker.sources.request import Target
from brand.collect.home import collection_folder, joined, writing
from brand.errors import SchemaError, UsageError, counted
from brand.formats.constants import NOTHING
from brand.formats.header import Schema
from brand.formats.record import RecordDecoder
from brand.formats.version import Overlay, Version
from brand.printable import printable
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.dataset.segments import read_list
from brand.storage.io.frontback import OnChunk, silent

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


def delete(collection: Target, wanted: NamedSamples, *, on_chunk: OnChunk = silent) -> tuple[Version, FoundSamples]:
    """Delete samples; return the new version and those deleted. Raises `UsageError`, `FormatError`, `StorageError`."""
    folder = collection_folder(collection)
    found = find(joined(folder), wanted, on_chunk)
    with writing(folder) as writer:
        before = writer.present
        deleted = read_list(folder, before.deleted, before.samples)
        if len(twice := np.intersect1d(deleted, found.indices)):
            raise UsageError(f"sample {twice[0]} was deleted by another command meanwhile: nothing was done")
        if len(deleted) + len(found.indices) == before.samples:
            raise UsageError("no sample would be left: nothing was done. Remove the folder of the collection instead")
        listed = writer.put_indices(np.union1d(deleted, found.indices))
        note = f"delete {counted(len(found.indices), 'sample')}"
        return writer.publish(note, before.parts, listed, before.overlays), found


def undelete(collection: Target, indices: list[int]) -> Version:
    """Undo deletions. Raises `UsageError` if a sample is not deleted, or its bytes are no longer stored."""
    folder = collection_folder(collection)
    with writing(folder) as writer:
        before = writer.present
        deleted = read_list(folder, before.deleted, before.samples)
        wanted = np.unique(np.array(indices, np.int64))
        gone = [read_list(folder, part.absent, part.end) for part in before.parts]
        if len(other := np.setdiff1d(wanted, deleted)):
            raise UsageError(f"sample {other[0]} is not deleted: nothing was done")
        if len(lost := np.intersect1d(wanted, np.concatenate(gone))):
            raise UsageError(
                f"the bytes of sample {lost[0]} are no longer in this version: `brand compact` removed them. An older "
                "version may have them (`brand versions`)"
            )
        left = writer.put_indices(np.setdiff1d(deleted, wanted))
        return writer.publish(f"undelete {counted(len(wanted), 'sample')}", before.parts, left, before.overlays)


def overlay(collection: Target, name: str, values: ArrayLike | None) -> Version:
    """Give all samples a value, by index: whole numbers or floats of shape (samples,). None removes the column.

    Raises `SchemaError` if the name or the values do not fit, `UsageError`, `StorageError`.
    """
    folder = collection_folder(collection)
    if values is not None:
        schema = joined(folder).manifest.header.schema
        if name in schema.names:
            raise SchemaError(f"the samples have a field {name!r} already: give the column another name")
        Schema.parse([*schema.fields, (name, "int")])  # the rules for names
    with writing(folder) as writer:
        before = writer.present
        others = {key: each for key, each in before.overlays.items() if key != name}
        if values is None:
            if len(others) == len(before.overlays):
                raise UsageError(f"there is no column {name!r} to remove")
            return writer.publish(f"remove column {name}", before.parts, before.deleted, others)
        codec, checked = _checked(name, np.asarray(values), before.samples)
        listed = writer.put(checked)
        assert listed is not None
        made = Overlay(codec, listed)
        return writer.publish(f"column {name}", before.parts, before.deleted, {**others, name: made})


def read_column(path: Path) -> NDArray[Any]:
    """Return the values in a .npy file. Raises `UsageError` if it cannot be read."""
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{path}: the column cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file of numbers: {error}") from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} holds several arrays: save one with numpy.save")
    return found


def _checked(name: str, values: NDArray[Any], samples: int) -> tuple[str, NDArray[Any]]:
    if values.shape != (samples,):
        raise SchemaError(
            f"column {name!r} has shape {values.shape}: one value for each index is needed, those of deleted samples "
            f"included, for {counted(samples, 'sample')}"
        )
    if values.dtype.kind not in "iufb":
        raise SchemaError(f"column {name!r} is of dtype {values.dtype}: give whole numbers or floats")
    if values.dtype.kind == "f":
        return "float", values.astype("<f8")
    if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise SchemaError(f"column {name!r} has the value {values.max()}, and the largest is 2^63 - 1")
    if values.dtype.kind == "i" and (values == NOTHING["int"]).any():
        raise SchemaError(f"column {name!r} has the value -2^63, which means a missing value")
    return "int", values.astype("<i8")
