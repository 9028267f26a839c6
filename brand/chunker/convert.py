"""The ways into a data set: an image folder, an audio folder, data that another tool has written, samples from Python.
Each becomes a source, and the conductor does the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from brand.chunker.check import SKIP_HINT, leave_out_unusable
from brand.chunker.companions import write_extras, write_skipped
from brand.chunker.conductor import Conversion
from brand.chunker.exchange import exchange
from brand.chunker.fields import Choice
from brand.chunker.folder_work import open_folder_work
from brand.chunker.folders import check_folder, scan_folder
from brand.chunker.importers import FORMATS, open_shards
from brand.chunker.misfit import misfit_hint
from brand.chunker.options import Options
from brand.chunker.plan import Layout
from brand.chunker.report import OnProgress, Report, silent
from brand.chunker.shards import Shards
from brand.chunker.source import FolderSource, IndexableSource, Source
from brand.chunker.spool import spool, spool_records
from brand.chunker.store_work import open_store_work
from brand.chunker.tables import table_of
from brand.chunker.transcripts import join_table, not_taken
from brand.chunker.work import Work
from brand.errors import SchemaError, SourceError, UsageError, counted
from brand.formats.compression import Mode
from brand.formats.publish import storage_errors
from brand.formats.record import encode_columns
from brand.formats.schema import Schema
from brand.stores.url import is_url, parse_url

Target = str | os.PathLike[str]
"""A path; for the data set that is written also a URL, as a str."""

_FIELDS: Final = {"images": "image", "audio": "audio"}
"""Kind of folder -> field that holds a file's bytes."""


def convert_images(
    src: Target, dst: Target, options: Options | None = None, *, on_progress: OnProgress = silent
) -> Report:
    """Convert an image folder.

    Samples have `image` (the file's bytes), `label` where there are class folders, and `key`.

    Raises:
        UsageError: The call is wrong, or the target is taken (`TargetExistsError`).
        SourceError: A file cannot be used, or there are none.
        StorageError: The storage refused a read or a write. The same call goes on from there, as after a kill.
        InterruptedConversionError: A worker process died. The same call goes on from there.
    """
    return _convert_folder(src, dst, "images", None, (), options or Options(), on_progress)


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

    Samples have `audio` (the file's bytes), `label` where there are class folders, `text` where there are transcripts,
    and `key`. `transcripts` is a TSV or CSV of path and text; without it, `clip.txt` or `clip.lab` holds the text of
    `clip.wav`. `columns` names other columns of the table, which become `str` fields. Raises as `convert_images` does.
    """
    if isinstance(columns, str):
        raise UsageError(f"columns={columns!r}: give a tuple of names, ({columns!r},)")
    if columns and transcripts is None:
        raise UsageError("--columns names columns of a table: say with --transcripts which it is")
    return _convert_folder(src, dst, "audio", transcripts, columns, options or Options(), on_progress)


def convert_from(
    kind: str,
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    choice: Choice | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert data that another tool has written; `kind` is one of `brand.chunker.importers.FORMATS`.

    `choice` says which columns become fields, and with which codecs. Raises as `convert_images` does, and
    `MissingExtraError` where a library is not installed.
    """
    options, started = options or Options(), time.monotonic()
    if options.dry_run:
        raise UsageError("a dry run would read all of the source: it is for folders of files only")
    if kind not in FORMATS:
        raise UsageError(f"{kind!r} is no format that is converted; there are {', '.join(FORMATS)}")
    if not is_url(src) and not is_url(dst) and Path(dst).resolve().is_relative_to(Path(src).resolve()):
        raise UsageError(f"{os.fspath(dst)} lies inside {os.fspath(src)}: choose a target outside of the source")
    source: Shards = open_shards(kind, src, choice or Choice())
    with _open_work(dst, options) as work:
        spooled, problems, found = exchange(source, options, work.folder, on_progress)
        conversion = Conversion(work, spooled, kind, source.classes, options, on_progress)
        report = conversion.run(partial(write_skipped, work, problems))
    compared = f"Compared with the source: {counted(len(spooled), 'sample')}, {spooled.raw_bytes:,} bytes"
    again = [f"{counted(found, 'part')} of the source found, from a run that was stopped"] if found else []
    return replace(
        report,
        skipped=tuple(problems),
        notes=(*source.notes, *again, compared),
        seconds=time.monotonic() - started,
    )


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
            and `[i]`, of which each of `jobs` processes reads its own items. Where processes cannot be forked, such an
            object must be picklable. Or a table: a DataFrame of pandas, a table of PyArrow, a `Dataset` of Hugging
            Face.
        dst: A folder that is new or empty, or holds an unfinished conversion of the same samples, which then goes on;
            or a URL, as `s3://bucket/name`.
        schema: Field name -> codec: `bytes int float str json ndarray image audio`. A `str` field `key` names samples.
            A table needs none: then each column is a field, and its type tells the codec.
        classes: Names of the values of the `int` field `label`.
        seed: Seed of the shuffle.
        chunk_size: Samples a chunk (default: 64, or as many as make the mean chunk 4 MiB).
        chunk_bytes: Target for the mean chunk instead, in stored bytes.
        compression: `auto` (zstandard where it saves 10 %), `zstd` or `none`.
        jobs: Processes (default: one a core). The result does not depend on it.
        on_progress: Called with a `Progress` now and then.

    Raises:
        SchemaError: A sample does not fit the schema; the message names sample and field.
        TargetExistsError: `dst` is taken.
        SourceError: There are no samples.
        StorageError: The storage refused a read or a write.
        InterruptedConversionError: A worker process died. The same call goes on from there.
    """
    options = Options(seed, Layout(chunk_size, chunk_bytes), compression, jobs=jobs)
    table = table_of(samples, schema)
    if table is None and schema is None:
        raise UsageError("the schema is missing: it names each field and its codec. Only tables do without")
    parsed = Schema.parse(schema or {}) if table is None else table.fields.schema
    names = tuple(classes) if classes is not None else table.classes if table is not None else None
    if names is not None and ("label", "int") not in parsed.fields:
        raise SchemaError("classes name the values of an 'int' field 'label', and the schema has none")
    started = time.monotonic()
    with _open_work(dst, options) as work:
        if table is not None:
            rows = (encode_columns(parsed, block.columns, block.called) for block in table.blocks())
            source: Source = spool_records(rows, parsed, seed, work.folder, total=table.rows, on_progress=on_progress)
        else:
            source = _python_source(samples, parsed, seed, work, on_progress)
        report = Conversion(work, source, "python", names, options, on_progress).run()
    renamed = () if table is None else tuple(table.fields.renamed)
    return replace(report, notes=renamed, seconds=time.monotonic() - started)


def _open_work(dst: Target, options: Options) -> AbstractContextManager[Work]:
    if not isinstance(dst, str) or not is_url(dst):
        return open_folder_work(Path(dst), dry_run=options.dry_run)
    url = parse_url(dst)
    if url.scheme == "file":
        return open_folder_work(Path("/", url.path), dry_run=options.dry_run)
    return open_store_work(str(url), options.processes, dry_run=options.dry_run)


def _python_source(samples: Any, schema: Schema, seed: int, work: Work, on_progress: OnProgress) -> Source:
    """The source of what `pack` is given.

    Lists are spooled, too: each forked worker that reads items of a large list would copy the list, page by page.
    """
    sized = hasattr(samples, "__len__")
    if not sized or not hasattr(samples, "__getitem__") or isinstance(samples, list | tuple | Mapping):
        total = len(samples) if sized else None
        return spool(samples, schema, seed, work.folder, total=total, on_progress=on_progress)
    if not len(samples):
        raise SourceError("samples", "there are none")
    return IndexableSource(samples, schema)


def _convert_folder(
    src: Target,
    dst: Target,
    kind: Literal["images", "audio"],
    transcripts: Target | None,
    columns: Sequence[str],
    options: Options,
    on_progress: OnProgress,
) -> Report:
    root, started = Path(os.path.normpath(os.fspath(src))), time.monotonic()
    table = Path(transcripts) if transcripts is not None else None
    if not is_url(dst) and Path(dst).resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{os.fspath(dst)} lies inside {root}: choose a target outside of the source")
    check_folder(root)
    with _open_work(dst, options) as work, storage_errors(work.name, "cannot write"):
        folder = scan_folder(
            root,
            work.folder,
            labels=options.labels,
            sidecars=kind == "audio" and table is None,
            follow_links=options.follow_links,
            exclude=table,
            on_progress=on_progress,
        )
        notes = (
            [f"{counted(folder.ignored, 'hidden file or folder', 'hidden files or folders')} ignored"]
            if folder.ignored
            else []
        )
        if table is not None:
            told, left = join_table(table, root, folder.listing, {p.path for p in folder.problems}, columns)
            notes += [not_taken(table, left)] if left else []
            without = len(folder.listing) - told
            notes += [f"{counted(without, 'clip')} without a transcript; the text is empty there"] if without else []
        with_text = table is not None or bool(folder.listing.entries["sidecar"].any())
        source = FolderSource(folder, _FIELDS[kind], with_text=with_text)
        problems = leave_out_unusable(work, folder, source, options, on_progress)

        def write_companions() -> None:
            write_skipped(work, problems)
            write_extras(work, folder, source, table)

        try:
            report = Conversion(work, source, kind, folder.classes, options, on_progress).run(write_companions)
        except SourceError as error:
            otherwise = "--validate finds such files beforehand" if options.skip_errors else SKIP_HINT
            hint = misfit_hint(source) or otherwise
            raise SourceError(error.path, error.reason, hint=hint) from error
    seconds = report.seconds if options.dry_run else time.monotonic() - started
    return replace(
        report, skipped=tuple(sorted(problems, key=lambda problem: problem.path)), notes=tuple(notes), seconds=seconds
    )
