"""All checks, one after the other, as `brand doctor` shows them.

If a data set is given: can it be opened and read here, and does its file system support fast reads? Three samples are
read, of the first, the middle and the last chunk. `brand verify` reads all samples. A folder in which there is no data
set is checked as a place for one (`filesystem`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from brand.doctor.filesystem import check_folder, check_locks, check_mappings, check_name
from brand.doctor.packages import CheckResult, check_packages
from brand.doctor.selftest import run_selftest
from brand.doctor.system import check_limits, check_system, page_cache
from brand.errors import BrandError, NotADataSetError, counted, size
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.profile.profile import DEFAULT_STRIPE_BYTES, is_assumed, load_profile

OnProgress = Callable[[str, int, int], None]
"""Receives the stage (`import`, `self-test`), the number of steps that are done, and the number of all steps."""
_PART: Final = "data set"
_ALIGNED: Final = 4096


def examine(where: Path | str | None, on_progress: OnProgress) -> list[CheckResult]:
    """Check this installation and this machine, and the data set at `where` if one is given.

    Faults raise no error: each is a `CheckResult`. Takes some seconds.
    """
    return [
        *check_packages(partial(on_progress, "import")),
        *check_system(),
        *check_limits(),
        *(check_data_set(where) if where is not None else ()),
        *run_selftest(partial(on_progress, "self-test")),
    ]


def check_data_set(where: Path | str) -> Iterator[CheckResult]:
    """Check a data set in a folder, or at a URL; or a folder without one."""
    try:
        data = StoredDataSet(where)
    except NotADataSetError as error:
        if not isinstance(where, Path) or not where.is_dir():
            yield CheckResult(_PART, "opens", "problem", str(error))
        else:
            yield from check_folder(where)
        return
    except BrandError as error:
        yield CheckResult(_PART, "opens", "problem", str(error))
        return
    told = f"{where}, {counted(len(data), 'sample')} in {counted(data.header.chunks, 'chunk')}"
    yield CheckResult(_PART, "opens", "ok", told)
    yield _samples(data)
    if isinstance(where, Path):
        yield from _file_system(where, data.location.chunk_file(data.chunks_here[0]))
    yield _profile(where)


def _samples(data: StoredDataSet) -> CheckResult:
    here = data.chunks_here
    chunks = sorted({here[0], here[len(here) // 2], here[-1]})
    try:
        data.samples(data.indices(np.array(chunks, np.int64) * data.header.chunk_size))
    except BrandError as error:
        return CheckResult(_PART, "reads", "problem", str(error))
    told = f"a sample of {counted(len(chunks), 'chunk')}, with the right checksum"
    return CheckResult(_PART, "reads", "ok", told, f"`brand verify {data.name}` reads all samples")


def _file_system(folder: Path, chunk: str) -> Iterator[CheckResult]:
    """Check the abilities of a data set's file system. Each check opens the chunk again."""
    yield check_name(_PART, folder)
    with suppress(OSError):  # `_samples` has reported a chunk that cannot be read
        yield check_mappings(_PART, Path(chunk))
        yield check_locks(_PART, Path(chunk))
        with open(chunk, "rb") as file:
            yield page_cache(_PART, file.fileno(), os.fstat(file.fileno()).st_size)
        yield _direct(chunk)


def _direct(chunk: str) -> CheckResult:
    """Check whether reads can bypass the page cache."""
    try:
        descriptor = os.open(chunk, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
        try:
            with mmap.mmap(-1, _ALIGNED) as memory:
                os.preadv(descriptor, [memory], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        told = f"not possible here ({error.strerror}): data larger than memory cost twice the processor time"
        return CheckResult(_PART, "direct reads", "missing", told)
    return CheckResult(_PART, "direct reads", "ok", "possible (O_DIRECT)")


def _profile(where: Path | str) -> CheckResult:
    found = load_profile(where)
    if found is None or is_assumed(found):
        told = "not measured" + (f": stripes of {size(DEFAULT_STRIPE_BYTES)} are assumed" if found is None else "")
        return CheckResult(_PART, "storage speed", "missing", told, f"brand profile {where}")
    return CheckResult(_PART, "storage speed", "ok", f"{size(found.sequential)}/s, measured by `brand profile`")
