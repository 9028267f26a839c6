"""Data sets of Hugging Face: a folder that `save_to_disk` wrote, a folder of Parquet files, or a data set of the Hub.

`save_to_disk` leaves Arrow streams (`data-00000-of-00002.arrow`), which `state.json` lists in order; each is a shard.
Everything else is Parquet, as `push_to_hub` writes it. A data set of the Hub is first downloaded into the Hub's cache.
`arrow` maps features to fields. The package `datasets` is not needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from brand.chunker.importers.arrow import ArrowFields
from brand.chunker.importers.arrowtypes import arrow
from brand.chunker.importers.fields import LOOKED_AT, FieldMapping
from brand.chunker.importers.files import ImportFile, find_files
from brand.chunker.importers.parquet import Parquet
from brand.chunker.importers.raw import below, folder_error
from brand.chunker.sources.shards import Block, Shard
from brand.errors import SourceError, UsageError
from brand.stores.url import is_url, parse_url

_SPLIT: Final = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?=$|[^a-z])")
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1 << 15


class Saved:
    """A folder that `Dataset.save_to_disk` wrote."""

    kind = "hf"

    def __init__(self, root: Path, choice: FieldMapping) -> None:
        library, state = arrow(), root / "state.json"
        try:
            told = json.loads(state.read_bytes())
            names = [str(file["filename"]) for file in told["_data_files"]]
            paths = [below(root, name) for name in names]
            facts = [path.stat() for path in paths]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise folder_error(state, error, "Arrow files") from error
        if told.get("_indices_data_files"):
            raise SourceError(str(state), "its rows are in another order: call flatten_indices() and save it again")
        if not paths:
            raise SourceError(str(state), "it lists no files")
        self._files = [
            ImportFile(path, name, fact.st_size, f"{fact.st_size} {fact.st_mtime_ns}")
            for path, name, fact in zip(paths, names, facts, strict=True)
        ]
        with library.OSFile(str(paths[0])) as file:
            reader = _stream(self._files[0], file)
            schema = reader.schema
            first = _next(self._files[0], reader)
        rows = schema.empty_table() if first is None else library.Table.from_batches([first.slice(0, LOOKED_AT)])
        self._columns = ArrowFields(schema, rows.select, choice)
        self.schema, self.choice = self._columns.fields.schema, self._columns.fields.choice
        self.classes = self._columns.classes
        self.shards = tuple(Shard(file.name, file.bytes, file.mark) for file in self._files)

    @property
    def notes(self) -> list[str]:
        """Sentences for the report."""
        return self._columns.fields.renamed

    def read(self, number: int) -> Iterator[Block]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, row = self._files[number], 0
        with arrow().OSFile(str(file.path)) as stream:
            reader = _stream(file, stream)
            differs = self._columns.differs(reader.schema)
            if differs:
                raise SourceError(file.name, f"{differs}; it is not as in {self._files[0].name}")
            while (batch := _next(file, reader)) is not None:
                step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
                for start in range(0, batch.num_rows, step):
                    yield self._columns.block(batch.slice(start, step), row + start)
                row += batch.num_rows


def open_hf(src: str | os.PathLike[str], choice: FieldMapping) -> Saved | Parquet:
    """Return the source in a folder, in Parquet files, or at `hf://datasets/OWNER/NAME`.

    Raises `SourceError`, `UsageError`.
    """
    arrow()
    root = Path(src)
    if is_url(src):
        from brand.stores.hub import download

        root = download(parse_url(str(src)), "*.parquet")
    if (root / "dataset_dict.json").exists():
        splits = sorted(path.parent.name for path in root.glob("*/state.json"))
        raise UsageError(
            f"{os.fspath(src)} has the splits {', '.join(splits)}: convert each of them, as {root / splits[0]}"
            if splits
            else f"{os.fspath(src)} has no splits"
        )
    if (root / "state.json").exists():
        return Saved(root, choice)
    _refuse_splits(os.fspath(src), root)
    return Parquet(root, choice)


def _refuse_splits(src: str, root: Path) -> None:
    """Raise `UsageError` if a folder holds the files of several splits."""
    if not root.is_dir():
        return
    found: dict[str, str] = {}
    for file in find_files(
        root, [".parquet", ".pq"], "Parquet file, and no state.json, so `save_to_disk` did not write it"
    ):
        split = _SPLIT.search(file.name.lower())
        if split is not None:
            found.setdefault(split[1], file.name)
    if len(found) > 1:
        first = next(iter(found.values()))
        pattern = re.sub(r"-\d{5}-of-\d{5}", "-*", first)
        raise UsageError(
            f"{src} has the splits {', '.join(sorted(found))}: convert each of them, as '{src.rstrip('/')}/{pattern}'"
        )


def _stream(file: ImportFile, stream: Any) -> Any:
    library = arrow()
    try:
        return library.ipc.open_stream(stream)
    except (library.ArrowException, OSError) as error:
        raise SourceError(file.name, f"it is not an Arrow stream: {error}") from error


def _next(file: ImportFile, reader: Any) -> Any:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except (arrow().ArrowException, OSError) as error:
        raise SourceError(file.name, f"it is damaged or truncated: {error}") from error
