"""Data that other tools have written, as `Shards`. One module per format maps its fields to those of a sample.

webdataset  tar files                       parquet   Parquet files
mds         mosaicml-streaming's folders    hf        data sets of Hugging Face
litdata     LitData's folders               arrow     the common part of Parquet, Hugging Face and tables in memory
jsonl       JSON lines                      arrowtypes  Arrow's types and values
csvfiles    CSV and TSV                     raw       the common part of MDS and LitData
litarrow    LitData's chunks of plain rows
tars        the files of a tar archive      files     the files of a source, also compressed ones
fields      columns of a source -> fields   tables    a table given to `pack`
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
    "hf": ("hf", "open_hf"),
    "mds": ("mds", "Mds"),
    "litdata": ("litarrow", "open_litdata"),
    "jsonl": ("jsonl", "JsonLines"),
    "csv": ("csvfiles", "Csv"),
}
FORMATS: Final = tuple(_HOMES)
"""The formats that `open_shards` reads."""


def open_shards(kind: str, src: str | os.PathLike[str], choice: FieldMapping) -> Any:
    """Return the source at `src`, which has this format, as `Shards`.

    Raises `UsageError`, `SourceError`, `MissingExtraError`.
    """
    module, name = _HOMES[kind]
    opened: Callable[[Any, FieldMapping], Any] = getattr(import_module(f"brand.chunker.importers.{module}"), name)
    return opened(src, choice)
