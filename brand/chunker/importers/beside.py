"""Which table is beside a folder of files, and which of its columns names the files?

The user names it, or it is `metadata.csv`, `metadata.jsonl` or `metadata.parquet` at the top of the folder, with a
column `file_name`: the convention of `datasets` of Hugging Face. Its other columns are fields, as in an import. If
columns such as `mask_file_name` name further files, its rows are the samples (`namedfiles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from brand.chunker.importers import open_shards
from brand.chunker.importers.fields import FieldMapping, field_name
from brand.chunker.importers.files import COMPRESSED
from brand.chunker.importers.namedfiles import NamedFiles, naming
from brand.chunker.plan.plan import Options
from brand.chunker.sources.filetable import LIST_OF, TABLE_OPTIONS, FileTable
from brand.chunker.sources.objects import SourcePath, is_below
from brand.chunker.sources.request import FolderRequest, Target, make_request, source_folder, source_of
from brand.chunker.sources.texttable import Dialect
from brand.chunker.sources.trees import folders_in, tree_of
from brand.errors import UsageError, counted

_SHOWN: Final = 5
FILE_NAME: Final = "file_name"
_METADATA: Final = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_KINDS: Final = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}


def images_source(
    src: Target,
    dst: Target,
    options: Options | None,
    table: Target | None,
    key: str | None,
    choice: FieldMapping | None,
) -> FolderRequest | NamedFiles:
    """Check the arguments of `convert_images`, and open the table. Raises `UsageError`, `SourceError`.

    Returns the rows of the table if they name several files each; else the request for the files of the folder.
    """
    path = None if table is None else source_of(table)
    root, given = source_folder(src, options)[0], source_of(src)
    above = [folder for folder in root.parents if is_below(folder, given)]
    tables = [folder / name for folder in above for name in _METADATA if tree_of(folder).is_file(name)]
    if tables and table is None:
        raise UsageError(
            f"{tables[0]} is a table above the split {root.name}: --split all converts all splits with it, or move its"
            f" rows of this split to {root / tables[0].name}"
        )
    rows = _table_beside(root, path, key, choice, "image")
    if isinstance(rows, NamedFiles):
        make_request(src, dst, "images", options)
        return rows
    return make_request(src, dst, "images", options, rows=rows)


def _table_beside(
    root: SourcePath, table: SourcePath | None, key: str | None, choice: FieldMapping | None, field: str
) -> FileTable | NamedFiles | None:
    """Return the table that the user names, or the one that is at the top of the folder; None if there is none.

    `key` is the column that names the files, and `field` the field of their contents. Raises `UsageError`,
    `SourceError`.
    """
    path = _found(root) if table is None else table
    if path is None:
        if key is not None or choice is not None:
            raise UsageError(f"{TABLE_OPTIONS} are about a table: name it with --table")
        return None
    if not path.is_file():
        what = "it is not a file" if path.exists() else "there is no such file"
        raise UsageError(f"{path}: {what}: --table names a table, CSV, TSV, JSON lines or Parquet")
    plain = Path(Path(path.name).stem) if path.suffix.lower() in COMPRESSED else path
    kind = _KINDS.get(plain.suffix.lower())
    if kind is None:
        raise UsageError(f"{path}: a table has one of the endings {', '.join(_KINDS)}")
    if key is None and table is not None:
        raise UsageError(f"--table {path}: name the column of the files with --key, such as --key {FILE_NAME}")
    try:
        if table is None and key is None and (named := _naming_files(root, path, kind, choice or FieldMapping())):
            return named
        return _opened(path, kind, key or FILE_NAME, choice or FieldMapping(), field)
    except UsageError as error:
        hint = "" if table is not None else ". If it is no table of the files, move it out of the folder"
        raise UsageError(f"{path}: {error}{hint}") from error


def _found(root: SourcePath) -> SourcePath | None:
    tree = tree_of(root)
    found = [root / name for name in _METADATA if tree.is_file(name)]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise UsageError(f"{root} has {names}: name one of them with --table, and move the others away")
    below = sorted({folder for folder in folders_in(root) for name in _METADATA if tree.is_file(f"{folder}/{name}")})
    if below and not found:
        there = f"{counted(len(below), 'folder')} in it ({', '.join(below[:_SHOWN])})"
        has = "has" if len(below) == 1 else "have"
        raise UsageError(
            f"{root}: {there} {has} a table metadata.* for the images there: convert each such folder, as"
            f" {root / below[0]}"
        )
    return found[0] if found else None


def _naming_files(root: SourcePath, path: SourcePath, kind: str, choice: FieldMapping) -> NamedFiles | None:
    """Return the rows of a table with columns such as `mask_file_name`; None if it has no such columns."""
    plain = replace(choice, gather=())
    names = naming(open_shards(kind, str(path), plain).schema.fields, choice)
    if not names:
        return None
    if choice.gather:
        raise UsageError("--gather makes lists of the rows of a file, and here a row names several: leave it out")
    _check_dialect(kind, choice)
    texts = {name: "str" if codec == "image" else "list[str]" for name, codec in names.items()}
    return NamedFiles(open_shards(kind, str(path), replace(plain, codecs={**choice.codecs, **texts})), root, names)


def _check_dialect(kind: str, choice: FieldMapping) -> None:
    if kind != "csv" and choice.dialect != Dialect():
        raise UsageError("--separator, --quote and --escape are about CSV and TSV files, and this is neither")


def _opened(path: SourcePath, kind: str, key: str, choice: FieldMapping, field: str) -> FileTable:
    _check_dialect(kind, choice)
    columns = (*choice.columns, key) if choice.columns else ()
    codecs = {**choice.codecs, key: "str"}  # a number would lose the zeros at its front
    source = open_shards(kind, str(path), replace(choice, columns=columns, codecs=codecs, gather=()))
    name = choice.names.get(key) or field_name(key)
    for taken in (field, "key"):
        if taken != name and taken in source.schema.names:
            others = ",".join(each for each in source.schema.names if each not in (name, taken)) or "NAME"
            raise UsageError(
                f"its column {taken!r} has the name of a field that every sample has: --columns {others} leaves it out"
            )
    if len(source.schema.fields) < 2:
        raise UsageError(f"it has no column but {key!r}, so it says nothing about the files")
    fields = [(each, codec) for each, codec in source.schema.fields if each != name]
    return FileTable(path, name, source, _gathered(fields, choice))


def _gathered(fields: Sequence[tuple[str, str]], choice: FieldMapping) -> frozenset[str]:
    """Return the fields of which a file has a list. Raises `UsageError` if there is none, or no list for its codec."""
    found = set[str]()
    for asked in choice.gather:
        named = choice.names.get(asked, field_name(asked))
        chosen = {name for name, _ in fields if name in (asked, named) or fnmatchcase(name, asked)}
        if not chosen:
            there = ", ".join(name for name, _ in fields)
            raise UsageError(f"--gather {asked}: there is no such column; there are {there}")
        found |= chosen
    for name, codec in fields:
        if name in found and codec not in LIST_OF:
            raise UsageError(
                f"--gather {name}: it is {codec}, and there are no lists of these: --field {name}=json stores the rows"
                " of a file as one array of JSON"
            )
    return frozenset(found)
