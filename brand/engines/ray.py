"""A conversion on a Ray cluster: one plain task for each chunk.

A task is `brand.chunker.distributed.run`: it publishes its chunk itself, and a repeated task changes nothing. So Ray
may repeat a task if a worker or a node dies, results are a few numbers for the progress, and if this process dies,
the same command continues. At most a few tasks for each core wait at a time.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from brand.chunker.distributed import Job, PublishedChunk, run
from brand.chunker.plan.report import OnProgress, StageProgress, silent
from brand.chunker.tasks.planning import read_decided, shared_work_folder
from brand.errors import BrandError, InterruptedConversionError, MissingExtraError, UsageError
from brand.formats.constants import SHARED_PLAN_NAME

try:
    import ray
except ImportError as error:
    raise MissingExtraError("--engine ray needs the package ray: pip install 'brand-data[ray]'") from error

RETRIES: Final = 10
"""The most repetitions of a task whose worker has died; an error of the conversion itself is final."""
CONNECT_S: Final = 10.0
"""The most seconds that a connection to the cluster may take."""
STILL_S: Final = 3600.0
"""The most seconds without a finished chunk: nodes may have to start first."""
_IN_FLIGHT: Final = 4
"""Tasks for each core of the cluster that wait or run, unless the caller sets the number."""


def make_chunks(
    job: Job, *, address: str | None = None, jobs: int | None = None, on_progress: OnProgress = silent
) -> int:
    """Make all chunks of a conversion on the Ray cluster at `address`. Returns how many had been made before.

    Brand is installed on all nodes, and all see source and target at the same paths. Without an address, Ray uses the
    cluster that RAY_ADDRESS names, or starts one on this machine. `jobs` is how many tasks wait or run at a time
    (default: four for each core of the cluster).

    Raises:
        UsageError: There is no cluster at the address.
        InterruptedConversionError: Workers died again and again, or nothing was finished for an hour.
        BrandError: The errors of `run`.
    """
    with shared_work_folder(Path(job.target)) as folder, _connected(address):
        total = read_decided(folder / SHARED_PLAN_NAME).plan.header.samples
        at_once = jobs or _IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
        found = samples = size = 0
        for made in _results(job, at_once):
            found, samples, size = found + made.found, samples + made.samples, size + made.bytes
            on_progress(StageProgress("pack", samples, total, size, None))
        return found


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to the cluster for the block, unless this process is connected already."""
    if ray.is_initialized():
        yield
        return
    _check_reached(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"no Ray cluster can be reached at {address or 'RAY_ADDRESS'}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reached(address: str | None) -> None:
    """Raise `UsageError` if no process listens at `host:port`: Ray itself tries for a quarter of an hour."""
    match = re.fullmatch(r"(?:ray://)?\[?([^\[\]]+)\]?:(\d{1,5})", address or "")
    if match is None:  # "auto", or none
        return
    try:
        socket.create_connection((match[1], int(match[2])), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster can be reached at {address}: {error}") from error


def _results(job: Job, bound: int) -> Iterator[PublishedChunk]:
    """Yield the results of the tasks, as they end; at most `bound` of them at a time."""
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(run)
    numbers, running = iter(range(job.chunks)), list[Any]()
    try:
        while True:
            running += [task.remote(job, number) for number in islice(numbers, bound - len(running))]
            if not running:
                return
            ready, running = ray.wait(running, timeout=STILL_S)
            if not ready:
                raise InterruptedConversionError(
                    f"the Ray cluster has finished no chunk for {STILL_S / 60:.0f} minutes: see `ray status`."
                    " Finished chunks are kept; run the same command again to continue"
                )
            yield from map(_result, ready)
    finally:
        for each in running:
            ray.cancel(each)


def _result(reference: Any) -> PublishedChunk:
    try:
        made: PublishedChunk = ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, BrandError):
            raise cause from error
        told = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
        raise InterruptedConversionError(
            f"a worker of the Ray cluster failed or died again and again: {told.splitlines()[0]}. Each node needs the"
            " same versions of Brand. Finished chunks are kept; run the same command again to continue"
        ) from error
    return made
