"""The conductor: source -> probe -> plan -> workers -> index -> manifest.

    scan / spool      the source becomes a number of samples that can be read in any order     folders, spool, source
    order             which sample goes where                                                  shuffle
    probe, plan       compression, chunk size, identity: decided before anything is written    plan
    pack              workers make chunks under temporary names                                chunks, workers
    publish           fsync and rename, in threads of this process, while workers go on        formats.publish
    index, manifest   what follows from the chunks' tables; the manifest last                  formats.index

A run that is stopped leaves whole chunks and the work folder; the same command makes the same plan, finds the chunks
and goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike, fspath, path
from pathlib import Path
from typing import Any, Final

import numpy as np

from brand.chunker.chunks import Packer, pack_chunk
from brand.chunker.companions import write_extras, write_skipped
from brand.chunker.folders import Folder, scan_folder
from brand.chunker.plan import Layout, Plan, make_plan
from brand.chunker.report import OnProgress, Problem, Progress, Report, silent
from brand.chunker.shuffle import open_order, write_order
from brand.chunker.source import FolderSource, IndexableSource, Source
from brand.chunker.spool import spool
from brand.chunker.transcripts import join_table
from brand.chunker.work import Work, open_work
from brand.chunker.workers import default_jobs, run_tasks
from brand.errors import SchemaError, SourceError, StorageError, UsageError
from brand.formats.compression import MODES, Mode
from brand.formats.constants import chunk_name
from brand.formats.index import IndexBuilder, seal
from brand.formats.publish import publish_file, storage_errors
from brand.formats.schema import Schema

Target = str | PathLike[str]

_PROBE_SAMPLES: Final = 16_384
_PROBE_BYTES: Final = 8 << 20
_CHECKS_A_TASK: Final = 32


@dataclass(frozen=True)
class Options:
    """How to convert. The first group decides the bytes that are written, the second how the work is done."""

    seed: int = 0
    layout: Layout = field(default_factory=Layout)
    compression: Mode = "auto"
    labels: bool = True
    """Top folders are classes."""

    jobs: int | None = None
    """Processes; None for one a core."""
    skip_errors: bool = False
    """Leave out files that cannot be used, and report them, instead of failing at the first."""
    validate: bool | None = None
    """Decode every file beforehand; None for "where errors are skipped", since only decoding finds them all."""
    follow_links: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"{self.jobs} processes: at least one is needed")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed}: a seed is a whole number from 0 to 2^64 - 1")
        if self.compression not in MODES:
            raise UsageError(f"compression {self.compression!r}: there are {', '.join(MODES)}")

    @property
    def processes(self) -> int:
        """Number of worker processes."""
        return self.jobs or default_jobs()

    @property
    def decode_all(self) -> bool:
        """Whether every file is decoded beforehand."""
        return self.skip_errors if self.validate is None else self.validate


def convert_images(
    src: Target, dst: Target, options: Options | None = None, *, on_progress: OnProgress = silent
) -> Report:
    """Convert an image folder. Samples have `image` (the file's bytes), `label` where there are class folders, and
    `key`.

    Raises `UsageError` (wrong call, taken target), `SourceError` (a file that cannot be used), `StorageError`,
    `InterruptedConversionError`. All but `UsageError` leave a state that the same call continues.
    """
    return _convert_folder(src, dst, "image", None, options or Options(), on_progress)


def convert_audio(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    transcripts: Target | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert an audio folder. Samples have `audio`, `label` where there are class folders, `text` where there are
    transcripts, and `key`.

    `transcripts` is a TSV or CSV of path and text; without it, `clip.txt` or `clip.lab` beside `clip.wav` holds its
    text. Raises as `convert_images` does.
    """
    return _convert_folder(src, dst, "audio", transcripts, options or Options(), on_progress)


def pack(
    samples: Any,
    dst: Target,
    schema: Mapping[str, str],
    *,
    classes: Iterable[str] | None = None,
    seed: int = 0,
    chunk_size: int | None = None,
    chunk_bytes: int | None = None,
    compression: Mode = "auto",
    jobs: int | None = None,
    on_progress: OnProgress = silent,
) -> Report:
    """Convert any iterable or indexable of dicts into a data set at `dst`.

    Args:
        samples: An iterable of dicts (a list, a generator: read once, in order), or an object with `len()` and `[i]`
            (read by `jobs`
            processes, each its own items; where processes cannot be forked it must be picklable).
        dst: A folder that does not exist, is empty, or holds an unfinished conversion of the same samples, which then
            goes on. schema: Field name -> codec: `bytes int float str json ndarray image audio`. A `str` field `key`
            names the samples. classes: Names of the values of the `int` field `label`. seed: Seed of the shuffle.
            chunk_size: Samples a chunk (default: 64, or as many as make the mean chunk 4 MiB). chunk_bytes: Target for
            the mean chunk instead, in stored bytes. compression: `auto` (zstandard where it saves 10 %), `zstd` or
            `none`. jobs: Processes (default: one a core). The result does not depend on it. on_progress: Called with a
            `Progress` now and then.

    Raises:
        SchemaError: A sample does not fit the schema; the message names sample and field.
        TargetExistsError: `dst` is taken.
        SourceError: There are no samples.
        StorageError: The storage refused.
    """
    options = Options(seed, Layout(chunk_size, chunk_bytes), compression, jobs=jobs)
    parsed, names = Schema.parse(schema), None if classes is None else tuple(classes)
    if names is not None and ("label", "int") not in parsed.fields:
        raise SchemaError("classes name the values of an 'int' field 'label', and the schema has none")
    started = time.monotonic()
    with open_work(Path(dst)) as work:
        source: Source
        if (
            hasattr(samples, "__getitem__")
            and hasattr(samples, "__len__")
            and not isinstance(samples, list | tuple | Mapping)
        ):
            source = IndexableSource(samples, parsed)
            if not len(source):
                raise SourceError("samples", "there are none")
        else:
            total = len(samples) if hasattr(samples, "__len__") else None
            source = spool(samples, parsed, seed, work.folder, total=total, on_progress=on_progress)
        conversion = _Conversion(work, source, "python", names, options, on_progress, started)
        return conversion.run([], [], lambda: None)


def _convert_folder(
    src: Target, dst: Target, kind: str, transcripts: Target | None, options: Options, on_progress: OnProgress
) -> Report:
    root, target, started = Path(path.normpath(fspath(src))), Path(dst), time.monotonic()
    table = Path(transcripts) if transcripts is not None else None
    if target.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{target} lies inside {root}: choose a target outside of the source")
    if not root.is_dir():
        raise UsageError(f"{root}: there is no such folder" if not root.exists() else f"{root} is a file, not a folder")
    with open_work(target, dry_run=options.dry_run) as work, storage_errors(target, "cannot write"):
        folder = scan_folder(
            root,
            work.folder,
            labels=options.labels,
            sidecars=kind == "audio" and table is None,
            follow_links=options.follow_links,
            exclude=table,
            on_progress=on_progress,
        )
        notes = [f"{folder.ignored} hidden files or folders were ignored"] if folder.ignored else []
        with_text = table is not None or bool(folder.listing.entries["sidecar"].any())
        if table is not None:
            told = join_table(table, root, folder.listing, {p.path for p in folder.problems})
            without = len(folder.listing) - told
            notes += [f"{without:,} clips have no transcript; their text is empty"] if without else []
        source = FolderSource(folder, kind, with_text=with_text)
        problems = _unusable(work, folder, source, options, on_progress)

        def write_companions() -> None:
            write_skipped(target, problems)
            write_extras(target, work.folder, folder, source, table)

        conversion = _Conversion(
            work, source, f"{kind}s" if kind == "image" else kind, folder.classes, options, on_progress, started
        )
        try:
            return conversion.run(problems, notes, write_companions)
        except SourceError as error:
            hint = "--validate finds such files beforehand" if options.skip_errors else _SKIP_HINT
            raise SourceError(error.path, error.reason, hint=hint) from error


def _unusable(
    work: Work, folder: Folder, source: FolderSource, options: Options, on_progress: OnProgress
) -> list[Problem]:
    """Files to leave out; raises `SourceError` for the first one unless errors are skipped."""
    problems = list(folder.problems)
    alone = set(folder.lost_sidecars)
    if options.decode_all:
        problems += _check_all(work, source, options, on_progress, alone)
    if alone:
        alone.difference_update(source.all_sidecars())
        problems += [Problem(name, "the clip that it belongs to was left out") for name in sorted(alone)]
    if problems and not options.skip_errors:
        more = f" {len(problems) - 1:,} more files cannot be used either." if len(problems) > 1 else ""
        raise SourceError(problems[0].path, problems[0].reason, hint=more.strip() + " " * bool(more) + _SKIP_HINT)
    if not len(source):
        raise SourceError(
            str(folder.root),
            "none of its files can be used",
            hint=f"The first: {problems[0].path}: {problems[0].reason}",
        )
    return problems


_SKIP_HINT: Final = "--on-error skip leaves such files out and lists them"


def _check_all(
    work: Work, source: FolderSource, options: Options, on_progress: OnProgress, lost_sidecars: set[str]
) -> list[Problem]:
    """Decode every file, in all processes, and leave out of the source what does not decode."""
    key = f"{source.fingerprint(times=True)} {source.file_field}"
    total = len(source)
    found = work.recall("checked", key)
    if found is None:
        found, done = [], 0
        sizes = source.listing.entries["size"]
        total_bytes, bytes_done = int(sizes.sum()), 0
        for first, bad in run_tasks(_check_files, source, range(0, total, _CHECKS_A_TASK), jobs=options.processes):
            found += bad
            last = min(first + _CHECKS_A_TASK, total)
            done, bytes_done = done + last - first, bytes_done + int(sizes[first:last].sum())
            on_progress(Progress("check", done, total, bytes_done, total_bytes))
        found.sort()
        work.remember("checked", key, found)
    bad_mask = np.zeros(total, bool)
    bad_mask[[index for index, _ in found]] = True
    problems = [Problem(source.listing.key(index), reason) for index, reason in found]
    for index, _ in found:
        lost_sidecars.update(source.sidecars(index))
    if found:
        source.listing = source.listing.without(bad_mask)
    return problems


def _check_files(source: FolderSource, first: int) -> list[tuple[int, str]]:
    bad = []
    for index in range(first, min(first + _CHECKS_A_TASK, len(source))):
        try:
            source.check(index)
        except SourceError as error:
            bad.append((index, error.reason))
    return bad


def _publish(temporary: Path, final: Path) -> None:
    with storage_errors(final, "cannot write"):
        publish_file(temporary, final)


class _Conversion:
    """From a source that can be read in any order to a sealed data set."""

    def __init__(
        self,
        work: Work,
        source: Source,
        kind: str,
        classes: tuple[str, ...] | None,
        options: Options,
        on_progress: OnProgress,
        started: float,
    ) -> None:
        self.work, self.source, self.kind, self.classes = work, source, kind, classes
        self.options, self.on_progress, self.started = options, on_progress, started

    def run(self, problems: list[Problem], notes: list[str], write_companions: Callable[[], None]) -> Report:
        """Plan, claim the target, write, seal. Nothing is written to the target before it is claimed."""
        samples = len(self.source)
        order_path = self.work.folder / "order.bin"
        with storage_errors(self.work.target, "cannot write"):
            write_order(order_path, samples, self.options.seed)
        probe_started = time.monotonic()
        probe = self._probe(order_path)
        plan = self._plan(probe)
        if self.options.dry_run:
            rate = sum(map(len, probe)) / max(1e-3, time.monotonic() - probe_started)
            seconds = plan.raw_bytes / rate / self.options.processes
            return self._report(plan, plan.stored_bytes, problems, notes, 0, seconds)
        with storage_errors(self.work.target, "cannot write"):
            self.work.claim({"id": plan.data_set_id.hex(), "source": self.source.fingerprint(times=True)})
            self._check_room(plan)
            write_companions()
            builder = IndexBuilder(self.work.folder / "built", plan.header)
        found = self._write_chunks(plan, builder)
        with storage_errors(self.work.target, "cannot write"):
            manifest = seal(
                self.work.target,
                builder,
                data_set_id=plan.data_set_id,
                dictionary_size=len(plan.compression.dictionary),
            )
            self.work.tidy()
        return self._report(plan, manifest.stored_bytes, problems, notes, found, time.monotonic() - self.started)

    def _probe(self, order_path: Path) -> list[bytes]:
        """Records of the first places, that is of random samples: up to 16,384 of them or 8 MiB."""
        indices = open_order(order_path, len(self.source))[:_PROBE_SAMPLES]
        sizes = self.source.sizes(indices)
        if sizes is not None:
            return self.source.records(indices[: 1 + int(np.searchsorted(np.cumsum(sizes), _PROBE_BYTES))])
        probe: list[bytes] = []
        held = 0
        for index in indices:
            probe += self.source.records(np.array([index]))
            held += len(probe[-1])
            if held > _PROBE_BYTES:
                break
        return probe

    def _plan(self, probe: list[bytes]) -> Plan:
        source, options = self.source, self.options
        return make_plan(
            samples=len(source),
            raw_bytes=source.raw_bytes,
            probe=probe,
            mode=options.compression,
            layout=options.layout,
            schema=source.schema,
            classes=self.classes,
            seed=options.seed,
            source={"kind": self.kind} | ({"file_field": source.file_field} if source.file_field else {}),
            fingerprint=source.fingerprint(times=False),
        )

    def _check_room(self, plan: Plan) -> None:
        """Fail before hours of work where the data cannot fit; an estimate, so the writers check again."""
        there = sum(file.stat().st_size for file in (self.work.target / "chunks").iterdir())
        free, need = shutil.disk_usage(self.work.target).free, round(plan.stored_bytes * 0.95) - there
        if need > free:
            raise StorageError(
                f"{self.work.target}: about {need:,} bytes are still to be written and {free:,} are free."
                " Free some space and run the same command again",
            )

    def _write_chunks(self, plan: Plan, builder: IndexBuilder) -> int:
        """Have all chunks made, and publish and index each as it comes. Returns how many were there already."""
        packer = Packer(plan, self.source, self.work.target, self.work.folder)
        total, done, bytes_done, found = plan.header.samples, 0, 0, 0
        chunks = run_tasks(pack_chunk, packer, range(plan.header.chunks), jobs=self.options.processes)
        with ThreadPoolExecutor(self.options.processes) as publishers:
            pending: list[Future[None]] = []
            for number, chunk in chunks:
                if not chunk.found:
                    final = self.work.target / chunk_name(number)
                    pending.append(publishers.submit(_publish, packer.temporary(number), final))
                pending = [p for p in pending if not (p.done() and p.result() is None)]
                builder.add(number, chunk.rows, chunk.checksum, chunk.columns)
                found += chunk.found
                done += len(chunk.rows)
                bytes_done += int(chunk.rows["raw_size"].sum(dtype=np.int64))
                self.on_progress(Progress("pack", done, total, bytes_done, max(bytes_done, plan.raw_bytes)))
            for publication in pending:
                publication.result()
        return found

    def _report(
        self, plan: Plan, stored: int, problems: list[Problem], notes: list[str], found: int, seconds: float
    ) -> Report:
        return Report(
            target=str(self.work.target),
            samples=plan.header.samples,
            classes=None if self.classes is None else len(self.classes),
            chunks=plan.header.chunks,
            chunk_size=plan.header.chunk_size,
            source_bytes=plan.raw_bytes,
            stored_bytes=stored,
            compression=plan.compression.codec,
            dictionary_bytes=len(plan.compression.dictionary),
            skipped=tuple(problems),
            notes=tuple(notes),
            chunks_found=found,
            seconds=seconds,
            dry_run=self.options.dry_run,
        )
