"""Files appear whole or not at all, and what the storage refuses is said in words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash

from brand.errors import StorageError
from brand.formats.publish import file_digest, publish_bytes, publish_file, storage_errors


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync of the file, rename, fsync of the folder: in this order."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def flush(descriptor: int) -> None:
        steps.append("flush " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        steps.append(f"rename to {Path(target).name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(Path, "replace", rename)
    publish_bytes(tmp_path / "file", b"data")
    assert steps == ["flush .file.tmp", "rename to file", f"flush {tmp_path.name}"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_was_there_stays_until_the_new_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails leaves the old file as it was."""
    (tmp_path / "file").write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="input/output"):
        publish_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_published_file_has_its_final_name_only(tmp_path: Path) -> None:
    """The temporary name is gone."""
    (tmp_path / "temporary").write_bytes(b"x")
    publish_file(tmp_path / "temporary", tmp_path / "final")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_a_digest_is_size_and_xxh3(tmp_path: Path, size: int) -> None:
    """The same as of all bytes at once."""
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    assert file_digest(tmp_path / "file") == (size, xxhash.xxh3_128_hexdigest(data[:size]))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota"), (errno.EROFS, "read-only"),
        (errno.EACCES, "permission denied"), (errno.EIO, "input/output error"), (errno.EMFILE, "ulimit"),
        (errno.ENXIO, "No such device"),
    ],
)  # fmt: skip
def test_refusals_are_said_in_words(number: int, words: str) -> None:
    """With what was done and where; where space is missing, that the same command goes on."""
    with pytest.raises(StorageError, match=words) as caught, storage_errors(Path("some/where"), "cannot write"):
        raise OSError(number, os.strerror(number), "some/file")
    assert "cannot write some/file" in str(caught.value)
    assert ("same command" in str(caught.value)) is (number in (errno.ENOSPC, errno.EDQUOT))
    assert isinstance(caught.value.__cause__, OSError)


def test_errors_that_are_no_refusals_pass_through() -> None:
    """Only the storage's own are put into words."""
    with pytest.raises(KeyError), storage_errors(Path("x"), "cannot write"):
        raise KeyError
