"""Copy the manifest and index of a data set from a store to a folder of this machine, and check them while copying.

    URL -> brand.json -> its id and checksum name the folder -> the files that it lists, each with its size and checksum

The folder appears whole or not at all, below the user's cache folder, and must belong to this user. If several
processes need the same folder, all wait for the first of them (`flock`); files of a killed process are overwritten.
Without locks each process copies for itself, and the first that ends removes the unfinished folders of all others: they
take its folder. Files of the index are read in ranges, several at a time.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import xxhash

from brand.errors import BrandError, ChecksumError, LayoutError, StorageError, UsageError, pack_error
from brand.formats import locks
from brand.formats.constants import MANIFEST_NAME, MAX_MANIFEST, MAX_SHARE, SHARE_NAME
from brand.formats.index import array_bytes
from brand.formats.manifest import Manifest, index_names, parse_manifest
from brand.formats.publish import publish_bytes, storage_errors, sync_folder
from brand.printable import printable
from brand.storage.io.fronts import dictionary_in, open_front
from brand.storage.io.ownfolder import open_given, open_own_folder
from brand.storage.io.remote import DICTIONARY_NAME, Remote, no_data_set
from brand.stores.opening import open_store
from brand.stores.store import Store, Wanted, read_all
from brand.usercache import ANOTHER_FOLDER, user_cache

PATIENCE_S: Final = 20.0
"""Maximum time that a store is asked for the manifest, because a user waits for the answer."""
_RANGE: Final = 8 << 20
_AT_ONCE: Final = 8


def main() -> None:
    """Copy the index of the URL on standard input; write its folder, or the error, to standard output."""
    try:
        answer: dict[str, object] = {"folder": str(copy_index(sys.stdin.read().strip()))}
    except BrandError as error:
        answer = pack_error(error)
    sys.stdout.write(json.dumps(answer))


def copy_index(url: str) -> Path:
    """Return the folder with manifest and index of a data set at a URL, copied if it is missing.

    Raises `FormatError`, `UsageError`, `StorageError`.
    """
    data = _manifest(url)
    manifest = parse_manifest(data, url)
    home = user_cache("data-sets")
    with storage_errors(home, "cannot store the index in", ANOTHER_FOLDER):
        home.parent.mkdir(parents=True, exist_ok=True)
        brands = open_given(str(home.parent))
        try:
            parent = open_own_folder(home.name, brands, str(home))
        finally:
            os.close(brands)
        name = f"{manifest.data_set_id.hex()}-{xxhash.xxh3_64_hexdigest(data)}"
        folder = home / name
        try:
            with _locked(parent, name) as unfinished_name:
                if not folder.is_dir():
                    unfinished = home / unfinished_name
                    try:
                        _make(url, data, manifest, unfinished)
                        unfinished.rename(folder)
                    except (BrandError, OSError):
                        # Without locks, another process may have been faster, and has then removed `unfinished`.
                        if not folder.is_dir():
                            raise
                    sync_folder(home)
                # Opened only to check that no other user can change it.
                os.close(open_own_folder(name, parent, str(folder)))
                for left in home.glob(f"{name}.*part"):
                    shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(parent)
    return folder


def _make(url: str, data: bytes, manifest: Manifest, folder: Path) -> None:
    """Copy manifest and index into a new folder; one that a killed process left is removed. Raises as `copy_index`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    publish_bytes(folder / MANIFEST_NAME, data)
    _copy(open_store(url), manifest, folder)


def _manifest(url: str) -> bytes:
    store = open_store(url, PATIENCE_S)
    try:
        return store.read(MANIFEST_NAME, MAX_MANIFEST)
    except FileNotFoundError:
        raise no_data_set(url) from None
    except OSError as error:
        raise StorageError(f"{printable(url)} cannot be opened: {error.strerror}") from None


def _copy(store: Store, manifest: Manifest, folder: Path) -> None:
    _refuse_share(store)
    for name in index_names(manifest.header):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size, digest = manifest.files[name]
        if size != array_bytes(manifest.header, name):
            what, expected = "size of an index file in the manifest", array_bytes(manifest.header, name)
            raise LayoutError(what, path=store.url.child(name), expected=expected, found=size)
        try:
            found = _copy_file(store, name, size, path)
        except OSError as error:
            # Errors of this machine's disk are reported by the caller.
            if error.filename != store.url.child(name):
                raise
            raise StorageError(f"{error.filename} cannot be read: {error.strerror}") from None
        if found != digest:
            what = "checksum of the index file"
            raise ChecksumError(what, path=store.url.child(name), expected=digest, found=found)
    if manifest.dictionary_size:
        remote = Remote(str(store.url), folder)
        dictionary = dictionary_in(range(manifest.header.chunks), partial(open_front, remote))
        (folder / DICTIONARY_NAME).write_bytes(dictionary)


def _copy_file(store: Store, name: str, size: int, path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("wb") as file:
        for first in range(0, size, _AT_ONCE * _RANGE):
            block = bytearray(min(_AT_ONCE * _RANGE, size - first))
            starts = range(0, len(block), _RANGE)
            view = memoryview(block)
            wanted: list[Wanted] = [(name, first + start, view[start : start + _RANGE]) for start in starts]
            read_all(store, wanted)
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _refuse_share(store: Store) -> None:
    try:
        store.read(SHARE_NAME, MAX_SHARE)
    except FileNotFoundError:
        return
    raise UsageError(
        f"{store.url} is the partition of one node: put the undivided data set into the store, and all nodes read it"
    )


@contextmanager
def _locked(parent: int, name: str) -> Iterator[str]:
    """Exclude other processes from copying this index. The lock ends with its process.

    Yields the name of the folder for unfinished files: one of this process only if the file system has no locks.
    """
    descriptor = os.open(f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=parent)
    try:
        unfinished = f"{name}.part"
        try:
            locks.take(descriptor, name, wait=True)
        except OSError as error:
            if error.errno not in locks.NO_LOCKS:
                raise
            unfinished = f"{name}.{secrets.token_hex(8)}.part"
        yield unfinished
    finally:
        os.close(descriptor)
