"""The work folder of a conversion: which process may write, what is planned, what is left to tidy up?

`DST/.brand-work` exists from the first moment of a conversion to its last, so it marks a conversion that was killed.
The same command continues that conversion; any other is refused. A lock keeps two conversions apart, and ends with its
process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from brand.errors import TargetExistsError
from brand.formats.constants import MANIFEST_NAME, WORK_NAME
from brand.formats.manifest import read_manifest
from brand.formats.publish import publish_bytes, storage_errors

LOCK_WAIT_S: Final = 2.0
_PLAN: Final = "plan.json"


class Work:
    """An opened, locked work folder."""

    def __init__(self, target: Path, folder: Path) -> None:
        self.target, self.folder = target, folder

    def claim(self, plan: dict[str, Any]) -> None:
        """Remember what is being made here. Raises `TargetExistsError` where something else was begun."""
        path = self.folder / _PLAN
        data = json.dumps(plan, sort_keys=True).encode()
        # A run that was killed while it tidied up leaves a finished data set, perhaps without its plan.
        finished = (self.target / MANIFEST_NAME).exists()
        if finished and read_manifest(self.target).data_set_id.hex() != plan["id"]:
            raise TargetExistsError(f"{self.target} is a finished data set of another source. Choose another target")
        if path.exists() and path.read_bytes() != data:
            raise TargetExistsError(
                f"{self.target} holds an unfinished conversion of another source or with other options."
                f" Run that command again to finish it, or remove {self.target} to begin anew"
            )
        publish_bytes(path, data)

    def recall(self, name: str, key: str) -> Any:
        """What `remember` kept under `name` for the same `key`, or None."""
        try:
            value = json.loads((self.folder / f"{name}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return value["value"] if value["key"] == key else None

    def remember(self, name: str, key: str, value: Any) -> None:
        """Keep a result that takes long to make, for a run that continues this one."""
        publish_bytes(self.folder / f"{name}.json", json.dumps({"key": key, "value": value}).encode())

    def tidy(self) -> None:
        """Remove the work folder of a finished conversion."""
        shutil.rmtree(self.folder)


@contextmanager
def open_work(target: Path, *, dry_run: bool = False) -> Iterator[Work]:
    """Make or continue the work folder of `target`; a dry run gets a temporary one elsewhere.

    Raises `TargetExistsError` where the target holds anything but an unfinished conversion.
    """
    check_target(target)
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="brand-") as temporary:
            yield Work(target, Path(temporary))
        return
    folder = target / WORK_NAME
    with storage_errors(target, "cannot write the data set to"):
        folder.mkdir(parents=True, exist_ok=True)
        (target / "chunks").mkdir(exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with storage_errors(folder, "cannot lock"):
            _lock(lock, target)
        if not folder.exists():  # the conversion that held the lock has finished, or failed
            check_target(target)
            raise TargetExistsError(f"{target}: another conversion ended there just now. Run the command again")
        try:
            yield Work(target, folder)
        except BaseException:
            if not (folder / _PLAN).exists():
                _leave_nothing(target, folder)
            raise
    finally:
        os.close(lock)


def _leave_nothing(target: Path, folder: Path) -> None:
    """Remove what a conversion without a plan has made, so that an error in the call does not take the target."""
    shutil.rmtree(folder, ignore_errors=True)
    for empty in (target / "chunks", target):
        with suppress(OSError):
            empty.rmdir()


def _lock(descriptor: int, target: Path) -> None:
    """Take the lock. Workers of a killed run hold it for a moment, until they notice that their parent is gone."""
    limit = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise TargetExistsError(f"{target}: another conversion is writing there right now") from None
            time.sleep(0.05)


def check_target(target: Path) -> None:
    """Raise `TargetExistsError` unless the target is new, empty, or an unfinished conversion."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise TargetExistsError(f"{target} exists and is no folder. Choose another target, or remove it")
    if (target / WORK_NAME).is_dir():
        return
    if (target / MANIFEST_NAME).exists():
        raise TargetExistsError(f"{target} is a finished data set already. Choose another target, or remove it")
    if any(target.iterdir()):
        raise TargetExistsError(f"{target} is not empty. Choose another target, or remove what is in it")
