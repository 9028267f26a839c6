"""A conversion into a store: may it write there, and what have earlier runs made?

The work folder is below the user's cache folder, by the URL of the target. A chunk is made there, uploaded and removed,
so only a few are there at a time; the rows that the index needs are stored (`KeptChunks`).

The store itself records the owner of the target. A manifest is a finished data set. Chunk 0 marks one that is not
finished: the *claim*, which has the identity of the data set, takes its place before anything else is written,
create-only, so that if two conversions begin together, one of them is refused. There is no other mark, because it would
have to be removed at the end, and a writer need not be allowed to delete. All bytes that are written under one claim
are equal in every run: if the work folder is lost, or the source was touched, chunks are made again and replace equal
bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import xxhash

from brand.chunker.plan.plan import ChunkPlan
from brand.chunker.work.chunks import KEPT_NAME, KeptChunks, Written, keep_chunk
from brand.chunker.work.work import CLAIM_NAME, Claim, Work, locked, worth_keeping
from brand.errors import TargetExistsError
from brand.formats.chunk import claimed_by, pack_claim
from brand.formats.constants import MANIFEST_NAME, MAX_MANIFEST, PREAMBLE_SIZE, chunk_name
from brand.formats.publish import publish_bytes, storage_errors
from brand.stores.apart import StoreProcess
from brand.stores.target import StoreTarget
from brand.usercache import ANOTHER_FOLDER, own_folder

_UPLOADS: Final = 8
"""The fewest chunks that are uploaded at the same time: a request waits for the network most of the time."""
_UPLOAD_BYTES: Final = 512 << 20
_CHUNK_HELD: Final = 128 << 20
"""The most bytes of a chunk that are in memory: a larger one is uploaded in two parts of 64 MiB at a time."""


class StoreWork(Work):
    """The work folder of a conversion into a store."""

    def __init__(self, store: StoreProcess, folder: Path) -> None:
        self._to = StoreTarget(store)
        super().__init__(str(store.url), self._to, folder)
        self._store, self._kept = store, folder / KEPT_NAME
        self._data_set_id = b""

    def claim(self, data_set_id: bytes, source: str) -> None:
        """Claim the target, as `Work.claim` does."""
        path, data = self.folder / CLAIM_NAME, Claim(data_set_id, source).pack()
        if not path.exists() or path.read_bytes() != data:
            _refuse_finished(self._store)
            shutil.rmtree(self._kept, ignore_errors=True)  # rows of another source, or of a source that has changed
        claim = pack_claim(data_set_id)
        if not self._to.create(chunk_name(0), claim, lambda: self._claimed_by() == data_set_id):
            raise TargetExistsError(
                f"{self.name} holds an unfinished conversion of another source or with other options."
                f" Run that command again to finish it, or empty {self.name} to start again"
            )
        publish_bytes(path, data)
        self._kept.mkdir(exist_ok=True)
        self._data_set_id = data_set_id

    def earlier(self, plan: ChunkPlan) -> KeptChunks:  # noqa: ARG002 - the claim has looked at it
        """Return the chunks of earlier runs, as `Work.earlier` does.

        Lists the store if rows of chunks are stored; if listing is not allowed, all chunks are made again.
        """
        sizes: dict[int, int] = {}
        if any(self._kept.iterdir()):
            try:
                found = {name: size for name, size, _ in self._store.entries("chunks")}
            except OSError:
                found = {}
            numbers = (int(name) for name in os.listdir(self._kept) if name.isdecimal())
            sizes = {number: found[chunk_name(number)] for number in numbers if chunk_name(number) in found}
        return KeptChunks(self._kept, sizes)

    def publishers(self, processes: int, chunk_bytes: int) -> int:
        """Return how many chunks are uploaded at the same time; those of large chunks take memory."""
        return max(1, min(max(_UPLOADS, processes), _UPLOAD_BYTES // max(1, min(chunk_bytes, _CHUNK_HELD))))

    def publish_chunk(self, number: int, temporary: Path, chunk: Written) -> None:
        """Upload a chunk, as `Work.publish_chunk` does."""
        super().publish_chunk(number, temporary, chunk)
        with storage_errors(self._kept, "cannot write"):
            keep_chunk(self._kept, self._data_set_id, number, chunk)

    def _claimed_by(self) -> bytes | None:
        return claimed_by(b"".join(self._store.pieces(chunk_name(0), 0, PREAMBLE_SIZE)))


@contextmanager
def open_store_work(url: str, processes: int, *, dry_run: bool = False) -> Iterator[StoreWork]:
    """Make or continue the work folder of the target `url`; a dry run gets a temporary one.

    Raises `TargetExistsError` if the target is a finished data set, `StorageError` if the store refuses.
    """
    with StoreProcess(url, max(_UPLOADS, processes)) as store:
        if dry_run:
            _refuse_finished(store)
            with tempfile.TemporaryDirectory(prefix="brand-") as temporary:
                yield StoreWork(store, Path(temporary))
            return
        name = str(store.url)
        with storage_errors(name, "cannot store the state of the conversion in", ANOTHER_FOLDER):
            folder = own_folder("conversions", xxhash.xxh3_128_hexdigest(name.encode()))
        with locked(folder, name, lambda: _refuse_finished(store)):
            try:
                if not (folder / CLAIM_NAME).exists():
                    _refuse_finished(store)
                yield StoreWork(store, folder)
            except BaseException:
                if not worth_keeping(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                raise


def _refuse_finished(store: StoreProcess) -> None:
    with storage_errors(str(store.url), "cannot read"):
        try:
            store.read(MANIFEST_NAME, MAX_MANIFEST)
        except FileNotFoundError:
            return
    raise TargetExistsError(f"{store.url} is a finished data set already. Choose another target, or remove it")
