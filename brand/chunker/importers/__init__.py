"""Data that other tools have written, mostly as `Shards`. One module per format maps its fields to those of a sample.

webdataset  tar files
mds         the folders of mosaicml-streaming
litdata     the folders of LitData
parquet     Parquet files, and data sets of Hugging Face
textfiles   JSON Lines, CSV and TSV
tokens      token files of language models, read in any order
tables      a table given to `pack`
arrow       the common part of Parquet, Hugging Face and tables in memory
fields      from the columns of a source to fields
lists       lists of files, and files that a text names
beside      a table beside a folder of images
files       the files of a source, also compressed ones
objects     the files of a source in a store, read as streams
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from brand.chunker.importers.fields import FieldMapping

_HOMES: Final = {
    "webdataset": ("webdataset", "WebDataset"),
    "parquet": ("parquet", "Parquet"),
    "hf": ("parquet", "open_hf"),
    "mds": ("mds", "Mds"),
    "litdata": ("litdata", "open_litdata"),
    "jsonl": ("textfiles", "JsonLines"),
    "csv": ("textfiles", "Csv"),
}
FORMATS: Final = tuple(_HOMES)
"""The formats that `open_shards` reads."""


def open_shards(kind: str, src: str | os.PathLike[str], choice: FieldMapping) -> Any:
    """Return the source of this format at `src`. Raises `UsageError`, `SourceError`, `MissingExtraError`."""
    module, name = _HOMES[kind]
    opened: Callable[[Any, FieldMapping], Any] = getattr(import_module(f"brand.chunker.importers.{module}"), name)
    return opened(src, choice)
