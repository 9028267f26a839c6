"""Convert a folder when it is first used, and find its chunks later: `BrandDataset.from_folder` (Brand, 3.2 and 4.2).

The first use converts the folder, checks each byte of the chunks, and publishes them. Later uses find them.

    WHERE/NAME-DIGEST/         one for each folder and chunk size
        lock                   held by the process that makes chunks; its date says when that process made progress
        unfinished-STATE/      a conversion that was not finished, or not checked; the next use continues it
        STATE.brand/           a data set, whole and checked, of the folder in this state

STATE is a digest of the names, sizes and dates of all files, so a folder that has changed has no data set yet.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from brand.chunker import Options, convert_audio, convert_images
from brand.chunker.plan.report import Report, StageProgress
from brand.chunker.sources.folders import check_folder, folder_state
from brand.chunker.sources.request import local_source
from brand.cli.output import Meter, meter
from brand.errors import BrandError, InterruptedConversionError, SourceError, UsageError, counted
from brand.formats import locks
from brand.formats.constants import MANIFEST_NAME, WORK_NAME
from brand.formats.endings import kind_below
from brand.formats.manifest import read_manifest
from brand.formats.publish import storage_errors
from brand.printable import printable
from brand.storage.maintenance.verify import verify
from brand.storage.profile.profile import load_profile, stripe_bytes
from brand.stores.url import is_url
from brand.usercache import own_folder, user_cache

STALL_S: Final = 600.0
"""A process that makes chunks, and whose progress others do not see for this time (s), is not waited for."""
_POLL_S: Final = 0.1
_STRIPES: Final = 4
"""Stripes of a chunk: a stripe is at most a quarter of one."""
_PART: Final = "folders"
_UNFINISHED: Final = "unfinished-"
_REMEDY: Final = ": name a folder that you can write with where="

_log: Final = logging.getLogger("brand")

PathLike = str | os.PathLike[str]


def chunks_of(root: PathLike, chunk_size: int | Literal["profile"], where: PathLike | None) -> Path:
    """Return the data set of the folder `root` as it is now; it is made if there is none. See `from_folder`."""
    if chunk_size != "profile" and not isinstance(chunk_size, int):
        raise UsageError(f"chunk_size={chunk_size!r}: give a number of samples, or 'profile'")
    options = Options() if chunk_size == "profile" else Options(chunk_size=chunk_size)
    source = Path(local_source(root))
    check_folder(source)
    source = source.resolve()
    folder = _folder_for(source, chunk_size, where)
    with storage_errors(source, "cannot read"):
        state = folder_state(source)
    data_set = folder / f"{state}.brand"
    if not data_set.exists():
        with storage_errors(folder, "cannot write", _REMEDY):
            if where is None:
                own_folder(_PART, folder.name)
            folder.mkdir(parents=True, exist_ok=True)
            with only_maker(folder, root) as alive:
                if not data_set.exists():
                    if chunk_size == "profile":
                        options = _profiled(folder)
                    _make(root, source, data_set, options, alive)
    _log.info("%s is in %s", printable(os.fspath(root)), printable(str(data_set)))
    return data_set


def _folder_for(source: Path, chunk_size: int | str, where: PathLike | None) -> Path:
    """Return the folder for the data sets of a source. Raises `UsageError` if it is in the source, or a URL."""
    if where is not None and is_url(os.fspath(where)):
        raise UsageError(f"where={os.fspath(where)!r}: give a folder of this machine")
    above = user_cache(_PART) if where is None else Path(where)
    if above.resolve().is_relative_to(source):
        raise UsageError(f"{above} is inside {source}: choose a folder outside of it with where=")
    digest = hashlib.sha256(os.fsencode(source) + f"\0{chunk_size}".encode()).hexdigest()[:16]
    words = re.sub(r"[^A-Za-z0-9]+", "-", source.name).strip("-")[:60] or "folder"
    return above / f"{words}-{digest}"


def _profiled(folder: Path) -> Options:
    """Return the options for chunks of the size that suits the storage of a folder. Raises `UsageError` if unknown."""
    profile = load_profile(folder)
    if profile is None:
        raise UsageError(
            f"chunk_size='profile': the storage of {folder} has not been measured. `brand profile PATH` measures it:"
            " name a folder of large files, or one large file, of that storage. Or give a number of samples"
        )
    return Options(chunk_bytes=_STRIPES * stripe_bytes(profile))


@contextmanager
def only_maker(folder: Path, root: PathLike, stall_s: float = STALL_S) -> Iterator[Callable[[], None]]:
    """Wait until no other process makes chunks in `folder`, and keep others out; yields what to call on each progress.

    Raises `InterruptedConversionError` if the other process makes no progress for `stall_s` seconds, OSError.
    """
    path = folder / "lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        seen, since, maker = 0, time.monotonic(), ""
        while not locks.take(lock, path):
            if not maker:
                maker = path.read_text() or "another process"
                named = printable(f"{os.fspath(root)} in {folder}")
                _log.warning("%s makes the chunks of %s: this process waits", printable(maker), named)
            if (now := os.fstat(lock).st_mtime_ns) != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > stall_s:
                raise InterruptedConversionError(
                    f"{path.read_text() or maker} makes the chunks of {os.fspath(root)} in {folder}, and has made no"
                    f" progress for {stall_s:g} s: end it, and call again, which continues its work"
                )
            time.sleep(_POLL_S)
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield lambda: os.utime(lock)
    finally:
        os.close(lock)


def _make(root: PathLike, source: Path, data_set: Path, options: Options, alive: Callable[[], None]) -> None:
    """Convert `source`, check the chunks, and publish them as `data_set`, whose name is the state of the source."""
    making = data_set.with_name(_UNFINISHED + data_set.stem)
    for other in set(data_set.parent.glob(f"{_UNFINISHED}*")) - {making}:  # of a state that is gone
        shutil.rmtree(other)
    name, target = printable(os.fspath(root)), printable(str(data_set))
    if earlier := ", ".join(printable(str(path)) for path in sorted(data_set.parent.glob("*.brand"))):
        _log.warning(
            "%s has changed since %s was made of it, and is converted again, to %s. If no training uses the earlier"
            " chunks, remove them",
            *(name, earlier, target),
        )
    else:
        _log.warning("%s is converted to %s, for this use and all later ones", name, target)
    with meter(quiet=not sys.stderr.isatty()) as show:
        if (making / WORK_NAME).exists() or not (making / MANIFEST_NAME).exists():
            report = _convert(source, making, options, show, alive)
            for line in (*report.notes, *(fact.text for fact in report.noticed)):
                _log.info("%s: %s", name, line)
        _check(making, show, alive)
    if folder_state(source) != data_set.stem:
        shutil.rmtree(making)
        raise SourceError(
            os.fspath(root), "its files changed while it was converted", hint="Call again when they are complete"
        )
    making.rename(data_set)


def _convert(source: Path, making: Path, options: Options, show: Meter, alive: Callable[[], None]) -> Report:
    def on_progress(done: StageProgress) -> None:
        alive()
        show(done.stage, done.samples, done.total, done.bytes, done.total_bytes)

    audio = kind_below(source) == "audio"
    try:
        return (convert_audio if audio else convert_images)(source, making, options, on_progress=on_progress)
    except BrandError as error:
        if " --" in str(error):
            command = f"`brand convert {'audio' if audio else 'images'} {source} DST`"
            error.add_note(f"from_folder takes no options: {command} does, and BrandDataset(DST) opens its data set")
        raise


def _check(making: Path, show: Meter, alive: Callable[[], None]) -> None:
    """Compare each byte with its checksum. Raises the first `FormatError`, after the chunks were removed."""
    total, samples, count = read_manifest(making).header.samples, 0, 0
    for step in verify(making):
        alive()
        samples, count = samples + step.samples, count + step.bytes
        show("verify", samples, total, count, None)
        if step.errors:
            shutil.rmtree(making)
            step.errors[0].add_note(f"{counted(samples, 'sample')} were checked; the next call converts again")
            raise step.errors[0]
