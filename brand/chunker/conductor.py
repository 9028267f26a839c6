"""From a source that can be read in any order to a sealed data set.

    order             the storage order of the samples                                         shuffle
    probe, plan       compression, chunk size, identity: decided before anything is written    chunks, plan
    claim             this plan takes the target; any other plan is refused                    work
    pack              workers make chunks under temporary names                                chunks, workers
    publish           fsync and rename, or upload, in threads, while workers continue          formats.publish, work
    index, manifest   computed from the tables of the chunks; the manifest last                formats.index

A run that is stopped leaves whole chunks and the work folder. The same command then makes the same plan, finds the
chunks and continues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from brand.chunker.plan.plan import ChunkPlan, Options
from brand.chunker.plan.report import OnProgress, Report, StageProgress
from brand.chunker.sources.source import Source
from brand.chunker.sources.spool import SpoolSource
from brand.chunker.sources.workers import run_tasks
from brand.chunker.work.chunks import Packer, decide, pack_chunk
from brand.chunker.work.work import Work
from brand.errors import SourceError
from brand.formats.header import DecodeDefault
from brand.formats.index import IndexBuilder
from brand.formats.publish import storage_errors

_SAMPLES_HELD: Final = 3
"""Samples in the memory of a process if they are large: as the source gives it, as a record, and compressed."""
_UNPUBLISHED: Final = 4
"""The most finished chunks of each process that wait for the device; beyond that, workers wait."""


@dataclass(frozen=True)
class Conversion:
    """The conversion of one source to one target."""

    work: Work
    source: Source
    kind: str
    """Kind of the source, as the header names it."""
    classes: tuple[str, ...] | None
    options: Options
    on_progress: OnProgress
    decode: Mapping[str, DecodeDefault] = field(default_factory=dict)
    """Field -> how its images are decoded by default."""

    def run(self, write_companions: Callable[[Path], Iterable[str]] | None = None) -> Report:
        """Plan, claim the target, write, seal. Nothing is written to the target before it is claimed.

        `write_companions` writes files into a folder and returns their names.
        Raises `SourceError`, `SchemaError`, `StorageError`, `TargetExistsError`, `InterruptedConversionError`.
        """
        started, work = time.monotonic(), self.work
        plan, rate = decide(self.source, self.kind, self.classes, self.options, work.folder / "order.bin", self.decode)
        if self.options.dry_run:
            return self._report(plan, plan.stored_bytes, 0, plan.raw_bytes / rate / self.options.processes)
        with storage_errors(work.name, "cannot write"):
            work.claim(plan.data_set_id, self.source.fingerprint(times=True))
            work.check_room(plan.stored_bytes)
            for name in write_companions(work.folder) if write_companions is not None else ():
                work.publish_companion(work.folder / name, name)
            builder = IndexBuilder(work.folder / "built", plan.header, work.name)
        found = self._write_chunks(plan, builder)
        self._compare(builder)
        with storage_errors(work.name, "cannot write"):
            manifest = work.seal(plan, builder, work.companions, self.source.noticed)
        seconds = time.monotonic() - started
        return replace(self._report(plan, manifest.stored_bytes, found, seconds), noticed=manifest.noticed)

    def _write_chunks(self, plan: ChunkPlan, builder: IndexBuilder) -> int:
        """Make all chunks in workers; publish and index each finished one. Returns how many an earlier run had made."""
        packer = Packer(plan, self.source, self.work.earlier(plan), self.work.folder)
        processes = self.options.processes_for(_SAMPLES_HELD * plan.raw_bytes // plan.header.samples)
        at_once = self.work.publishers(processes, plan.stored_bytes // plan.header.chunks)
        most = max(at_once, _UNPUBLISHED * processes)
        done = done_bytes = found = 0
        chunks = run_tasks(pack_chunk, packer, range(plan.header.chunks), jobs=processes)
        with closing(chunks), ThreadPoolExecutor(at_once) as publishers:
            waiting: deque[Future[None]] = deque()
            for number, chunk in chunks:
                if not chunk.found:
                    waiting.append(publishers.submit(self.work.publish_chunk, number, packer.temporary(number), chunk))
                while waiting and (waiting[0].done() or len(waiting) > most):
                    waiting.popleft().result()
                with storage_errors(self.work.name, "cannot write the index of"):
                    builder.add(number, chunk.rows, chunk.checksum, chunk.columns, chunk.counts)
                found += chunk.found
                done += len(chunk.rows)
                done_bytes += int(chunk.rows["raw_size"].sum(dtype=np.int64))
                total_bytes = max(done_bytes, plan.raw_bytes)
                self.on_progress(StageProgress("pack", done, plan.header.samples, done_bytes, total_bytes))
            for publication in waiting:
                publication.result()
        return found

    def _compare(self, builder: IndexBuilder) -> None:
        """Compare the contents of the chunks with what was read, if the source has counted it.

        Raises `SourceError` if they differ.
        """
        if isinstance(self.source, SpoolSource):
            read, written = (len(self.source), self.source.raw_bytes), (builder.samples, builder.raw_bytes)
            if read != written:
                raise SourceError(
                    self.work.name,
                    f"the chunks hold {written[0]:,} samples of {written[1]:,} bytes, and {read[0]:,} of {read[1]:,}"
                    " bytes were read from the source. The work folder was changed from outside",
                    hint="Remove the target and convert again",
                )

    def _report(self, plan: ChunkPlan, stored_bytes: int, found: int, seconds: float) -> Report:
        return Report(
            target=self.work.name,
            samples=plan.header.samples,
            classes=self.classes,
            chunks=plan.header.chunks,
            chunk_size=plan.header.chunk_size,
            source_bytes=plan.raw_bytes,
            stored_bytes=stored_bytes,
            compression=plan.compression.codec,
            dictionary_bytes=len(plan.compression.dictionary),
            notes=self._notes(),
            chunks_found=found,
            seconds=seconds,
            dry_run=self.options.dry_run,
        )

    def _notes(self) -> tuple[str, ...]:
        like = self.options.like
        if like is None or like.decode == self.decode:
            return ()
        fields = {*like.decode, *self.decode}
        how = ", ".join(sorted(f"{name}: {like.decode.get(name, DecodeDefault()).codec('image')}" for name in fields))
        return (f"The collection decides how images are decoded ({how}), and this source says otherwise",)
