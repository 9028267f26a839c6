"""The state that a conversion keeps over several runs, and the place of its finished files.

A *work folder* exists from the first moment of a conversion to its last. It holds the plan, and results that take long
to make, so the same command continues after a kill. A lock keeps two conversions apart, and ends with its process.
`folder_work` is for a target that is a folder, `store_work` for one in a store.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.sources.sortedparts import PARTS_NAME, has_parts
from brand.chunker.work.chunks import Earlier, Written
from brand.chunker.work.claim import read_claim
from brand.errors import TargetExistsError
from brand.formats.constants import chunk_name
from brand.formats.publish import Target, file_digest, publish_bytes, storage_errors

LOCK_WAIT_S: Final = 2.0
_POLL_S: Final = 0.05


class Work(ABC):
    """An opened, locked work folder, and the target of its conversion."""

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        self.name, self.target, self.folder = name, target, folder
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

    @abstractmethod
    def check_room(self, stored_bytes: int) -> None:
        """Raise `StorageError` before hours of work if the data cannot fit. The writers check again."""

    @abstractmethod
    def publishers(self, processes: int) -> int:
        """Return how many chunks are published at the same time if `processes` processes make them."""

    def publish_chunk(self, number: int, temporary: Path, chunk: Written) -> None:  # noqa: ARG002 - a store keeps its rows
        """Move a finished chunk to its place. Raises `StorageError`."""
        with storage_errors(f"{self.name}/{chunk_name(number)}", "cannot write"):
            self.target.publish(temporary, chunk_name(number))

    def publish_companion(self, temporary: Path, name: str) -> None:
        """Move a finished companion to its place. Raises OSError."""
        self.companions[name] = file_digest(temporary)
        self.target.publish(temporary, name)

    def recall(self, name: str, key: str) -> Any:
        """Return the result that `remember` stored under `name` for the same `key`, or None."""
        try:
            value = json.loads((self.folder / f"{name}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return value["value"] if value["key"] == key else None

    def remember(self, name: str, key: str, value: Any) -> None:
        """Store a result that takes long to make, for a run that continues this one."""
        publish_bytes(self.folder / f"{name}.json", json.dumps({"key": key, "value": value}).encode())

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
            _lock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, name, wait_s)
        if not _is_still(path, lock):  # the conversion that held the lock has finished, or failed
            check()
            raise TargetExistsError(f"{name}: another conversion ended there just now. Run the command again")
        yield
    finally:
        os.close(lock)


def _lock(descriptor: int, kind: int, name: str, wait_s: float) -> None:
    """Take the lock. Workers of a killed run hold it for a moment, until they notice that their parent has ended."""
    limit = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise TargetExistsError(f"{name}: another conversion is writing there") from None
            time.sleep(_POLL_S)


def _is_still(path: Path, descriptor: int) -> bool:
    """Return whether the name leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
