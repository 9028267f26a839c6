"""Parquet files, and data sets of Hugging Face, read in bounded memory. `arrow` maps types and features to fields.

A shard of Parquet is some neighbouring row groups of a file. Batches of some megabytes are read from it, whatever the
size of a row group. `save_to_disk` of Hugging Face leaves Arrow streams (`data-00000-of-00002.arrow`), which
`state.json` lists in order; each is a shard. Other data sets of Hugging Face are Parquet, as `push_to_hub` writes it. A
data set of the Hub is first downloaded into the Hub's cache. The package `datasets` is not needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from brand.available import available_bytes
from brand.chunker.importers.arrow import array_of, arrow, arrow_errors, arrow_file, intact, is_made, validated
from brand.chunker.importers.arrowfields import MOST_ROWS, ArrowFields, ArrowShards, first_arrays
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.files import ImportFile, find_files, index_errors, listed_file
from brand.chunker.importers.finding import folders_with, is_pattern, place_of
from brand.chunker.importers.pages import ColumnChunk
from brand.chunker.importers.partitions import partitions_of
from brand.chunker.sources.objects import ObjectPath, SourcePath, source_path
from brand.chunker.sources.shards import Bad, Block, Shard
from brand.chunker.sources.splits import ALL, choose
from brand.errors import SourceError, UsageError, counted
from brand.printable import printable

STRETCH_BYTES: Final = 64 << 20
"""Bytes of the row groups of a shard together, before compression; a larger row group is a shard of its own."""
_BATCH_BYTES: Final = 4 << 20
_READ_BYTES: Final = 1 << 20
_LARGE_PAGE: Final = 256 << 20
_LARGE_DICTIONARY: Final = 64 << 10
_PREFIXES: Final = "DELTA_BYTE_ARRAY"
_FIRST_ROWS: Final = 16
_PAGE_HELD: Final = 2
"""Forms of a page in the memory of Arrow: decompressed, and as values."""
_SMALLER_PAGES: Final = (
    "Write with write_batch_size=16, with smaller row groups, or, if the values are not in lists, with"
    " compression='zstd'"
)
_DAMAGED: Final = "it is damaged or truncated"
_STATE: Final = "state.json"
PARQUET_SUFFIXES: Final = (".parquet", ".pq")


class Parquet(ArrowShards):
    """Parquet files with equal columns."""

    kind = "parquet"

    def __init__(
        self,
        src: str | os.PathLike[str] | list[ImportFile],
        choice: FieldMapping,
        what: str = "Parquet file",
        notes: Sequence[str] = (),
    ) -> None:
        """Read the files of `src`; `what` names them in the message if there are none. `notes` join the report."""
        arrow()
        files = src if isinstance(src, list) else find_files(src, PARQUET_SUFFIXES, what, choice.split, tables=True)
        self._stretches: list[tuple[ImportFile, list[int]]] = []
        paths = [str(file.path) if _names_files(src) else file.name for file in files]
        self._partitions = dict(zip(files, _partitions(paths), strict=True))
        shards, columns = [], None
        pages = dict[str, tuple[int, str]]()
        for file in files:
            with arrow_errors(file.name, _DAMAGED), _opened(file) as parquet:
                schema = _joined(parquet.schema_arrow, self._partitions[file])
                if not schema.names:
                    raise SourceError(file.name, "it has no columns")
                for group in range(parquet.metadata.num_row_groups):
                    for leaf, size in _large_columns(file, parquet, group)[1].items():
                        if not choice.columns or leaf.partition(".")[0] in choice.columns:
                            pages[file.name] = max(pages.get(file.name, (0, "")), (size, leaf))
                            self.least_held = _check_pages(pages)
                if columns is None:
                    columns = ArrowFields(schema, partial(_first, file, parquet), choice)
                columns.check(file.name, schema, files[0].name, "--columns takes only those that all files have")
                more = [] if choice.columns else [name for name in schema.names if name not in columns.fields.columns]
                if more:
                    what_differs = f"it has a column {more[0]!r}, which {files[0].name} has not"
                    raise SourceError(file.name, what_differs, hint="--columns takes only those that all files have")
                for groups, samples, size in _cuts(parquet.metadata):
                    self._stretches.append((file, groups))
                    shards.append(Shard(file.name, size, f"{file.mark} {groups[0]} {groups[-1]}", samples))
        if columns is None or not shards:
            raise SourceError(files[0].name, "there are no rows in it, nor in any other file")
        super().__init__(shards, columns)
        self.notes = (*self.notes, *notes)
        if pages:
            self.notes += (_about_pages(pages),)

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, groups = self._stretches[number]
        with arrow_errors(file.name, _DAMAGED), _opened(file) as parquet:
            facts = [parquet.metadata.row_group(group) for group in range(groups[-1] + 1)]
            row = sum(group.num_rows for group in facts[: groups[0]])
            mean = max(_row_bytes(file, parquet, group) for group in groups)
            rows = max(1, min(MOST_ROWS, _BATCH_BYTES // max(1, mean)))
            partition, taken = self._partitions[file], self._columns.fields.columns
            names = [name for name in taken if name in parquet.schema_arrow.names]
            batches = _batches(file, parquet, groups, names, rows)
            whole = (_with_columns(batch, partition, taken) for batch in intact(file.name, "it is damaged", batches))
            yield from self._columns.blocks(whole, row)


def _names_files(src: str | os.PathLike[str] | list[ImportFile]) -> bool:
    """Return whether a source is a file or a pattern, and not a folder: then the folders in it count as partitions."""
    if isinstance(src, list):
        return False
    text = os.fspath(src)
    if isinstance(place_of(text), ObjectPath):
        return is_pattern(text) or text.lower().endswith(PARQUET_SUFFIXES)
    return not Path(src).is_dir()


def _partitions(paths: Sequence[str]) -> list[Any]:
    """Return the columns that the folders in each path name, as a batch of one row."""
    library, told = arrow(), partitions_of(paths)
    kinds = {column: library.array([values[column] for values in told]).type for column in told[0]}
    return [
        library.record_batch([library.array([values[column]], kinds[column]) for column in kinds], list(kinds))
        for values in told
    ]


def _joined(schema: Any, partition: Any) -> Any:
    """Return a schema with the columns of a partition. A column that the files hold themselves is theirs."""
    for column in partition.schema:
        schema = schema if column.name in schema.names else schema.append(column)
    return schema


def _with_columns(batch: Any, partition: Any, taken: Sequence[str]) -> Any:
    """Return a batch with those columns of its partition that are taken."""
    library, schema, columns = arrow(), batch.schema, list(batch.columns)
    for column in partition.schema:
        if column.name in taken and column.name not in batch.schema.names:
            schema = schema.append(column)
            columns.append(library.repeat(partition.column(column.name)[0], batch.num_rows))
    return library.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _opened(file: ImportFile) -> Iterator[Any]:
    """Open a Parquet file as a context. Raises `SourceError` if it cannot be read.

    Frees the memory of Arrow afterwards: pages may be large, and each process would keep its own.
    """
    with arrow_errors(file.name, "it is not a whole Parquet file"):
        source = file.path.open_for_jumps() if isinstance(file.path, ObjectPath) else file.path
        opened = arrow().parquet.ParquetFile(source, buffer_size=_READ_BYTES, pre_buffer=False)
    try:
        with opened as parquet:
            yield parquet
    finally:
        if not isinstance(source, Path):
            source.close()
        arrow().default_memory_pool().release_unused()


def _batches(file: ImportFile, parquet: Any, groups: Sequence[int], names: Sequence[str], rows: int) -> Iterator[Any]:
    """Yield rows of row groups in batches of `rows`. Columns with large pages are read value by value."""
    for group in groups:
        large = {name: found for name, found in _large_columns(file, parquet, group)[0].items() if name in names}
        if not large:
            yield from parquet.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False)
            continue
        others = [name for name in names if name not in large]
        others += [
            f"{name}.{child.name}"
            for name, (leaf, _) in large.items()
            for child in (parquet.schema_arrow.field(name).type if "." in leaf else ())
            if f"{name}.{child.name}" != leaf
        ]
        count = parquet.metadata.row_group(group).num_rows
        with _raw(file) as raw:
            values = {
                name: ColumnChunk(raw, *_facts(parquet, group, number)).values() for name, (_, number) in large.items()
            }
            beside = (
                parquet.iter_batches(rows, row_groups=[group], columns=others, use_threads=False)
                if others
                else (None for _ in range(0, count, rows))
            )
            for first, batch in zip(range(0, count, rows), beside, strict=True):
                size = min(rows, count - first)
                made = {name: batch.column(name) for name in (batch.schema.names if batch is not None else ())}
                for name, found in values.items():
                    some = list(islice(found, size))
                    made[name] = array_of(parquet.schema_arrow.field(name).type, some, made.get(name))
                    del some
                kinds = [parquet.schema_arrow.field(name) for name in made]
                yield arrow().RecordBatch.from_arrays(list(made.values()), schema=arrow().schema(kinds))


def _row_bytes(file: ImportFile, parquet: Any, group: int) -> int:
    """Return about the bytes of a row. A dictionary holds each value once, and a row group may hold it many times.

    Values that are encoded by what they have in common with the one before have any size.
    """
    facts, schema = parquet.metadata.row_group(group), parquet.metadata.schema
    total = facts.total_byte_size
    for number, column in enumerate(map(facts.column, range(facts.num_columns))):
        if _PREFIXES in column.encodings:
            total = max(total, facts.num_rows * _measured(parquet, group, schema.column(number).path))
        is_large = column.has_dictionary_page and column.total_compressed_size > _LARGE_DICTIONARY
        if is_large and schema.column(number).physical_type == "BYTE_ARRAY":
            with _raw(file) as raw:
                values, size = ColumnChunk(raw, *_facts(parquet, group, number)).dictionary()
            total = max(total, size * column.num_values // max(1, values))
    return int(total // max(1, facts.num_rows))


def _measured(parquet: Any, group: int, leaf: str) -> int:
    """Return the mean bytes of the first values of a column, read in steps that are bounded by bytes."""
    rows = _FIRST_ROWS
    while True:
        batch = next(parquet.iter_batches(rows, row_groups=[group], columns=[leaf], use_threads=False))
        if batch.num_rows < rows or batch.nbytes * _FIRST_ROWS > _BATCH_BYTES:
            return int(batch.nbytes // max(1, batch.num_rows))
        rows *= _FIRST_ROWS


def _large_columns(file: ImportFile, parquet: Any, group: int) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    """Return the columns of a row group that have large pages.

    The first ones are read value by value: column -> its leaf and that leaf's number. Arrow reads the others: leaf ->
    size of a page.
    """
    facts, schema = parquet.metadata.row_group(group), parquet.metadata.schema
    readable, others = dict[str, tuple[str, int]](), dict[str, int]()
    numbers = [
        number
        for number in range(facts.num_columns if facts.total_byte_size > _LARGE_PAGE else 0)
        if facts.column(number).total_uncompressed_size > _LARGE_PAGE
    ]
    if not numbers:
        return readable, others
    with _raw(file) as raw:
        for number in numbers:
            chunk, leaf = ColumnChunk(raw, *_facts(parquet, group, number)), schema.column(number)
            if (page := chunk.largest_page(far=not isinstance(file.path, Path))) <= _LARGE_PAGE:
                continue
            name = leaf.path.partition(".")[0]
            one = name not in readable and is_made(parquet.schema_arrow, leaf.path)
            if one and leaf.physical_type == "BYTE_ARRAY" and not leaf.max_repetition_level and chunk.is_readable():
                readable[name] = leaf.path, number
            else:
                others[leaf.path] = page
    return readable, others


def _facts(parquet: Any, group: int, number: int) -> tuple[Any, int]:
    metadata = parquet.metadata
    return metadata.row_group(group).column(number), metadata.schema.column(number).max_definition_level


def _raw(file: ImportFile) -> BinaryIO:
    opened: Any = file.path.open("rb", buffering=0) if isinstance(file.path, Path) else file.path.open()
    return opened  # type: ignore[no-any-return]


def _check_pages(pages: Mapping[str, tuple[int, str]]) -> int:
    """Return the bytes that Arrow takes to read the largest page. Raises `SourceError` if they are not available.

    `pages` is, by the name of a file, the size of its largest page, and the page's column.
    """
    name, (size, leaf) = max(pages.items(), key=lambda item: item[1])
    held, available = _PAGE_HELD * size, available_bytes()
    if held > available:
        raise SourceError(
            name,
            f"the column {printable(leaf)} has a page of {size / 1e9:.1f} GB, which Arrow reads as a whole: that takes"
            f" {held / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available",
            hint=_SMALLER_PAGES + ". --columns leaves the column out",
        )
    return held


def _about_pages(pages: Mapping[str, tuple[int, str]]) -> str:
    name, (size, _) = max(pages.items(), key=lambda item: item[1])
    return (
        f"{counted(len(pages), 'file')} with large pages, such as {name} with {size / 1e9:.1f} GB: Arrow reads such a"
        f" page as a whole, and takes {_PAGE_HELD} times its size. {_SMALLER_PAGES}"
    )


def _first(file: ImportFile, parquet: Any, name: str) -> Iterator[Any]:
    for batch in _batches(file, parquet, range(parquet.metadata.num_row_groups), [name], 1):
        yield batch.column(name)


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

    def __init__(self, root: SourcePath, choice: FieldMapping) -> None:
        arrow()
        state = root / _STATE
        with index_errors(state, "Arrow files"):
            told = json.loads(state.read_bytes())
            self._files = [listed_file(root, str(file["filename"]), state.name) for file in told["_data_files"]]
        if told.get("_indices_data_files"):
            raise SourceError(str(state), "its rows are in another order: call flatten_indices() and save it again")
        if not self._files:
            raise SourceError(str(state), "it lists no files")
        with arrow_errors(self._files[0].name, _DAMAGED), arrow_file(self._files[0].path) as file:
            reader = _stream(self._files[0], file)
            schema = reader.schema
            first = next(intact(self._files[0].name, _DAMAGED, validated(reader)), None) or schema.empty_table()
        if not schema.names:
            raise SourceError(self._files[0].name, "it has no columns")
        shards = (Shard(file.name, file.bytes, file.mark) for file in self._files)
        super().__init__(shards, ArrowFields(schema, lambda name: first_arrays(first.column(name)), choice))

    def read(self, number: int) -> Iterator[Block | Bad]:
        """Yield the rows of one shard, as `Shards.read` does."""
        file, row = self._files[number], 0
        # A batch, which may be large, is read as its rows are.
        with arrow_errors(file.name, _DAMAGED), arrow_file(file.path) as stream:
            reader = _stream(file, stream)
            self._columns.check(file.name, reader.schema, self._files[0].name)
            for batch in intact(file.name, _DAMAGED, validated(reader)):
                yield from self._columns.blocks([batch], row)
                row += batch.num_rows


def open_hf(src: str | os.PathLike[str], choice: FieldMapping) -> Saved | Parquet:
    """Return the source in a folder of `save_to_disk`, or in Parquet files. Raises `SourceError`, `UsageError`."""
    arrow()
    text, found = os.fspath(src), "Parquet file, and no state.json, so `save_to_disk` did not write it"
    if is_pattern(text) or text.lower().endswith(PARQUET_SUFFIXES):
        return Parquet(src, choice, found)
    root = source_path(text)
    if (root / _STATE).exists():
        return Saved(root, choice)
    saved = folders_with(root, _STATE)
    if not saved:
        if (root / "dataset_dict.json").exists():
            raise SourceError(os.fspath(src), "it has no splits")
        return Parquet(src, choice, found)
    if choice.split == ALL:
        raise UsageError(
            f"{os.fspath(src)} has the splits {', '.join(saved)}, each with features of its own: convert each of them,"
            f" with --split {saved[0]}"
        )
    split = choose(os.fspath(src), dict.fromkeys(saved, 1), choice.split, "folder")
    return Saved(root / split, choice)


def _stream(file: ImportFile, stream: Any) -> Any:
    with arrow_errors(file.name, "it is not an Arrow stream"):
        return arrow().ipc.open_stream(stream)
