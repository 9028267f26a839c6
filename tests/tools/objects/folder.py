"""How are objects kept? As files of a folder, so that a large data set needs no memory: `bucket/name` is that file.

An object appears whole, or not at all: it is written beside and renamed. A lock makes "only if it is not there" exact
among all who write through this store. Other programs may put files into the folder at any time.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_UNFINISHED: Final = ".unfinished"
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to know about an object."""

    key: str
    size: int
    etag: str
    """With its quotes. MD5 of what came by a PUT, as in S3; else it changes with the file."""
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Body:
    """What a client has sent: a file of the store's, which is an object's next contents or a part of them."""

    path: Path
    size: int
    md5: bytes
    sha256: str | None
    """None where no signature asks for it."""


@dataclass(slots=True)
class _Upload:
    key: str
    parts: dict[int, Body]


class Folder:
    """The objects in a folder. For any number of threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._etags: dict[str, tuple[tuple[int, int, int], str]] = {}
        """Of what was put here: by key the file it was put into, and its ETag."""
        self._uploads: dict[str, _Upload] = {}

    def __repr__(self) -> str:
        return f"Folder({os.fspath(self.root)!r}, {len(self._uploads)} unfinished uploads)"

    def is_bucket(self, bucket: str) -> bool:
        """Whether there is a bucket of this name."""
        return is_key(bucket) and (self.root / bucket).is_dir()

    def make_bucket(self, bucket: str) -> None:
        """Make a bucket."""
        (self.root / bucket).mkdir(parents=True, exist_ok=True)

    def open(self, key: str) -> tuple[Found, BinaryIO] | None:
        """An object as it is now, also where it is replaced while it is read; None: there is none."""
        try:
            file = (self.root / key).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        return self._found(key, os.fstat(file.fileno())), file

    def scratch(self) -> Path:
        """Where a body may be written before it is an object."""
        folder = self.root / _UNFINISHED
        folder.mkdir(exist_ok=True)
        return folder / secrets.token_hex(8)

    def put(self, key: str, body: Body, etag: str, allowed: Callable[[str | None], bool]) -> Found | None:
        """Make a body the object `key`, if that is allowed where the object has this ETag now, or is not there (None).

        Returns None where it is not allowed. The body is gone in both cases.
        """
        target = self.root / key
        with self._lock:
            now = self._stat(target)
            if not allowed(None if now is None else self._found(key, now).etag):
                body.path.unlink()
                return None
            target.parent.mkdir(parents=True, exist_ok=True)
            body.path.replace(target)
            self._etags[key] = (_identity(target.stat()), etag)
            return self._found(key, target.stat())

    def keys(self, prefix: str) -> Iterator[Found]:
        """All objects whose key begins with `prefix`, in the order of their bytes."""
        root = os.fspath(self.root)
        found = []
        for folder, folders, files in os.walk(os.path.join(root, os.path.dirname(prefix))):
            folders[:] = [name for name in folders if name != _UNFINISHED]
            keys = (os.path.relpath(os.path.join(folder, name), root) for name in files)
            found += [key for key in keys if key.startswith(prefix) and is_key(key)]
        for key in sorted(found, key=os.fsencode):
            now = self._stat(self.root / key)
            if now is not None:
                yield self._found(key, now)

    def start(self, key: str) -> str:
        """Begin an upload in parts."""
        upload = secrets.token_hex(16)
        with self._lock:
            self._uploads[upload] = _Upload(key, {})
        return upload

    def add(self, key: str, upload: str, number: int, body: Body) -> bool:
        """Keep a part, in place of an earlier one of this number. False: there is no such upload; the body stays."""
        with self._lock:
            found = self._uploads.get(upload)
            if found is None or found.key != key:
                return False
            before = found.parts.get(number)
            kept = body.path.rename(self.scratch())
            found.parts[number] = Body(kept, body.size, body.md5, None)
            if before is not None:
                before.path.unlink()
            return True

    def parts(self, key: str, upload: str) -> dict[int, Body] | None:
        """The parts of an upload by number; None: there is no such upload."""
        with self._lock:
            found = self._uploads.get(upload)
            return dict(found.parts) if found is not None and found.key == key else None

    def joined(self, parts: Sequence[Body]) -> tuple[Body, str]:
        """One body of some parts, and its ETag, as S3 makes it of theirs."""
        path = self.scratch()
        with path.open("xb") as target:
            for part in parts:
                with part.path.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
        digest = hashlib.md5(b"".join(part.md5 for part in parts), usedforsecurity=False)
        body = Body(path, sum(part.size for part in parts), digest.digest(), None)
        return body, f'"{digest.hexdigest()}-{len(parts)}"'

    def abort(self, upload: str) -> None:
        """End an upload and drop its parts."""
        with self._lock:
            found = self._uploads.pop(upload, None)
        for part in [] if found is None else found.parts.values():
            part.path.unlink()

    def close(self) -> None:
        """Drop what never became an object."""
        shutil.rmtree(self.root / _UNFINISHED, ignore_errors=True)

    def _stat(self, path: Path) -> os.stat_result | None:
        try:
            return path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _found(self, key: str, stat: os.stat_result) -> Found:
        identity, etag = self._etags.get(key, (None, ""))
        if identity != _identity(stat):
            etag = '"' + "-".join(f"{number:x}" for number in _identity(stat)) + '"'
        return Found(key, stat.st_size, etag, stat.st_mtime_ns)


def is_key(key: str) -> bool:
    """Whether a file can have this name; the only keys that the store takes."""
    parts = key.split("/")
    short = all(0 < len(part.encode("utf-8", "surrogateescape")) <= _LONGEST_NAME for part in parts)
    return short and "\0" not in key and not {".", "..", _UNFINISHED} & set(parts)


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
