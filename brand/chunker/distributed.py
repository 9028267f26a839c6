"""How do several machines convert one folder of files? One call plans, any process makes chunks, and one call seals.

    job = plan_images("images", "train.brand")       on each machine: the first one plans, the others load the plan
    run(job, number)                                 one chunk, in any process; or `run_task` for a task of many chunks
    seal("train.brand")                              once, after all chunks

The machines share only a folder that all of them see.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from brand.chunker.importers.beside import images_source
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.manifests import kind_of_manifest
from brand.chunker.importers.namedfiles import NamedFiles
from brand.chunker.plan.plan import Options
from brand.chunker.plan.report import OnProgress, TaskReport, silent
from brand.chunker.sources.objects import connections
from brand.chunker.sources.request import FolderRequest, Target, folder_of, make_request
from brand.chunker.sources.texttable import Dialect
from brand.chunker.tasks.planning import Job, plan
from brand.chunker.tasks.running import PublishedChunk, Task, run, run_task
from brand.chunker.tasks.sealing import seal
from brand.errors import UsageError

__all__ = ["Job", "PublishedChunk", "Task", "TaskReport", "plan_audio", "plan_images", "run", "run_task", "seal"]


def plan_images(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    table: Target | None = None,
    key: str | None = None,
    choice: FieldMapping | None = None,
    tasks: int = 0,
    on_progress: OnProgress = silent,
) -> Job:
    """Plan the conversion of an image folder, for several processes or machines that make its chunks with `run`.

    All machines see the folders `src` and `dst`. The first machine lists `src` and plans; the others load its plan.
    Arguments are those of `convert_images`. `tasks` is the number of tasks, for the messages of `seal`. Raises as
    `convert_images` does, and `TargetExistsError` if there is a plan that was made with other options or versions.
    """
    with connections():
        source = images_source(src, dst, options, table, key, choice)
        if isinstance(source, NamedFiles):
            raise UsageError(
                f"{source.shards[0].name} names several files in a row, and is read once, in order, on one machine:"
                " leave out the division into tasks; -j sets the processes"
            )
        return _plan(source, dst, tasks, on_progress)


def plan_audio(
    src: Target,
    dst: Target,
    options: Options | None = None,
    *,
    transcripts: Target | None = None,
    columns: Sequence[str] = (),
    dialect: Dialect | None = None,
    tasks: int = 0,
    on_progress: OnProgress = silent,
) -> Job:
    """Plan the conversion of an audio folder, as `plan_images` does. Arguments are those of `convert_audio`."""
    with connections():
        request = make_request(src, dst, "audio", options, transcripts, columns, dialect)
        if request.table is not None and kind_of_manifest(request.table) is not None:
            raise UsageError(
                f"{request.table} is a manifest, whose recordings are read once, in order, on one machine: leave out"
                " the division into tasks; -j sets the processes"
            )
        return _plan(request, dst, tasks, on_progress)


def _plan(request: FolderRequest, dst: Target, tasks: int, on_progress: OnProgress) -> Job:
    if request.options.dry_run:
        raise UsageError("a dry run is of the whole conversion, in one process: leave out the division into tasks")
    folder = folder_of(dst)
    if folder is None:
        raise UsageError(
            f"{os.fspath(dst)}: tasks write to a folder that all machines see. Convert into a folder, and copy the"
            f" data set then: `brand copy FOLDER {os.fspath(dst)}`"
        )
    return plan(request, folder, tasks, on_progress)
