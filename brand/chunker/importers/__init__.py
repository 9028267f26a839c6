"""Data that other tools have written, mostly as `Shards`. One module per format maps its fields to those of a sample.

webdataset  tar files
mds         the folders of mosaicml-streaming
litdata     the folders of LitData
parquet     Parquet files, and data sets of Hugging Face
pages       large pages of Parquet files, value by value
csvfiles    CSV and TSV
jsonfiles   JSON Lines, and JSON files of arrays
jsonvalues  the values of a JSON file, one at a time
tokens      token files of language models, read in any order
tables      a table given to `pack`
manifests   the rows of manifests of speech
utterances  the utterances that a manifest lists
huggingface the data sets of Hugging Face that `pack` is given
arrow       values of Arrow columns, for Parquet, Hugging Face and tables in memory
arrowfields fields of an Arrow schema, with the features of Hugging Face
times       dates, times and durations as texts
fields      from the columns of a source to fields
natural     the codecs that the first values of a column give it
hub         Parquet files of the Hugging Face Hub
lists       lists of files, and files that a text names
beside      a table next to a folder of images
namedfiles  a table in which several columns name images
files       the files of a source, also compressed ones
finding     the files of a source in a store or in a zip
walk        the files below a folder, and which are data
partitions  columns in the names of folders
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from brand.chunker.importers.fields import FieldMapping
from brand.chunker.plan.report import OnProgress, silent
from brand.errors import UsageError

_HOMES: Final = {
    "webdataset": ("webdataset", "WebDataset"),
    "parquet": ("parquet", "Parquet"),
    "hf": ("parquet", "open_hf"),
    "mds": ("mds", "Mds"),
    "litdata": ("litdata", "open_litdata"),
    "jsonl": ("jsonfiles", "JsonLines"),
    "csv": ("csvfiles", "Csv"),
}
FORMATS: Final = tuple(_HOMES)
"""The formats that `open_shards` reads."""


def open_shards(kind: str, src: str | os.PathLike[str], choice: FieldMapping, on_progress: OnProgress = silent) -> Any:
    """Return the source of this format at `src`. Raises `UsageError`, `SourceError`, `MissingExtraError`."""
    if choice.gather:
        raise UsageError("--gather is for a table next to a folder of images, and here a row is a sample")
    if kind == "hf" and os.fspath(src).startswith("hf://"):
        from brand.chunker.importers.hub import open_hub

        return open_hub(os.fspath(src), choice, on_progress)
    module, name = _HOMES[kind]
    opened: Callable[[Any, FieldMapping], Any] = getattr(import_module(f"brand.chunker.importers.{module}"), name)
    return opened(src, choice)
