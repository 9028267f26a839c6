"""How does a collection get a new version, whole or not at all, whatever ends the writer?

    with writing(folder) as writer:          one writer at a time; leftovers of a killed one are removed
        listed = writer.put(values)          a list, at its place and on the device
        writer.take(staged, part_id)         a finished data set becomes a segment
        writer.publish(...)                  the next version, which names them

A version is linked to its name last, and link(2) refuses a name that is taken. So a kill at any moment leaves the old
version or the new one. Long work (conversions, rewriting) is done before, in a folder below `staging/`; `staged` holds
the lock of such a folder. `staging/unnamed` is there from a writer's first list or segment to its version. Only if a
writer was killed in between, the next one reads all versions, to find the files that none names.

`forget_before` removes versions, with the files that only they need, for `compact --forget`. For `redact`, an intent in
`staging/redact.json` is written before its version is published, and each later writer carries it out
(`finish_destroying`): so a kill between the two leaves no bytes that a report calls destroyed. It writes the report,
too, next to the collection if the report's own folder is gone by then.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.chunker.sources.request import Target
from brand.errors import LayoutError, StorageError, UsageError, counted
from brand.formats import locks
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME
from brand.formats.manifest import read_manifest
from brand.formats.publish import publish_bytes, storage_errors, storage_reason, sync_folder
from brand.formats.version import (
    Listed,
    Overlay,
    PartOf,
    Version,
    make_version,
    npy_list,
    pack_version,
    part_name,
    read_version,
    version_name,
)
from brand.storage.dataset.joined import JoinedIndex
from brand.storage.io.location import Collected, is_collection, named_version, present_version
from brand.storage.io.present import last_number, note_present, numbers
from brand.stores.url import is_url

INTENT_NAME: Final = "staging/redact.json"
MOST_PARTS: Final = 256
"""Segments that hold samples: each takes two descriptors of every process that reads, of 1,024 at the usual limit."""
TOO_MANY: Final = "`brand compact` merges them. Run it, then the same command again"
"""Advice for a collection with `MOST_PARTS` segments."""
WAIT_S: Final = 60.0
"""Seconds that a writer waits for another one, which only renames and links."""
STAGING: Final = "staging"
UNNAMED: Final = "staging/unnamed"
"""An empty file: there may be segments and lists that no version names."""
KEPT: Final = "append-"
"""Prefix of staged folders that are not removed: conversions that were stopped, which the same command continues."""
_POLL_S: Final = 0.05
_log: Final = logging.getLogger("brand.collect")
_FOLDERS: Final = (VERSIONS_NAME, "parts", "lists", STAGING)


def forget_before(folder: Path, version: Version) -> int:
    """Remove all older versions, and files that only they name. Returns the bytes freed. The caller has the lock."""
    older = [number for number in numbers(folder) if number < version.number]
    return _remove(folder, [read_version(folder, number) for number in older], [version])


def write_intent(folder: Path, report: dict[str, Any], versions: Sequence[int], to: Path) -> None:
    """Record the versions to remove after the version of the report is published."""
    intent = {"report": report, "version": report["version"], "versions": list(versions), "to": str(to)}
    publish_bytes(folder / INTENT_NAME, json.dumps(intent, ensure_ascii=False).encode())


def finish_destroying(folder: Path) -> dict[str, Any] | None:
    """Carry out an intent, if there is one. Returns the report of the redaction. The caller has the lock.

    If the version of the redaction was not published, nothing happened, and the intent is removed.
    """
    path = folder / INTENT_NAME
    if not path.exists():
        return None
    try:
        intent = json.loads(path.read_bytes())
        version, old, to = int(intent["version"]), set(map(int, intent["versions"])), Path(intent["to"])
        report = dict(intent["report"])
    except (ValueError, KeyError, TypeError) as error:
        what, hint = f"the intent of a redaction is damaged: {error!r}", "Remove it, and redact the samples again"
        raise LayoutError(what, path=path, hint=hint) from error
    known = numbers(folder)
    if not known or known[-1] < version:
        path.unlink()
        return None
    versions = [read_version(folder, number) for number in known]
    _remove(folder, [each for each in versions if each.number in old], [v for v in versions if v.number not in old])
    for each in report["segments"]:  # if an earlier attempt was killed after the versions
        shutil.rmtree(folder / part_name(each["destroyed"]), ignore_errors=True)
    report = _write_report(report | {"finished": True}, to, folder)
    path.unlink()
    return report


def _write_report(report: dict[str, Any], to: Path, folder: Path) -> dict[str, Any]:
    """Write the report of a redaction; next to the collection if its own folder is gone. Returns it.

    The samples are destroyed already, so a report that cannot be written must not stop later changes. Raises
    `StorageError` if there is no place for it.
    """
    beside = folder.with_name(f"{folder.name}.redaction-{report['version']}.json")
    for place in (to, beside):
        report = report | {"written_to": str(place)}
        try:
            publish_bytes(place, json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            reason = storage_reason(error)
            continue
        if place != to:
            _log.warning("the report of a redaction cannot be written to %s, so it is in %s", to, place)
        return report
    raise StorageError(
        f"{folder}: samples were destroyed, but their report cannot be written to {to}, nor to {beside}: {reason}. "
        f"Make the folder {to.parent}, and run the command again"
    )


def _remove(folder: Path, old: Sequence[Version], left: Sequence[Version]) -> int:
    """Remove versions, then the segments and lists that no remaining version names. Returns their size in bytes."""
    parts = {part.id for version in left for part in version.parts}
    lists = {listed.name for version in left for listed in version.lists}
    _mark_unnamed(folder)
    for version in old:
        (folder / version_name(version.number)).unlink()
    sync_folder(folder / VERSIONS_NAME)
    note_present(folder, max(version.number for version in left))
    freed = 0
    for name in sorted({part.name for version in old for part in version.parts if part.id not in parts and part.id}):
        freed += sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        shutil.rmtree(folder / name)
    for name in sorted({listed.name for version in old for listed in version.lists} - lists):
        freed += (folder / name).stat().st_size
        (folder / name).unlink()
    (folder / UNNAMED).unlink(missing_ok=True)
    return freed


def collection_folder(where: str | os.PathLike[str], *, new: bool = False) -> Path:
    """Return the folder of a collection that is changed; with `new`, it may be missing or empty.

    Raises `UsageError` if the path is something else.
    """
    text = os.fspath(where)
    if is_url(text):
        raise UsageError(
            f"{text}: a collection grows in a folder of a file system, not in a store. Change it there, and copy its "
            "folder to the machines that train"
        )
    folder = Path(text).absolute()
    if is_collection(folder):
        return folder
    if (folder / MANIFEST_NAME).exists():
        raise UsageError(
            f"{text} is a data set, which does not grow. Begin a collection with it: "
            f"`brand append dataset {text} COLLECTION`"
        )
    if (found := named_version(folder)) is not None:
        raise UsageError(f"{text} names a version, and versions do not change: name the collection, {found[0]}")
    if not new:
        raise UsageError(f"{text} is not a collection: `brand append` makes one")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{text} is neither a collection nor empty: choose another folder")
    return folder


def joined(folder: Path) -> JoinedIndex:
    """Return the index of the present version. Raises a `FormatError`."""
    version = present_version(folder)
    return JoinedIndex(Collected(folder, version), version)


def make_folder(folder: Path) -> None:
    """Make the folders of a collection, if they are missing. Raises `StorageError`."""
    with storage_errors(folder, "cannot make the collection in"):
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)


class Writer:
    """Changes a collection, while it has its lock. `version` is the present one; None if there is none yet."""

    def __init__(self, folder: Path, version: Version | None) -> None:
        self.folder, self.version = folder, version
        self._marked = False

    def put(self, values: NDArray[Any]) -> Listed | None:
        """Write a list to its place, and flush it. Returns None for an empty one."""
        if not len(values):
            return None
        self._mark()
        listed, data = npy_list(values)
        if not (self.folder / listed.name).exists():
            publish_bytes(self.folder / listed.name, data)
        return listed

    def put_indices(self, indices: NDArray[np.integer[Any]]) -> Listed | None:
        """Write a list of indices, ascending, as `put` does."""
        return self.put(indices.astype("<u8"))

    def take(self, staged: Path, part: str) -> None:
        """Move a finished data set from `staging/` to its place as a segment."""
        self._mark()
        staged.rename(self.folder / part_name(part))
        sync_folder(self.folder / "parts")

    @property
    def present(self) -> Version:
        """The present version of a collection that has one."""
        assert self.version is not None
        return self.version

    def publish(
        self, note: str, parts: Sequence[PartOf], deleted: Listed | None, overlays: Mapping[str, Overlay]
    ) -> Version:
        """Publish the next version. Raises `UsageError`, `StorageError`."""
        before = self.version
        if before is None:
            collection, number, parent = secrets.token_hex(8), 1, None
        else:
            collection, number, parent = before.collection, before.number + 1, before.id
        held = sum(part.id is not None for part in parts)
        if held > MOST_PARTS:
            raise UsageError(
                f"{self.folder} would have {counted(held, 'segment')}, and {MOST_PARTS} are the most: {TOO_MANY}"
            )
        version = make_version(collection, number, parts, deleted, overlays, parent, note)
        _link(self.folder, version)
        (self.folder / UNNAMED).unlink(missing_ok=True)
        self._marked, self.version = False, version
        return version

    def _mark(self) -> None:
        if not self._marked:
            _mark_unnamed(self.folder)
            self._marked = True


def _mark_unnamed(folder: Path) -> None:
    """Let the next writer look for files that no version names, unless the mark is removed before."""
    (folder / UNNAMED).touch()
    sync_folder(folder / STAGING)  # on the device before the files that it speaks of


@contextmanager
def writing(folder: Path, *, sweep: bool = False) -> Iterator[Writer]:
    """Open the collection for this writer only. Removes leftovers of earlier writers. Raises `StorageError`.

    `sweep`: look for files that no version names in any case. It takes time that grows with the number of versions.
    """
    make_folder(folder)  # a copy that was made with other tools may lack empty folders
    with storage_errors(folder, "cannot change the collection in"), _locked(folder):
        if sweep or (folder / UNNAMED).exists():
            _remove_unnamed(folder, [read_version(folder, number) for number in numbers(folder)])
            (folder / UNNAMED).unlink(missing_ok=True)
        _remove_abandoned(folder)
        finish_destroying(folder)
        number = last_number(folder)  # an interrupted redaction has removed some
        yield Writer(folder, None if number is None else read_version(folder, number))


@contextmanager
def staged(folder: Path, name: str) -> Iterator[Path]:
    """Make a folder below `staging/` for the work of this process only; removed at the end. Raises `StorageError`."""
    place = folder / STAGING / f"{name}-{secrets.token_hex(4)}"
    make_folder(folder)
    with storage_errors(folder, "cannot write to"), _locked(folder):  # else a writer could remove it as a leftover
        place.mkdir()
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        locks.take(lock, place / "lock", wait=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


@contextmanager
def kept(folder: Path, name: str) -> Iterator[Path]:
    """Open a place below `staging/` for the conversion of one source, which remains if it is stopped.

    It may be missing. Raises `UsageError` if another process converts this source, `StorageError`.
    """
    place = folder / STAGING / f"{KEPT}{name}"
    path = place.with_name(f"{place.name}.lock")
    with storage_errors(folder, "cannot write to"):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    ours = False
    try:
        with storage_errors(path, "cannot lock"):
            taken = locks.take(lock, path)
        if taken:
            # The previous owner removes the file before it releases the lock: the name may be that of another file.
            ours = path.exists() and os.path.samestat(path.stat(), os.fstat(lock))
        if not ours:
            raise UsageError(f"{folder}: another process is appending this source: nothing was done")
        yield place
    finally:
        if ours:
            path.unlink()
        os.close(lock)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a collection. It ends with the process."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = time.monotonic() + WAIT_S
        while not locks.take(lock, folder / "lock"):
            if time.monotonic() > end:
                raise StorageError(
                    f"{folder}: another process has been changing the collection for {WAIT_S:.0f} s. Run the "
                    "command again when it has ended"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _link(folder: Path, version: Version) -> None:
    """Link a version to its name, unless that is taken: then nothing is done. Raises `StorageError`."""
    final = folder / version_name(version.number)
    temporary = folder / STAGING / f".{version.id}.tmp"
    with temporary.open("wb") as file:
        file.write(pack_version(version))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, final)  # a rename would replace a version that another process has published
    except FileExistsError:
        raise StorageError(
            f"{folder}: another process has published version {version.number} meanwhile, so nothing was changed. Run "
            "the command again"
        ) from None
    finally:
        temporary.unlink()
    sync_folder(final.parent)
    note_present(folder, version.number)


def _remove_unnamed(folder: Path, versions: Sequence[Version]) -> None:
    """Remove files that no version names: writers that ended early have left them."""
    parts = {part.id for version in versions for part in version.parts}
    lists = {listed.name for version in versions for listed in version.lists}
    for each in (folder / "parts").iterdir():
        if each.name not in parts:
            shutil.rmtree(each)
    for each in (folder / "lists").iterdir():
        if f"lists/{each.name}" not in lists:
            each.unlink()
    for each in (folder / VERSIONS_NAME).glob(".*.tmp"):  # of earlier releases
        each.unlink()


def _remove_abandoned(folder: Path) -> None:
    """Remove unfinished work of processes that have ended, other than conversions that can continue."""
    for each in (folder / STAGING).glob(".*.tmp"):
        each.unlink()
    for each in (folder / STAGING).iterdir():
        if each.is_dir() and not each.name.startswith(KEPT) and not _in_use(each / "lock"):
            shutil.rmtree(each, ignore_errors=True)
        if each.suffix == ".lock" and not each.with_suffix("").exists() and not _in_use(each):
            each.unlink()


def _in_use(path: Path) -> bool:
    """Return whether a process has a lock."""
    with suppress(OSError):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return not locks.take(lock, path)
        finally:
            os.close(lock)
    return False


@dataclass(frozen=True)
class Line:
    """One version."""

    number: int
    id: str
    samples: int
    """Indices, deleted ones included."""
    present: int
    """Samples that are not deleted."""
    parts: int
    """Segments that hold samples."""
    stored_bytes: int
    """Stored bytes of its segments, deleted samples included."""
    columns: tuple[str, ...]
    """Names of the overlays."""
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return asdict(self)


def versions(collection: Target) -> list[Line]:
    """Return all versions, the present one last. Raises `UsageError`, `FormatError`."""
    folder = collection_folder(collection)
    sizes: dict[str, int] = {}
    return [_line(folder, read_version(folder, number), sizes) for number in numbers(folder)]


def unfinished(collection: Target) -> list[Path]:
    """Return the folders of conversions that were stopped before they became a segment. Raises `UsageError`."""
    folder = collection_folder(collection)
    return sorted(path for path in (folder / STAGING).glob(f"{KEPT}*") if path.is_dir())


def _line(folder: Path, version: Version, sizes: dict[str, int]) -> Line:
    held = [part for part in version.parts if part.id is not None]
    for part in held:
        if part.name not in sizes:
            sizes[part.name] = read_manifest(folder / part.name).stored_bytes
    return Line(
        number=version.number,
        id=version.id,
        samples=version.samples,
        present=version.present,
        parts=len(held),
        stored_bytes=sum(sizes[part.name] for part in held),
        columns=tuple(version.overlays),
        note=version.note,
    )
