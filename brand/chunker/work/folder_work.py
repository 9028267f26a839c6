"""A conversion into a folder: may it write there, and what have earlier runs made?

`DST/.brand-work` is the work folder, so it marks a conversion that was killed. The same command continues that
conversion; any other is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.work.chunks import ChunksInFolder
from brand.chunker.work.claim import CLAIM_NAME, Claim, check_claim
from brand.chunker.work.work import Work, locked, worth_keeping
from brand.errors import StorageError, TargetExistsError
from brand.formats.constants import MANIFEST_NAME, VERSIONS_NAME, WORK_NAME
from brand.formats.manifest import read_manifest
from brand.formats.publish import FolderTarget, publish_bytes, storage_errors


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

    def publishers(self, processes: int) -> int:
        """Return the number of publishing threads, as `Work.publishers` does."""
        return processes


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
