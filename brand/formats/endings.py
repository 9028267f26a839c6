"""Which `brand convert` command reads files with these names? For hints; a conversion looks at the contents."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

_LOOKED_AT: Final = 1000
"""Names of a folder that are looked at."""
_IMAGES: Final = [
    "avif",
    "bmp",
    "gif",
    "heic",
    "ico",
    "jp2",
    "jpeg",
    "jpg",
    "jxl",
    "pgm",
    "png",
    "ppm",
    "tif",
    "tiff",
    "webp",
]
_AUDIO: Final = ["aac", "aif", "aiff", "au", "caf", "flac", "m4a", "mp3", "oga", "ogg", "opus", "wav"]
_KINDS: Final = {
    **dict.fromkeys(_IMAGES, "images"),
    **dict.fromkeys(_AUDIO, "audio"),
    **dict.fromkeys(("tar", "tgz"), "webdataset"),
    **dict.fromkeys(("parquet", "pq"), "parquet"),
    **dict.fromkeys(("jsonl", "ndjson", "json"), "jsonl"),
    **dict.fromkeys(("csv", "tsv"), "csv"),
    "mds": "mds",
    "arrow": "hf",
}
_ALL: Final = "`brand convert --help` lists the sources that it reads"
_PACKED: Final = ("gz", "zst", "bz2", "xz", "zstd")
_INDEXES: Final = (("state.json", "hf"), ("dataset_dict.json", "hf"), ("index.json", "litdata"))
"""Files that tools leave next to theirs. The index of MDS has the name of that of LitData."""


def kind_by_names(names: Iterable[str]) -> str | None:
    """Return the kind of `brand convert` that reads most of these files, by their endings; None if none does."""
    found, lists = Counter[str](), set[str]()
    for name in names:
        parts = PurePath(name).name.lower().split(".")[1:]
        ending = next((part for part in reversed(parts) if part not in _PACKED), "")
        lists.add(PurePath(name).name)
        if ending in _KINDS:
            found[_KINDS[ending]] += 1
    index = next((kind for name, kind in _INDEXES if name in lists), None)
    if index is not None and not found.keys() & {"images", "audio", "parquet"}:
        return "mds" if "mds" in found else index
    return found.most_common(1)[0][0] if found else None


def kind_below(folder: Path) -> str | None:
    """Return the kind of `brand convert` that reads most files of a folder, by the first names in it, or None."""
    names = (name for _, _, files in os.walk(folder) for name in files if not name.startswith("."))
    return kind_by_names(islice(names, _LOOKED_AT))


def command_for(folder: Path) -> str:
    """Return the command that converts a folder, by the names in it, to complete a sentence about making a data set."""
    kind = kind_below(folder) if folder.is_dir() else None
    return _ALL if kind is None else f"`brand convert {kind}` makes one"
