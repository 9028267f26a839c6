"""Objects of any other store, through fsspec."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from brand.errors import UsageError
from brand.stores.opening import open_store
from brand.stores.store import read_all

fsspec = pytest.importorskip("fsspec")


def test_objects_are_read_and_written() -> None:
    """Whole and in ranges, created once, listed."""
    url = f"memory://{secrets.token_hex(4)}/set"
    store, data = open_store(url), bytes(range(256)) * 40_000
    store.write("a/k", data, new=True)
    assert store.read("a/k", len(data)) == data
    memory = bytearray(5_000_000)
    read_all(store, [("a/k", 1000, memoryview(memory))])
    assert memory == data[1000:5_001_000]
    assert [each[:2] for each in store.entries("a")] == [("a/k", len(data))]
    assert list(store.entries("b")) == []
    with pytest.raises(FileExistsError):
        store.write("a/k", b"", new=True)
    with pytest.raises(FileNotFoundError) as caught:
        store.read("a/none", 1)
    assert caught.value.filename == f"{url}/a/none"
    with pytest.raises(OSError, match="more than the 10 bytes"):
        store.read("a/k", 10)
    with pytest.raises(OSError, match="has only 240,000 of the 1,000,000 bytes"):
        read_all(store, [("a/k", 10_000_000, memoryview(bytearray(1_000_000)))])


def test_files_are_written(tmp_path: Path) -> None:
    """As chunks are."""
    store = open_store(f"memory://{secrets.token_hex(4)}/set")
    (tmp_path / "chunk").write_bytes(b"bytes")
    store.write("chunk", tmp_path / "chunk", new=False)
    assert store.read("chunk", 5) == b"bytes"


def test_a_scheme_that_nobody_knows() -> None:
    """Is said, with its name."""
    with pytest.raises(UsageError, match="nobody"):
        open_store("nobody://host/x")
