"""The functions that make a data set of an image folder, an audio folder, data of another tool, or samples from Python.

Each turns its input into a source, and the conductor does the rest. For several machines, a folder is planned instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brand.chunker.conductor import Conversion
from brand.chunker.importers import FORMATS, open_shards
from brand.chunker.importers.beside import images_source
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.finding import place_of
from brand.chunker.importers.manifests import SpeechManifest, kind_of_manifest
from brand.chunker.importers.tokens import TokenOptions, open_tokens
from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Report, silent
from brand.chunker.sources.blocks import encoded
from brand.chunker.sources.folders import check_unconverted
from brand.chunker.sources.labels import LabelTexts, NewLabels, check_numbered, renumbered
from brand.chunker.sources.objects import connections
from brand.chunker.sources.pictures import PictureCount
from brand.chunker.sources.request import (
    FolderRequest,
    Target,
    find,
    folder_of,
    hinted,
    local_source,
    make_request,
    url_of,
    write_skipped,
)
from brand.chunker.sources.shards import Shards, exchange
from brand.chunker.sources.source import IndexableSource, Source
from brand.chunker.sources.spool import spool
from brand.chunker.sources.texttable import Dialect
from brand.chunker.work.store_work import open_store_work
from brand.chunker.work.work import Work, open_folder_work
from brand.errors import SchemaError, SourceError, UsageError, counted
from brand.formats.compression import Mode
from brand.formats.header import Schema
from brand.formats.preparation import DecodeImage, defaults_of
from brand.formats.publish import storage_errors
from brand.formats.record import Records, encode_columns
from brand.stores.url import is_url, parse_url

if TYPE_CHECKING:
    from brand.chunker.importers.tables import Table


def convert_images(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    table: Target | None = None,
    key: str | None = None,
    choice: FieldMapping | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert an image folder.

    Samples have `image` (the file's bytes), `label` if there are class folders, `text` and `json` if `photo.txt` and
    `photo.json` are next to `photo.jpg`, and `key`.

    `table` is a table with a row for each image: CSV, TSV, JSON lines or Parquet. Its column `key` names the images, by
    their paths below the folder, with or without the ending; its other columns become fields, by `choice`. Folders are
    no classes then. `metadata.csv`, `.jsonl` or `.parquet` at the top of the folder is such a table, and its column
    `file_name` names the images. If it has columns such as `mask_file_name`, too, its rows are the samples, with a
    field of images for each.

    Raises:
        UsageError: The call is wrong, or the target is taken (`TargetExistsError`).
        SourceError: A file cannot be used, or there are none.
        StorageError: The storage refused a read or a write. The same call continues from there, as after a kill.
        InterruptedConversionError: A worker process died. The same call continues from there.
    """
    started = time.monotonic()
    with connections():
        source = images_source(src, dst, options, table, key, choice)
        if isinstance(source, FolderRequest):
            return _convert_folder(source, dst, on_progress)
        options = options or Options()
        _check_dry_run(options)
        if options.classes is not None:
            source.give_classes(options.classes)
        return _convert_shards(source.kind, source, dst, options, on_progress, started)


def convert_audio(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    transcripts: Target | None = None,
    columns: Sequence[str] = (),
    dialect: Dialect | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert an audio folder.

    Samples have `audio` (the file's bytes), `label` if there are class folders, `duration` (the seconds that the file
    decodes to; nan if it does not decode to its end; no such field without the package soundfile), `text` if there are
    transcripts, and `key`.

    `transcripts` is a TSV or CSV of path and text, or a manifest of NeMo, Lhotse, Kaldi, LJSpeech or Common Voice. The
    samples are then the rows of the manifest, and segments of long recordings are cut. Without `transcripts`,
    `clip.txt` or `clip.lab` holds the text of `clip.wav`, or `*.trans.txt` those of the files next to it. `columns`
    names other columns, which become `str` fields. `dialect` is the form of a table
    (`brand.chunker.sources.texttable`). Raises as `convert_images` does.
    """
    started = time.monotonic()
    with connections():
        request = make_request(src, dst, "audio", options, transcripts, columns, dialect)
        if request.table is None or (kind := kind_of_manifest(request.table)) is None:
            return _convert_folder(request, dst, on_progress)
        _check_dry_run(request.options)
        from brand.chunker.importers.utterances import Utterances  # most conversions have no manifest

        source = Utterances(SpeechManifest(kind, request.table, request.columns, request.dialect), request.root)
        return _convert_shards("audio", source, dst, request.options, on_progress, started)


def convert_from(
    kind: str,
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    choice: FieldMapping | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert data that another tool has written; `kind` is one of `brand.chunker.importers.FORMATS`.

    `choice` selects the columns that become fields, and their codecs. Raises as `convert_images` does, and
    `MissingExtraError` if a library is not installed.
    """
    options, started = options or Options(), time.monotonic()
    _check_dry_run(options)
    if kind not in FORMATS:
        raise UsageError(f"{kind!r} is not a format that is converted; the formats are {', '.join(FORMATS)}")
    url = url_of(src)
    if url is not None and _is_streamed(kind, url[0]):
        src = f"{url[0]}://{url[1]}"
    else:
        src = local_source(src)
        check_unconverted(Path(src))
    if not is_url(src) and not is_url(dst) and Path(dst).resolve().is_relative_to(Path(src).resolve()):
        raise UsageError(f"{os.fspath(dst)} is inside {os.fspath(src)}: choose a target outside of the source")
    choice = replace(choice or FieldMapping(), split=options.split)
    with connections():
        source: Shards = open_shards(kind, src, choice, on_progress)
        if options.classes is not None:
            source.give_classes(options.classes)
        check_numbered(source.schema, choice.label, "--classes FILE")
        return _convert_shards(kind, source, dst, options, on_progress, started)


def _check_dry_run(options: Options) -> None:
    if options.dry_run:
        raise UsageError("a dry run would read all of the source: dry runs are for folders of files only")


def _convert_shards(
    kind: str, source: Shards, dst: Target, options: Options, on_progress: OnProgress, started: float
) -> Report:
    if options.like is not None:  # before all of it is read
        options.like.check(source.schema, source.classes, source.field_classes)
    with _open_work(dst, options) as work:
        spooled, problems, found = exchange(source, options, work.folder, on_progress)
        conversion = Conversion(work, spooled, kind, source.classes, options, on_progress, source.decode)
        report = conversion.run(lambda folder: write_skipped(folder, problems))
    compared = f"Compared with the source: {counted(len(spooled), 'sample')}, {spooled.raw_bytes:,} bytes"
    again = [f"{counted(found, 'shard')} of the source found, from a run that was stopped"] if found else []
    notes = (*report.notes, *source.notes, *again, compared)
    return replace(report, skipped=tuple(problems), notes=notes, seconds=time.monotonic() - started)


def _is_streamed(kind: str, scheme: str) -> bool:
    """Return whether an importer reads a URL itself: that for `hf` those of the Hub, too."""
    return scheme not in ("file", "hf") or kind == scheme


def convert_tokens(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    tokens: TokenOptions | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert token files of language models: `.bin` with or without `.idx`, `.npy`, `.npz`; a file or a pattern.

    Samples have `tokens`, an array of shape (tokens,) of the file's type; and `count`, the number of tokens, if each
    sample is a document. With `tokens.block`, each sample has that many tokens. Raises as `convert_images` does.
    """
    started, options, tokens = time.monotonic(), options or Options(), tokens or TokenOptions()
    path = local_source(src)
    if not isinstance(place_of(path), Path):
        raise UsageError(f"{path} is in a zip, and token files are read in any order: unzip it, and convert the files")
    with _open_work(dst, options) as work, storage_errors(work.name, "cannot write"):
        source = open_tokens(path, tokens, work.folder)
        report = Conversion(work, source, "tokens", None, options, on_progress).run()
    notes = (f"{counted(source.tokens, 'token')} in {counted(len(source.files), 'file')}",)
    return replace(report, notes=notes, seconds=time.monotonic() - started)


def pack(  # noqa: PLR0913 - a keyword each
    samples: Any,
    dst: Target,
    schema: Mapping[str, str] | None = None,
    *,
    classes: Iterable[str] | None = None,
    seed: int = 0,
    chunk_size: int | None = None,
    chunk_bytes: int | None = None,
    compression: Mode = "auto",
    jobs: int | None = None,
    decode: Mapping[str, DecodeImage] | None = None,
    label: str | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert a table, or any iterable or indexable of dicts, into a data set at `dst`.

    Args:
        samples: An iterable of dicts (a list, a generator), which is read once and in order; or an object with `len()`
            and `[i]`, of which each of `jobs` processes reads its own items. If processes cannot be forked, such an
            object must be picklable. Or a table: a DataFrame of pandas, a table of PyArrow, a `Dataset` of Hugging
            Face.
        dst: A folder that is new or empty, or holds an unfinished conversion of the same samples, which then continues;
            or a URL, as `s3://bucket/name`.
        schema: Field name -> codec: `bytes int float str json ndarray image audio`, or a list such as `list[image]`. A
            `str` field `key` names samples. A table needs none: then each column is a field, and its type determines
            the codec.
        classes: Names of the values of the `int` field `label`, in their order. If a table has names of its own
            (`ClassLabel`), its labels get the numbers of these names. If its labels are texts, they are such names.
        seed: Seed of the shuffle.
        chunk_size: Samples per chunk (default: 64, or the number that makes the mean chunk at least 4 and at most 256
            MiB).
        chunk_bytes: Target for the mean chunk instead, in stored bytes.
        compression: `auto` (zstandard if it saves 10 %), `zstd` or `none`.
        jobs: Processes (default: one per core). The result does not depend on it.
        decode: Field -> `DecodeImage(mode=..., upright=...)` or `DecodeMask()`: how readers decode its images, unless
            they say otherwise. Default: RGB, not turned; images of a `Dataset` of Hugging Face upright, as it does.
        label: The column of a table that becomes the field `label`.
        on_progress: Called with a `Progress` from time to time.

    Raises:
        SchemaError: A sample does not fit the schema; the message names sample and field.
        TargetExistsError: `dst` is taken.
        SourceError: There are no samples.
        StorageError: The storage refused a read or a write.
        InterruptedConversionError: A worker process died. The same call continues from there.
    """
    options = Options(seed, chunk_size, chunk_bytes, compression, jobs=jobs)
    return pack_samples(samples, dst, schema, classes, options, on_progress, decode, label or "")


def pack_samples(
    samples: Any,
    dst: Target,
    schema: Mapping[str, str] | None,
    classes: Iterable[str] | None,
    options: Options,
    on_progress: OnProgress,
    decode: Mapping[str, DecodeImage] | None = None,
    label: str = "",
) -> Report:
    """Do the work of `pack`, with the options of a conversion."""
    from brand.chunker.importers.tables import table_of  # not for the other conversions: many modules

    table = table_of(samples, schema, label)
    if table is None and schema is None:
        raise UsageError("the schema is missing: it names each field and its codec. Only tables need none")
    parsed = Schema.parse(schema or {}) if table is None else table.fields.schema
    told = defaults_of(decode or {}, parsed)
    natural = {} if table is None else table.decode
    defaults = told | {name: default for name, default in natural.items() if name not in (decode or {})}
    names = tuple(classes) if classes is not None else table.classes if table is not None else None
    numbers: NewLabels | LabelTexts | None = None
    if names is not None and "label" not in parsed.names:
        raise SchemaError("classes name the values of an 'int' field 'label', and the schema has none")
    if names is not None and table is not None:
        parsed, numbers = renumbered(parsed, table.classes, names)
    check_numbered(parsed, label, "classes=")
    if names is not None and parsed.codec("label") != "int":
        raise SchemaError("classes name the values of an 'int' field 'label', and the schema has none")
    started = time.monotonic()
    pictures = PictureCount(parsed)
    with _open_work(dst, options) as work:
        if table is not None:
            rows = _table_records(table, parsed, pictures, numbers)
            source: Source = spool(
                rows,
                parsed,
                options.seed,
                work.folder,
                total=table.rows,
                on_progress=on_progress,
                noticed=pictures.noticed,
            )
            source.describe(field_classes=table.field_classes)
        else:
            source = _python_source(samples, parsed, options.seed, work, pictures, on_progress)
        report = Conversion(work, source, "python", names, options, on_progress, defaults).run()
    renamed = () if table is None else (*table.fields.renamed, *table.notes)
    return replace(report, notes=(*report.notes, *renamed), seconds=time.monotonic() - started)


def _table_records(
    table: Table, schema: Schema, pictures: PictureCount, numbers: NewLabels | LabelTexts | None
) -> Iterator[Records]:
    first = 0
    for block in table.blocks:
        pictures.of_columns(block.columns, first)
        first += len(block)
        columns = block.columns if numbers is None else numbers.relabelled(block.columns, block.called)
        yield encode_columns(schema, columns, block.called)


def _open_work(dst: Target, options: Options) -> AbstractContextManager[Work]:
    folder = folder_of(dst)
    if folder is not None:
        return open_folder_work(folder, dry_run=options.dry_run)
    return open_store_work(str(parse_url(os.fspath(dst))), options.processes, dry_run=options.dry_run)


def _python_source(
    samples: Any, schema: Schema, seed: int, work: Work, pictures: PictureCount, on_progress: OnProgress
) -> Source:
    """Return the source of the samples that `pack` is given.

    Lists are spooled, too: each forked worker that reads items of a large list would copy the list, page by page.
    """
    sized = hasattr(samples, "__len__")
    if not sized or not hasattr(samples, "__getitem__") or isinstance(samples, list | tuple | Mapping):
        total = len(samples) if sized else None
        records = encoded(pictures.of_samples(samples), schema)
        return spool(records, schema, seed, work.folder, total=total, on_progress=on_progress, noticed=pictures.noticed)
    if not len(samples):
        raise SourceError("samples", "there are none")
    pictures.of_first(samples)
    return IndexableSource(samples, schema, pictures.noticed())


def _convert_folder(request: FolderRequest, dst: Target, on_progress: OnProgress) -> Report:
    started, options = time.monotonic(), request.options
    with _open_work(dst, options) as work, storage_errors(work.name, "cannot write"):
        found = find(request, work.folder, work, on_progress)
        with hinted(found.source, skipping=options.skip_errors):
            conversion = Conversion(work, found.source, request.kind, found.classes, options, on_progress)
            report = conversion.run(found.write_companions)
    seconds = report.seconds if options.dry_run else time.monotonic() - started
    return replace(report, skipped=found.problems, notes=found.notes, seconds=seconds)
