"""Which images and texts do the benchmarks convert and read? Real ones, found under one `--data` folder.

DATA/images/<class>/*.{png,jpg,...}     an image folder, as torchvision's `ImageFolder` counts it
DATA/text/*.jsonl                       one record a line: {"id", "lang", "label", "text"}, all strings
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
FILES_PER_FOLDER: Final = 1_000

Record = dict[str, str]


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image of an image folder."""

    path: Path
    label: int
    """Index of its class among the sorted class names."""
    key: str
    """Path relative to the folder."""


def list_images(folder: Path) -> list[ImageFile]:
    """Return every image, by sorted class and sorted path."""
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    return [
        ImageFile(path, label, str(path.relative_to(folder)))
        for label, name in enumerate(classes)
        for path in sorted(name.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES
    ]


def load_lines(folder: Path) -> list[bytes]:
    """Return every JSON line, by sorted file name, without line ends."""
    return [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_bytes().splitlines()]


def load_records(folder: Path) -> list[Record]:
    """Return every record, in the order of `load_lines`."""
    return [json.loads(line) for line in load_lines(folder)]


def text_files(lines: list[bytes], folder: Path) -> list[Path]:
    """Write the records as one file each, 1,000 a folder, and return their paths.

    They are written once; a half-written folder is written again.
    """
    paths = [folder / f"{i // FILES_PER_FOLDER:04d}" / f"{i:07d}.json" for i in range(len(lines))]
    done = folder.with_name(folder.name + ".done")
    if done.exists():
        return paths
    shutil.rmtree(folder, ignore_errors=True)
    for path, line in zip(paths, lines, strict=True):
        if path.name.endswith("000.json"):
            path.parent.mkdir(parents=True)
        path.write_bytes(line)
    done.touch()
    return paths
