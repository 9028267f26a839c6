"""How are new samples added to a collection? They become a segment of their own, after all others.

A source is converted below `staging/` with the fields, the chunk size, the dictionary and the class numbers of the
collection (`Like`), which is long work and takes no lock of the collection. Then the finished data set becomes a
segment, and a version names it. A conversion that was stopped keeps its staged folder, and the same call continues it.
A segment remembers the checksums of the samples that were added, so these are not added twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brand.chunker import (
    Options,
    Report,
    TokenOptions,
    convert_audio,
    convert_from,
    convert_images,
    convert_tokens,
)
from brand.chunker.convert import pack_samples
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.plan.plan import Like
from brand.chunker.plan.report import OnProgress, silent
from brand.chunker.sources.request import Target
from brand.chunker.sources.texttable import Dialect
from brand.collect.compacting import merge_due, reminder
from brand.collect.home import (
    MOST_PARTS,
    STAGING,
    TOO_MANY,
    Writer,
    collection_folder,
    kept,
    make_folder,
    staged,
    writing,
)
from brand.collect.origins import holder_of, origin_of
from brand.errors import BrandError, MergeError, SchemaError, UsageError, cause_of, counted
from brand.formats.compression import Compression
from brand.formats.constants import MANIFEST_NAME
from brand.formats.header import DecodeDefault
from brand.formats.manifest import read_manifest
from brand.formats.preparation import DecodeImage
from brand.formats.publish import storage_errors, storage_reason
from brand.formats.version import PartOf, Version, read_version
from brand.printable import printable
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io import frontback
from brand.storage.io.location import Collected, FolderLocation, is_collection, located
from brand.storage.io.present import last_number
from brand.storage.maintenance.copies import place_files

Convert = Callable[[str, Options], Report]
"""Writes a data set to a folder, with these options."""


def append_images(
    src: Target,
    collection: Target,
    options: Options | None = None,
    *,
    table: Target | None = None,
    key: str | None = None,
    choice: FieldMapping | None = None,
    compact: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Add an image folder to a collection, or begin one with it. Raises as `convert_images`, and as `append_data_set`.

    If the collection exists, it decides chunk size, compression and classes: folders with a known name get the label
    that they have had, new ones the next labels. `compact` merges small segments afterwards if it is time, so that the
    number of segments stays small whatever the number of appends; if that fails, the samples are in the collection, and
    a `MergeError` says so. The other arguments are those of `convert_images`.
    """

    def convert(to: str, chosen: Options) -> Report:
        return convert_images(src, to, chosen, table=table, key=key, choice=choice, on_progress=on_progress)

    return _converted(collection, "images", src, options, convert, compact=compact)


def append_audio(
    src: Target,
    collection: Target,
    options: Options | None = None,
    *,
    transcripts: Target | None = None,
    columns: Sequence[str] = (),
    dialect: Dialect | None = None,
    compact: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Add an audio folder to a collection, as `append_images` does; the arguments are those of `convert_audio`."""

    def convert(to: str, chosen: Options) -> Report:
        return convert_audio(
            src, to, chosen, transcripts=transcripts, columns=columns, dialect=dialect, on_progress=on_progress
        )

    return _converted(collection, "audio", src, options, convert, compact=compact)


def append_from(
    kind: str,
    src: Target,
    collection: Target,
    options: Options | None = None,
    *,
    choice: FieldMapping | None = None,
    compact: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Add data that another tool has written, as `append_images` does; the arguments are those of `convert_from`."""

    def convert(to: str, chosen: Options) -> Report:
        return convert_from(kind, src, to, chosen, choice=choice, on_progress=on_progress)

    return _converted(collection, kind, src, options, convert, compact=compact)


def append_tokens(
    src: Target,
    collection: Target,
    options: Options | None = None,
    *,
    tokens: TokenOptions | None = None,
    compact: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Add token files to a collection, as `append_images` does; the arguments are those of `convert_tokens`."""

    def convert(to: str, chosen: Options) -> Report:
        return convert_tokens(src, to, chosen, tokens=tokens, on_progress=on_progress)

    return _converted(collection, "tokens", src, options, convert, compact=compact)


def append_samples(
    samples: Any,
    collection: Target,
    schema: Mapping[str, str] | None = None,
    *,
    classes: Iterable[str] | None = None,
    options: Options | None = None,
    decode: Mapping[str, DecodeImage] | None = None,
    label: str | None = None,
    compact: bool = False,
    on_progress: OnProgress = silent,
) -> Report:
    """Add samples from Python to a collection, or begin one with them; the arguments are those of `brand.pack`.

    A call that was stopped starts from the beginning. `schema` may be left out if the collection exists. If it does,
    `decode` is that of the collection.
    """
    folder = collection_folder(collection, new=True)
    known = _present(folder)
    if schema is None and known is not None:
        schema = dict(StoredDataSet(Collected(folder, known)).header.schema.fields)
    make_folder(folder)
    _make_room(folder, known, compact=compact)
    with staged(folder, "samples") as work:
        like = _options(folder, known, options)
        report = pack_samples(
            samples, os.fspath(work / "made"), schema, classes, like, on_progress, decode, label or ""
        )
        note = f"samples from Python, {counted(report.samples, 'sample')}"
        return _publish(folder, work / "made", report, note, compact=compact)


def append_data_set(
    path: Target,
    collection: Target,
    *,
    copy: bool = False,
    compact: bool = False,
    on_chunk: frontback.OnChunk = frontback.silent,
) -> Version:
    """Add a finished data set to a collection, or begin one with it. Its files become hard links if possible.

    `compact` is that of `append_images`. Returns the version that has the new samples in its last segment.

    Raises:
        UsageError: It is a partition or a collection, or its samples are in the collection already.
        SchemaError: Its fields, chunk size, dictionary or classes are not those of the collection.
        FormatError: It lacks a file, or a file is damaged.
        StorageError: The storage refused a read or a write.
        MergeError: The samples are in the collection, but `compact` could not merge its segments.
    """
    location = located(path)
    data = StoredDataSet(location)
    if not isinstance(location, FolderLocation) or data.share is not None:
        what = "a collection" if data.version is not None else "a partition" if data.share is not None else "in a store"
        raise UsageError(f"{os.fspath(path)} is {what}: only a whole data set in a folder becomes a segment")
    folder = collection_folder(collection, new=True)
    if (known := _present(folder)) is not None:
        _check_alike(StoredDataSet(Collected(folder, known)), data)
    make_folder(folder)
    _make_room(folder, known, compact=compact)

    def on_placed(number: int, _: object) -> None:
        on_chunk(number + 1, data.header.chunks, int(data.chunk_rows["file_size"][number]))

    with staged(folder, "data-set") as work, storage_errors(folder, "cannot write to"):
        chunks = range(data.header.chunks)
        place_files(data, work / "made", chunks, work / "copy", copy=copy, on_placed=on_placed)
        with writing(folder) as writer:
            version = _add(writer, work / "made", f"data set {printable(os.path.abspath(path))}")
    if compact:
        _merged(folder, version)
    return version


def _converted(
    collection: Target, kind: str, src: Target, options: Options | None, convert: Convert, *, compact: bool
) -> Report:
    folder = collection_folder(collection, new=True)
    known = _present(folder)
    chosen = _options(folder, known, options)
    if chosen.dry_run:
        return replace(convert(os.fspath(folder / STAGING / "none"), chosen), target=os.fspath(collection))
    make_folder(folder)
    _make_room(folder, known, compact=compact)
    named = os.fspath(src) if "://" in os.fspath(src) else os.path.abspath(src)
    source = hashlib.blake2s(named.encode(errors="surrogateescape")).hexdigest()[:8]
    with kept(folder, f"{kind}-{source}") as place:
        if (place / MANIFEST_NAME).exists():  # a writer ended before it was published: the source may have changed
            shutil.rmtree(place)
        report = convert(os.fspath(place), chosen)
        try:
            done = _publish(folder, place, report, f"{kind} {printable(named)}", compact=compact)
            return replace(done, target=os.fspath(collection))
        except UsageError:  # it is there already, or does not fit: nothing is left to continue
            shutil.rmtree(place)
            raise


def _publish(folder: Path, made: Path, report: Report, note: str, *, compact: bool) -> Report:
    """Make a finished data set a segment. The report contains the indices of its samples."""
    with writing(folder) as writer:
        version = _add(writer, made, note)
    part = version.parts[-1]
    told = [
        f"Version {version.number}: the new samples are {part.first:,} to {part.end - 1:,} of {version.samples:,}",
        *(_unknown(name, part) for name in version.overlays),
    ]
    if compact and (merged := _merged(folder, version)).number > version.number:
        told.append(f"Version {merged.number} has the same samples in {counted(len(merged.parts), 'segment')}")
    elif not compact and (due := reminder(version)) is not None:
        told.append(due)
    return replace(report, target=os.fspath(folder), notes=(*report.notes, *told))


def _merged(folder: Path, version: Version) -> Version:
    """Merge segments after an append, as `merge_due` does. Raises `MergeError`: the append itself is done."""
    try:
        return merge_due(folder, version)
    except Exception as error:
        part = version.parts[-1]
        new = f"{part.first:,} to {part.end - 1:,} of {version.samples:,}"
        raise MergeError(
            f"{folder}: version {version.number} has the new samples, {new}: do not append them again. Its small "
            f"segments were not merged: {_reason(error)}. Run `brand compact {folder}` when this is repaired, or let "
            "the next append merge them",
            version.number,
        ) from error


def _reason(error: Exception) -> str:
    """Return why a merge failed, without the advice to run the same command again."""
    if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, BrandError):
        return storage_reason(error.__cause__)
    return cause_of(error) if not isinstance(error, BrandError) else str(error).rstrip(".")


def _make_room(folder: Path, version: Version | None, *, compact: bool) -> None:
    """Raise `UsageError` if the collection has no room for a segment, before all is converted; `compact` makes room."""
    if version is None or sum(part.id is not None for part in version.parts) < MOST_PARTS:
        return
    if compact:
        merge_due(folder, version)
    else:
        raise UsageError(f"{folder} has {MOST_PARTS:,} segments, and more are not possible: {TOO_MANY}")


def _unknown(name: str, part: PartOf) -> str:
    return f"Column {name} has no values for the new samples from {part.first:,} on: `brand overlay` gives it new ones"


def _add(writer: Writer, made: Path, note: str) -> Version:
    """Make a finished data set the next segment, and publish. Raises `UsageError` if it is one already."""
    manifest = read_manifest(made)
    part, known = manifest.data_set_id.hex(), writer.version
    origin = origin_of(StoredDataSet(made))
    if known is not None and (each := holder_of(writer.folder, known, origin)) is not None:
        told = "as" if each.origin == origin else "among"
        raise UsageError(
            f"these samples are in the collection already, {told} {each.first:,} to {each.end - 1:,}: nothing was done"
        )
    if known is not None:
        _check_alike(StoredDataSet(Collected(writer.folder, known)), StoredDataSet(made))
    writer.take(made, part)
    first = 0 if known is None else known.samples
    samples = manifest.header.samples
    new = PartOf(part, first, first + samples, samples, origin)
    if known is None:
        return writer.publish(f"append {note}", (new,), None, {})
    return writer.publish(f"append {note}", (*known.parts, new), known.deleted, known.overlays)


def _present(folder: Path) -> Version | None:
    """Return the present version; None if there is none yet. Raises a `FormatError`."""
    number = last_number(folder) if is_collection(folder) else None
    return None if number is None else read_version(folder, number)


def _options(folder: Path, known: Version | None, options: Options | None) -> Options:
    options = options or Options()
    if known is None:
        return options
    if options.chunk_size is not None or options.chunk_bytes is not None or options.compression != "auto":
        raise UsageError(
            "chunk size and compression are those of the collection: leave out --chunk-size, --chunk-bytes and "
            "--compression"
        )
    return replace(options, like=_like(StoredDataSet(Collected(folder, known))))


def _like(data: StoredDataSet) -> Like:
    header = data.header
    compression = Compression("zstd" if header.compression == "zstd" else "none", data.dictionary)
    return Like(header.schema, header.classes, header.chunk_size, compression, header.decode, header.field_classes)


def _said(decode: Mapping[str, DecodeDefault]) -> str:
    return ", ".join(f"{name}: {default.codec('image')}" for name, default in decode.items()) or "usual"


def _check_alike(known: StoredDataSet, data: StoredDataSet) -> None:
    """Raise `SchemaError` if a data set cannot be a segment next to the existing ones."""
    like = _like(known)
    like.check(data.header.schema, data.header.classes, data.header.field_classes)
    if data.header.decode != like.decode:
        raise SchemaError(
            f"{data.name} decodes its images by default as {_said(data.header.decode)}, and the collection as"
            f" {_said(like.decode)}. Convert its source with `brand append`, which stores it as the collection does"
        )
    again = "Convert its source with `brand append`, which takes them from the collection"
    if data.header.chunk_size != like.chunk_size:
        raise SchemaError(
            f"{data.name} has {counted(data.header.chunk_size, 'sample')} per chunk, and the collection "
            f"{like.chunk_size:,}. {again}, or with --chunk-size {like.chunk_size}"
        )
    if data.dictionary != like.compression.dictionary:
        raise SchemaError(f"{data.name} is compressed with another dictionary than the collection. {again}")
