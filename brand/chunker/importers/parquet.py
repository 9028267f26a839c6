"""Parquet files, and data sets of Hugging Face, read in bounded memory. `arrow` maps types and features to fields.

A shard of Parquet is some neighbouring row groups of a file. Batches of some megabytes are read from it, whatever the
size of a row group. `save_to_disk` of Hugging Face leaves Arrow streams (`data-00000-of-00002.arrow`), which
`state.json` lists in order; each is a shard. Other data sets of Hugging Face are Parquet, as `push_to_hub` writes it. A
data set of the Hub is first downloaded into the Hub's cache. The package `datasets` is not needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from brand.chunker.importers.arrow import MOST_ROWS, ArrowFields, ArrowShards, arrow, arrow_errors, arrow_file, intact
from brand.chunker.importers.fields import LOOKED_AT, FieldMapping
from brand.chunker.importers.files import ImportFile, find_files, index_errors, listed_file
from brand.chunker.importers.objects import ObjectPath
from brand.chunker.sources.shards import Block, Shard
from brand.errors import SourceError, UsageError
from brand.stores.url import is_url, parse_url

STRETCH_BYTES: Final = 64 << 20
"""Bytes of the row groups of a shard together, before compression; a larger row group is a shard of its own."""
_BATCH_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 20
_DAMAGED: Final = "it is damaged or truncated"
_SPLIT: Final = re.compile(r"(?:^|[^a-z])(train|validation|valid|val|dev|test)(?=$|[^a-z])")


class Parquet(ArrowShards):
    """Parquet files with equal columns."""

    kind = "parquet"

    def __init__(self, src: str | os.PathLike[str], choice: FieldMapping) -> None:
        arrow()
        files = find_files(src, [".parquet", ".pq"], "Parquet file")
        self._stretches: list[tuple[ImportFile, list[int]]] = []
        shards, columns = [], None
        for file in files:
            with _opened(file) as parquet:
                schema = parquet.schema_arrow
                if columns is None:
                    columns = ArrowFields(schema, partial(_first, parquet), choice)
                columns.check(file.name, schema, files[0].name, "--columns takes only those that all files have")
                for groups, samples, size in _cuts(parquet.metadata):
                    self._stretches.append((file, groups))
                    shards.append(Shard(file.name, size, f"{file.mark} {groups[0]} {groups[-1]}", samples))
        if columns is None or not shards:
            raise SourceError(files[0].name, "there are no rows in it, nor in any other file")
        super().__init__(shards, columns)

    def read(self, number: int) -> Iterator[Block]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, groups = self._stretches[number]
        with _opened(file) as parquet:
            facts = [parquet.metadata.row_group(group) for group in range(groups[-1] + 1)]
            row = sum(group.num_rows for group in facts[: groups[0]])
            mean = sum(facts[g].total_byte_size for g in groups) // max(1, sum(facts[g].num_rows for g in groups))
            rows = max(1, min(MOST_ROWS, _BATCH_BYTES // max(1, mean)))
            names = list(self._columns.fields.columns)
            batches = parquet.iter_batches(rows, row_groups=groups, columns=names, use_threads=False)
            yield from self._columns.blocks(intact(file.name, "it is damaged", batches), row)


def _opened(file: ImportFile) -> Any:
    """Open a Parquet file as a context. Raises `SourceError` if it cannot be read."""
    with arrow_errors(file.name, "it is not a whole Parquet file"):
        opened = file.path.open() if isinstance(file.path, ObjectPath) else file.path
        return arrow().parquet.ParquetFile(opened, buffer_size=_READ_BYTES, pre_buffer=False)


def _first(parquet: Any, names: list[str]) -> Any:
    batches = parquet.iter_batches(LOOKED_AT, columns=names, use_threads=False)
    return next(batches, None) or parquet.schema_arrow.empty_table()


def _cuts(metadata: Any) -> list[tuple[list[int], int, int]]:
    """Return row groups, rows and bytes of each stretch of a file."""
    cuts: list[tuple[list[int], int, int]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        if cuts and cuts[-1][2] + group.total_byte_size <= STRETCH_BYTES:
            groups, rows, size = cuts.pop()
            cuts.append(([*groups, number], rows + group.num_rows, size + group.total_byte_size))
        else:
            cuts.append(([number], group.num_rows, group.total_byte_size))
    return cuts


class Saved(ArrowShards):
    """A folder that `Dataset.save_to_disk` wrote."""

    kind = "hf"

    def __init__(self, root: Path, choice: FieldMapping) -> None:
        library, state = arrow(), root / "state.json"
        with index_errors(state, "Arrow files"):
            told = json.loads(state.read_bytes())
            self._files = [listed_file(root, str(file["filename"]), state.name) for file in told["_data_files"]]
        if told.get("_indices_data_files"):
            raise SourceError(str(state), "its rows are in another order: call flatten_indices() and save it again")
        if not self._files:
            raise SourceError(str(state), "it lists no files")
        with arrow_file(self._files[0].path) as file:
            reader = _stream(self._files[0], file)
            schema = reader.schema
            first = next(intact(self._files[0].name, _DAMAGED, reader), None)
        rows = schema.empty_table() if first is None else library.Table.from_batches([first.slice(0, LOOKED_AT)])
        shards = (Shard(file.name, file.bytes, file.mark) for file in self._files)
        super().__init__(shards, ArrowFields(schema, rows.select, choice))

    def read(self, number: int) -> Iterator[Block]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, row = self._files[number], 0
        with arrow_file(file.path) as stream:  # a batch, which may be large, is read as its rows are
            reader = _stream(file, stream)
            self._columns.check(file.name, reader.schema, self._files[0].name)
            for batch in intact(file.name, _DAMAGED, reader):
                yield from self._columns.blocks([batch], row)
                row += batch.num_rows


def open_hf(src: str | os.PathLike[str], choice: FieldMapping) -> Saved | Parquet:
    """Return the source in a folder, in files, or at `hf://datasets/OWNER/NAME`. Raises `SourceError`, `UsageError`."""
    arrow()
    root = Path(src)
    if is_url(src):
        from brand.stores.hub import download

        root = download(parse_url(str(src)), "*.parquet")
    if (root / "dataset_dict.json").exists():
        splits = sorted(path.parent.name for path in root.glob("*/state.json"))
        raise UsageError(
            f"{os.fspath(src)} has the splits {', '.join(splits)}: convert each of them, as '{root / splits[0]}'"
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
    with arrow_errors(file.name, "it is not an Arrow stream"):
        return arrow().ipc.open_stream(stream)
