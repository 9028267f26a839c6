"""The state that a conversion keeps over several runs, and the place of its finished files.

A *work folder* exists from the first moment of a conversion to its last. It holds the plan, and results that take long
to make, so the same command continues after a kill. A lock keeps two conversions apart, and ends with its process.
For a target that is a folder, it is `DST/.brand-work`, which marks a conversion that was killed (`FolderWork`); for a
target in a store see `store_work`.

A file in the work folder, the *claim*, names the data set, the source as it was found, and the versions of the programs
that write the bytes. Another version may write other bytes for the same samples, or put them into another order. So all
runs and all machines of a conversion need the same versions; any other conversion is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zstandard

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.sources.request import Memo
from brand.chunker.sources.spool import PARTS_NAME, has_parts
from brand.chunker.work.chunks import ChunksInFolder, Earlier, Written
from brand.errors import StorageError, TargetExistsError
from brand.formats import locks
from brand.formats.constants import MANIFEST_NAME, SHARED_PLAN_NAME, VERSIONS_NAME, WORK_NAME, chunk_name
from brand.formats.index import IndexBuilder, seal
from brand.formats.manifest import Files, Manifest, read_manifest
from brand.formats.noticed import Noticed
from brand.formats.publish import FolderTarget, Target, file_digest, publish_bytes, storage_errors
from brand.formats.version import check_target_name
from brand.version import __version__

CLAIM_NAME: Final = "plan.json"
LOCK_WAIT_S: Final = 2.0
_POLL_S: Final = 0.05


def versions() -> dict[str, str]:
    """Return the versions that determine the bytes, in addition to source and options: name -> version."""
    zstd = ".".join(map(str, zstandard.ZSTD_VERSION))
    return {"Brand": __version__, "zstandard": f"{zstandard.__version__} with zstd {zstd}"}


@dataclass(frozen=True)
class Claim:
    """The conversion that has a target."""

    data_set_id: bytes
    source: str
    """Fingerprint of the source, with the dates of its files."""
    made_with: Mapping[str, str] = field(default_factory=versions)

    def pack(self) -> bytes:
        """Return the contents of the file: equal bytes for equal conversions."""
        facts = {"id": self.data_set_id.hex(), "source": self.source, "made_with": dict(self.made_with)}
        return json.dumps(facts, sort_keys=True).encode()

    def check_versions(self, name: str) -> None:
        """Raise `TargetExistsError` if the conversion into `name` was begun with other versions."""
        here = versions()
        if dict(self.made_with) != here:
            raise TargetExistsError(
                f"{name} holds an unfinished conversion that was begun with {_listed(self.made_with)}. Installed are"
                f" {_listed(here)}, which may write other bytes. Use the same versions, or remove {name} to start again"
            )


def read_claim(folder: Path) -> Claim | None:
    """Return the claim in a work folder; None if there is none. An unreadable claim counts as another conversion's."""
    for path in (folder / SHARED_PLAN_NAME / CLAIM_NAME, folder / CLAIM_NAME):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        try:
            value = json.loads(data)
            told = {str(what): str(version) for what, version in value.get("made_with", {}).items()}
            return Claim(bytes.fromhex(value["id"]), str(value["source"]), told)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return Claim(b"", "", versions())
    return None


def check_claim(folder: Path, mine: Claim, name: str) -> bool:
    """Return whether the work folder has this claim already. Raises `TargetExistsError` if it has another one."""
    there = read_claim(folder)
    if there is None:
        return False
    there.check_versions(name)
    if there != mine:
        raise TargetExistsError(
            f"{name} holds an unfinished conversion of another source or with other options."
            f" Run that command again to finish it, or remove {name} to start again"
        )
    return True


def _listed(made_with: Mapping[str, str]) -> str:
    return " and ".join(f"{what} {version}" for what, version in sorted(made_with.items())) or "an older Brand"


class Work(Memo, ABC):
    """An opened, locked work folder, and the target of its conversion."""

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        super().__init__(folder)
        self.name, self.target = name, target
        self.companions: dict[str, tuple[int, str]] = {}
        """Size and checksum of the companions that were published."""

    @abstractmethod
    def claim(self, data_set_id: bytes, source: str) -> None:
        """Claim the target for this data set, and remember that; `source` is the fingerprint of the source.

        Raises `TargetExistsError` if another data set was begun or finished there, OSError.
        """

    @abstractmethod
    def earlier(self, plan: ChunkPlan) -> Earlier:
        """Return the chunks that earlier runs have made."""

    def check_room(self, stored_bytes: int) -> None:
        """Raise `StorageError` before hours of work if the data cannot fit; a store has no limit."""

    def publishers(self, processes: int, chunk_bytes: int) -> int:  # noqa: ARG002 - a folder takes no memory for them
        """Return how many chunks of this mean size are published at the same time."""
        return processes

    def publish_chunk(self, number: int, temporary: Path, chunk: Written) -> None:  # noqa: ARG002 - a store keeps its rows
        """Move a finished chunk to its place. Raises `StorageError`."""
        with storage_errors(f"{self.name}/{chunk_name(number)}", "cannot write"):
            self.target.publish(temporary, chunk_name(number))

    def publish_companion(self, temporary: Path, name: str) -> None:
        """Move a finished companion to its place. Raises OSError."""
        self.companions[name] = file_digest(temporary)
        self.target.publish(temporary, name)

    def seal(self, plan: ChunkPlan, builder: IndexBuilder, companions: Files, noticed: Sequence[Noticed]) -> Manifest:
        """Move a finished index into the data set, write the manifest, and remove the work folder.

        `noticed` are the facts that the source has told.
        """
        manifest = seal(
            self.target,
            builder,
            data_set_id=plan.data_set_id,
            dictionary_size=len(plan.compression.dictionary),
            companions=companions,
            noticed=noticed,
        )
        self.tidy()
        return manifest

    def tidy(self) -> None:
        """Remove the work folder of a finished conversion."""
        shutil.rmtree(self.folder)


def worth_keeping(folder: Path) -> bool:
    """Return whether a work folder holds results for a later run: a plan, or finished parts of an import."""
    return read_claim(folder) is not None or has_parts(folder / PARTS_NAME)


@contextmanager
def locked(
    folder: Path, name: str, check: Callable[[], None], *, shared: bool = False, wait_s: float = LOCK_WAIT_S
) -> Iterator[None]:
    """Keep other conversions out of an existing work folder; `name` is the target's.

    With `shared`, other processes that share may enter, too: those that make chunks of one plan. `check` raises
    `TargetExistsError` if the target is taken. So does this function, if another conversion has the lock for
    longer than `wait_s`, or had it until now.
    """
    path = folder / "lock"
    with storage_errors(folder, "cannot lock"):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with storage_errors(folder, "cannot lock"):
            _lock(lock, path, name, wait_s, shared=shared)
        if not _is_still(path, lock):  # the conversion that held the lock has finished, or failed
            check()
            raise TargetExistsError(f"{name}: another conversion ended there just now. Run the command again")
        yield
    finally:
        os.close(lock)


def _lock(descriptor: int, path: Path, name: str, wait_s: float, *, shared: bool) -> None:
    """Take the lock. Workers of a killed run hold it for a moment, until they notice that their parent has ended."""
    limit = time.monotonic() + wait_s
    while not locks.take(descriptor, path, shared=shared):
        if time.monotonic() > limit:
            raise TargetExistsError(f"{name}: another conversion is writing there")
        time.sleep(_POLL_S)


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether the name leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class FolderWork(Work):
    """The work folder of a conversion into the folder `place`."""

    def __init__(self, place: Path, folder: Path) -> None:
        super().__init__(str(place), FolderTarget(place), folder)
        self.place = place

    def claim(self, data_set_id: bytes, source: str) -> None:
        """Claim the target, as `Work.claim` does."""
        # A run that was killed while it tidied up leaves a finished data set, perhaps without its claim.
        finished = (self.place / MANIFEST_NAME).exists()
        if finished and read_manifest(self.place).data_set_id != data_set_id:
            raise TargetExistsError(f"{self.place} is a finished data set of another source. Choose another target")
        claim = Claim(data_set_id, source)
        if not check_claim(self.folder, claim, str(self.place)):
            publish_bytes(self.folder / CLAIM_NAME, claim.pack())

    def earlier(self, plan: ChunkPlan) -> ChunksInFolder:  # noqa: ARG002 - the chunks there say all
        """Return the chunks of earlier runs, as `Work.earlier` does."""
        return ChunksInFolder(self.place)

    def check_room(self, stored_bytes: int) -> None:
        """Check the free space, as `Work.check_room` does. The size is an estimate."""
        there = sum(file.stat().st_size for file in (self.place / "chunks").iterdir())
        free, need = shutil.disk_usage(self.place).free, round(stored_bytes * 0.95) - there
        if need > free:
            raise StorageError(
                f"{self.place}: about {need:,} bytes are still to be written and {free:,} are free."
                " Free some space and run the same command again"
            )


@contextmanager
def open_folder_work(place: Path, *, dry_run: bool = False) -> Iterator[FolderWork]:
    """Make or continue the work folder of the target `place`; a dry run gets a temporary one elsewhere.

    Raises `TargetExistsError` if the target holds anything but an unfinished conversion.
    """
    check_folder_target(place)
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="brand-") as temporary:
            yield FolderWork(place, Path(temporary))
        return
    folder = place / WORK_NAME
    with storage_errors(place, "cannot write the data set to"):
        folder.mkdir(parents=True, exist_ok=True)
        (place / "chunks").mkdir(exist_ok=True)
    with locked(folder, str(place), lambda: check_folder_target(place)):
        try:
            yield FolderWork(place, folder)
        except BaseException:
            if not worth_keeping(folder):
                _leave_nothing(place, folder)
            raise


def _leave_nothing(place: Path, folder: Path) -> None:
    """Remove the files of a conversion without a claim, so that an error in the call does not take the target."""
    shutil.rmtree(folder, ignore_errors=True)
    for empty in (place / "chunks", place):
        with suppress(OSError):
            empty.rmdir()


def check_folder_target(place: Path) -> None:
    """Raise `TargetExistsError` unless the target is new, empty, or an unfinished conversion."""
    if not os.path.lexists(place):
        check_target_name(place)
        return
    if not place.is_dir():
        raise TargetExistsError(f"{place} exists and is not a folder. Choose another target, or remove it")
    if (place / WORK_NAME).is_dir():
        return
    if (place / MANIFEST_NAME).exists():
        raise TargetExistsError(f"{place} is a finished data set already. Choose another target, or remove it")
    if (place / VERSIONS_NAME).is_dir():
        raise TargetExistsError(f"{place} is a collection: `brand append` adds to it. Choose another target")
    if any(place.iterdir()):
        raise TargetExistsError(f"{place} is not empty. Choose another target, or empty it")
