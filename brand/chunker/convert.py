"""The functions that make a data set of an image folder, an audio folder, data of another tool, or samples from Python.

Each turns its input into a source, and the conductor does the rest. For several machines, a folder is planned instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from brand.chunker.conductor import Conversion
from brand.chunker.importers import FORMATS, open_shards
from brand.chunker.importers.beside import images_request
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.objects import connections
from brand.chunker.importers.tables import table_of
from brand.chunker.importers.tokens import TokenOptions, open_tokens
from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, Report, silent
from brand.chunker.sources.blocks import encoded
from brand.chunker.sources.folders import check_unconverted
from brand.chunker.sources.request import (
    FolderRequest,
    Target,
    find,
    folder_of,
    hinted,
    local_source,
    make_request,
    write_skipped,
)
from brand.chunker.sources.shards import Shards, exchange
from brand.chunker.sources.source import IndexableSource, Source
from brand.chunker.sources.spool import spool
from brand.chunker.work.store_work import open_store_work
from brand.chunker.work.work import Work, open_folder_work
from brand.errors import SchemaError, SourceError, UsageError, counted
from brand.formats.compression import Mode
from brand.formats.header import Schema
from brand.formats.publish import storage_errors
from brand.formats.record import encode_columns
from brand.stores.url import is_url, parse_url


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
    `file_name` names the images.

    Raises:
        UsageError: The call is wrong, or the target is taken (`TargetExistsError`).
        SourceError: A file cannot be used, or there are none.
        StorageError: The storage refused a read or a write. The same call continues from there, as after a kill.
        InterruptedConversionError: A worker process died. The same call continues from there.
    """
    return _convert_folder(images_request(src, dst, options, table, key, choice), dst, on_progress)


def convert_audio(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    transcripts: Target | None = None,
    columns: Sequence[str] = (),
    on_progress: OnProgress = silent,
) -> Report:
    """Convert an audio folder.

    Samples have `audio` (the file's bytes), `label` if there are class folders, `duration` (seconds, from the file's
    header; nan if libsndfile cannot open it; no such field without the package soundfile), `text` if there are
    transcripts, and `key`. `transcripts` is a TSV or CSV of path and text; without it, `clip.txt` or `clip.lab` holds
    the text of `clip.wav`. `columns` names other columns of the table, which become `str` fields. Raises as
    `convert_images` does.
    """
    return _convert_folder(make_request(src, dst, "audio", options, transcripts, columns), dst, on_progress)


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
    if options.dry_run:
        raise UsageError("a dry run would read all of the source: dry runs are for folders of files only")
    if kind not in FORMATS:
        raise UsageError(f"{kind!r} is not a format that is converted; the formats are {', '.join(FORMATS)}")
    if not _is_streamed(kind, src):
        src = local_source(src)
        check_unconverted(Path(src))
    if not is_url(src) and not is_url(dst) and Path(dst).resolve().is_relative_to(Path(src).resolve()):
        raise UsageError(f"{os.fspath(dst)} is inside {os.fspath(src)}: choose a target outside of the source")
    with ExitStack() as stack:
        stack.enter_context(connections())
        source: Shards = open_shards(kind, src, choice or FieldMapping())
        if options.like is not None:  # before all of it is read
            options.like.check(source.schema, source.classes)
        work = stack.enter_context(_open_work(dst, options))
        spooled, problems, found = exchange(source, options, work.folder, on_progress)
        conversion = Conversion(work, spooled, kind, source.classes, options, on_progress)
        report = conversion.run(lambda folder: write_skipped(folder, problems))
    compared = f"Compared with the source: {counted(len(spooled), 'sample')}, {spooled.raw_bytes:,} bytes"
    again = [f"{counted(found, 'shard')} of the source found, from a run that was stopped"] if found else []
    notes = (*source.notes, *again, compared)
    return replace(report, skipped=tuple(problems), notes=notes, seconds=time.monotonic() - started)


def _is_streamed(kind: str, src: Target) -> bool:
    """Return whether an importer reads a URL itself: the Hub's for `hf`, those of other stores for other formats."""
    scheme = os.fspath(src).partition("://")[0].lower()
    return is_url(src) and scheme != "file" and (scheme == "hf") == (kind == "hf")


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
    with _open_work(dst, options) as work, storage_errors(work.name, "cannot write"):
        source = open_tokens(local_source(src), tokens, work.folder)
        report = Conversion(work, source, "tokens", None, options, on_progress).run()
    notes = (f"{counted(source.tokens, 'token')} in {counted(len(source.files), 'file')}",)
    return replace(report, notes=notes, seconds=time.monotonic() - started)


def pack(
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
        classes: Names of the values of the `int` field `label`.
        seed: Seed of the shuffle.
        chunk_size: Samples per chunk (default: 64, or the number that makes the mean chunk at least 4 and at most 256
            MiB).
        chunk_bytes: Target for the mean chunk instead, in stored bytes.
        compression: `auto` (zstandard if it saves 10 %), `zstd` or `none`.
        jobs: Processes (default: one per core). The result does not depend on it.
        on_progress: Called with a `Progress` from time to time.

    Raises:
        SchemaError: A sample does not fit the schema; the message names sample and field.
        TargetExistsError: `dst` is taken.
        SourceError: There are no samples.
        StorageError: The storage refused a read or a write.
        InterruptedConversionError: A worker process died. The same call continues from there.
    """
    options = Options(seed, chunk_size, chunk_bytes, compression, jobs=jobs)
    return pack_samples(samples, dst, schema, classes, options, on_progress)


def pack_samples(
    samples: Any,
    dst: Target,
    schema: Mapping[str, str] | None,
    classes: Iterable[str] | None,
    options: Options,
    on_progress: OnProgress,
) -> Report:
    """Do the work of `pack`, with the options of a conversion."""
    table = table_of(samples, schema)
    if table is None and schema is None:
        raise UsageError("the schema is missing: it names each field and its codec. Only tables need none")
    parsed = Schema.parse(schema or {}) if table is None else table.fields.schema
    names = tuple(classes) if classes is not None else table.classes if table is not None else None
    if names is not None and ("label", "int") not in parsed.fields:
        raise SchemaError("classes name the values of an 'int' field 'label', and the schema has none")
    started = time.monotonic()
    with _open_work(dst, options) as work:
        if table is not None:
            rows = (encode_columns(parsed, block.columns, block.called) for block in table.blocks)
            source: Source = spool(rows, parsed, options.seed, work.folder, total=table.rows, on_progress=on_progress)
        else:
            source = _python_source(samples, parsed, options.seed, work, on_progress)
        report = Conversion(work, source, "python", names, options, on_progress).run()
    renamed = () if table is None else tuple(table.fields.renamed)
    return replace(report, notes=renamed, seconds=time.monotonic() - started)


def _open_work(dst: Target, options: Options) -> AbstractContextManager[Work]:
    folder = folder_of(dst)
    if folder is not None:
        return open_folder_work(folder, dry_run=options.dry_run)
    return open_store_work(str(parse_url(os.fspath(dst))), options.processes, dry_run=options.dry_run)


def _python_source(samples: Any, schema: Schema, seed: int, work: Work, on_progress: OnProgress) -> Source:
    """Return the source of the samples that `pack` is given.

    Lists are spooled, too: each forked worker that reads items of a large list would copy the list, page by page.
    """
    sized = hasattr(samples, "__len__")
    if not sized or not hasattr(samples, "__getitem__") or isinstance(samples, list | tuple | Mapping):
        total = len(samples) if sized else None
        return spool(encoded(samples, schema), schema, seed, work.folder, total=total, on_progress=on_progress)
    if not len(samples):
        raise SourceError("samples", "there are none")
    return IndexableSource(samples, schema)


def _convert_folder(request: FolderRequest, dst: Target, on_progress: OnProgress) -> Report:
    started, options = time.monotonic(), request.options
    with _open_work(dst, options) as work, storage_errors(work.name, "cannot write"):
        found = find(request, work.folder, work, on_progress)
        with hinted(found.source, skipping=options.skip_errors):
            conversion = Conversion(work, found.source, request.kind, found.folder.classes, options, on_progress)
            report = conversion.run(found.write_companions)
    seconds = report.seconds if options.dry_run else time.monotonic() - started
    return replace(report, skipped=found.problems, notes=found.notes, seconds=seconds)
