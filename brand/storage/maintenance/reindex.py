"""How are manifest, index and columns rebuilt from the chunks alone, byte for byte as the conversion wrote them?"""

from __future__ import annotations

import shutil
from pathlib import Path

from brand.errors import ForeignFileError, FormatError, MissingFileError, NotADataSetError, UsageError
from brand.formats.chunk import ChunkFront
from brand.formats.constants import MANIFEST_NAME, SHARE_NAME, WORK_NAME, chunk_name
from brand.formats.contents import read_facts
from brand.formats.heads import TRAITS
from brand.formats.index import IndexBuilder, companions_in, seal
from brand.formats.manifest import Manifest, read_manifest
from brand.formats.noticed import Noticed
from brand.formats.publish import FolderTarget, storage_errors
from brand.storage.io.frontback import OnChunk, silent
from brand.storage.io.fronts import open_front
from brand.storage.io.location import FolderLocation, check_single


def reindex(path: Path, on_chunk: OnChunk = silent) -> Manifest:
    """Rebuild all files except the chunks. The old files remain until the new ones are complete.

    `on_chunk(done, of, bytes)` reports progress.

    Raises:
        UsageError: This is a partition: its index covers all chunks, and it has only some of them. Or a collection.
        NotADataSetError: There are no chunks here, or their conversion is not finished.
        FormatError: A chunk is missing, damaged or foreign; nothing has been changed then.
        StorageError: The storage refused a write.
    """
    if (path / WORK_NAME).exists():
        how = "run the same `brand convert` command again, or `brand seal` if it was divided into tasks"
        raise NotADataSetError(f"its conversion is not finished: {how}", path=path)
    check_single(path, "each of its segments has an index of its own. Name one of")
    if not path.is_dir():
        what = "not a data set: it is a file, not a folder" if path.exists() else "there is no such folder"
        raise NotADataSetError(what, path=path)
    if (path / SHARE_NAME).exists():
        raise UsageError(
            f"{path} is a partition, and its chunks alone are not enough to rebuild its index. Copy"
            f" {MANIFEST_NAME}, index and columns from another partition or from the undivided data set: they are equal"
            " in all"
        )
    if not (path / "chunks").is_dir():
        raise NotADataSetError(
            "not a data set: there is no folder `chunks` in it", path=path, hint="`brand convert` makes one"
        )
    if not (path / chunk_name(0)).exists():
        raise NotADataSetError("there is no first chunk", path=path, expected=chunk_name(0), found="nothing")
    front = open_front(FolderLocation(path), 0)
    work = path / ".brand-reindex"
    missing = next((n for n in range(front.header.chunks) if not (path / chunk_name(n)).exists()), None)
    if missing is not None:  # raised before an index of all chunks takes space
        raise MissingFileError("the chunk is missing", path=path / chunk_name(missing), chunk=missing)
    with storage_errors(path, "cannot write the index of"):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            builder = IndexBuilder(work, front.header, path)
            for number in range(front.header.chunks):
                on_chunk(number + 1, front.header.chunks, _add(path, number, front, builder))
            return seal(
                FolderTarget(path),
                builder,
                data_set_id=front.preamble.data_set_id,
                dictionary_size=front.preamble.dictionary_size,
                companions=companions_in(path),
                noticed=_told(path, front),
            )
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _told(path: Path, front: ChunkFront) -> list[Noticed]:
    """Return the facts of the old manifest that do not follow from the chunks; none if it cannot be read."""
    try:
        manifest = read_manifest(path)
    except (FormatError, NotADataSetError):
        return []
    same = manifest.data_set_id == front.preamble.data_set_id
    return [fact for fact in manifest.noticed if fact.what not in TRAITS] if same else []


def _add(path: Path, number: int, first: ChunkFront, builder: IndexBuilder) -> int:
    chunk = path / chunk_name(number)
    front = open_front(FolderLocation(path), number)
    if front.preamble.data_set_id != first.preamble.data_set_id or front.header != first.header:
        expected, found = first.preamble.data_set_id.hex(), front.preamble.data_set_id.hex()
        raise ForeignFileError("a chunk of another data set", path=chunk, chunk=number, expected=expected, found=found)
    with chunk.open("rb") as file:
        columns, counts = read_facts(file, front, chunk)
    builder.add(number, front.rows, front.preamble.checksum, columns, counts)
    return front.preamble.file_size
