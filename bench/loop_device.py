"""How does a data set get a block device of its own, so that its storage can be slowed and counted separately?

    with loop_device(work / "disk.img", size, [(source, "name"), ...]) as device:
        ...        # device.folder holds copies of the sources; device.counted() counts the reads

The device is an ext4 file system in one file, read past the page cache of the disk below (`--direct-io`). A limit on
it does not affect that disk. Its image is made once; a later run with the same sources mounts it again. Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_SECTOR: Final = 512


class Counted(NamedTuple):
    """Reads of a device since it was made, as the block layer counts them."""

    operations: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """A mounted device."""

    folder: Path
    """Mount point."""
    name: str
    """Name in /sys/block."""

    def counted(self) -> Counted:
        """Return the reads of the device until now."""
        return counted(self.name)


def counted(name: str) -> Counted:
    """Return the reads of a device until now."""
    operations, _, sectors = Path(f"/sys/block/{name}/stat").read_text().split()[:3]
    return Counted(int(operations), int(sectors) * _SECTOR)


@contextmanager
def loop_device(image: Path, size: int, sources: Sequence[tuple[Path, str]]) -> Iterator[Device]:
    """Mount an image of `size` bytes with copies of the sources, for the length of the block.

    `sources`: files or folders, each with its path on the device.
    """
    done, folder = image.with_suffix(".json"), image.with_suffix("")
    described = json.dumps({"size": size, "sources": [[str(source), name] for source, name in sources]})
    image.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    _release(image, folder)
    fresh = not done.exists() or done.read_text() != described
    if fresh:
        done.unlink(missing_ok=True)
        image.unlink(missing_ok=True)
        with image.open("wb") as file:
            file.truncate(size)
        _said("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
    try:
        device = _said("losetup", "--find", "--show", "--direct-io=on", str(image))
        _said("mount", "-o", "noatime", device, str(folder))
        if fresh:
            for source, name in sources:
                _copy(source, folder / name)
            os.sync()
            done.write_text(described)
        yield Device(folder, Path(device).name)
    finally:
        _release(image, folder)


def _release(image: Path, folder: Path) -> None:
    """Unmount and detach, also after a killed run."""
    if folder.is_mount():
        _said("umount", str(folder))
    for line in _said("losetup", "--associated", str(image)).splitlines():
        _said("losetup", "--detach", line.partition(":")[0])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
