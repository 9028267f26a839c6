"""Samples that the page cache holds: they are copied out of it, and nothing is read that it has not most of."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.storage import cached
from brand.storage.cached import LEAST_BYTES, CachedSamples, cached_samples
from brand.storage.dataset import StoredDataSet
from brand.storage.files import RangeReader
from brand.storage.pagecache import CachedFile, in_page_cache

SAMPLES, SIZE = 96, 3 * LEAST_BYTES


def content(number: int) -> bytes:
    """The bytes of a sample."""
    return np.random.default_rng(number).bytes(SIZE + number)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of samples that are worth a system call each, on the storage."""
    path = tmp_path_factory.mktemp("cached") / "large.brand"
    brand.pack(({"data": content(n)} for n in range(SAMPLES)), path, schema={"data": "bytes"}, chunk_size=24)
    for chunk in (path / "chunks").iterdir():
        with chunk.open("rb") as file:
            os.fsync(file.fileno())
    return path


def warm(path: Path) -> None:
    """All chunks are in the page cache."""
    for chunk in (path / "chunks").iterdir():
        chunk.read_bytes()


def drop(path: Path, part: slice = slice(None)) -> None:
    """The page cache forgets a part of each chunk. Skips the test where the kernel does not."""
    for chunk in (path / "chunks").iterdir():
        with chunk.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, end, _ = part.indices(size)
            os.posix_fadvise(file.fileno(), first, end - first, os.POSIX_FADV_DONTNEED)
            if CachedFile(file.fileno()).holds(first, end - first) is not False:
                pytest.skip("this file system keeps its pages")


def copied(data: StoredDataSet, places: np.ndarray) -> list[bytes] | None:
    """The stored bytes of samples, as the page cache has them; None where it has not."""
    samples = CachedSamples(data)
    rows = samples.rows(places)
    sizes = rows["size"].astype(np.int64)
    memory = bytearray(int(sizes.sum()))
    starts = np.cumsum(sizes) - sizes
    if not samples.copy(places, rows, memoryview(memory), starts):
        return None
    return [bytes(memory[start : start + size]) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


def test_samples_come_out_of_the_page_cache(large: Path) -> None:
    warm(large)
    data, places = StoredDataSet(large), np.arange(SAMPLES)[::-3].copy()
    assert copied(data, places) == data.stored_bytes(places, raising=True)


def test_what_is_not_there_is_not_read(large: Path) -> None:
    """Many samples that are not there stop the copy at the first one that is too many."""
    drop(large)
    assert copied(StoredDataSet(large), np.arange(SAMPLES)) is None


def test_a_missing_chunk_is_not_there(large: Path, tmp_path: Path) -> None:
    data = StoredDataSet(large)
    reader = RangeReader(lambda number: str(tmp_path / str(number)))
    assert not reader.read_cached([(0, 0, memoryview(bytearray(5)))], 0)
    assert not in_page_cache(str(tmp_path / "none"), 0, 5)
    assert data.location.chunk_file(0)


def test_a_few_that_are_not_there_are_read(tmp_path: Path) -> None:
    """As many as the caller allows, and no more."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if CachedFile(file.fileno()).holds(0, 1 << 16) is not False:
            pytest.skip("this file system keeps its pages")
    buffer = bytearray(4)
    assert not RangeReader(lambda _: str(path)).read_cached([(0, 7, memoryview(buffer))], 0)
    assert RangeReader(lambda _: str(path)).read_cached([(0, 7, memoryview(buffer))], 1)
    assert bytes(buffer) == bytes([7, 8, 9, 10])


def test_a_range_is_left_where_most_of_it_is_there(large: Path) -> None:
    warm(large)
    chunk = large / "chunks" / "00000000.brand"
    size = chunk.stat().st_size
    assert in_page_cache(str(chunk), 0, size)
    drop(large, slice(0, 8192))
    assert in_page_cache(str(chunk), 0, size), "nearly all of it is there"
    assert not in_page_cache(str(chunk), 0, 4096) or size > 8192, "what is asked for was completed meanwhile"
    drop(large)
    assert not in_page_cache(str(chunk), 0, size)


def test_small_samples_and_small_data_sets_are_not_worth_it(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small.brand"
    brand.pack(({"data": bytes(100)} for _ in range(10)), small, schema={"data": "bytes"})
    assert cached_samples(StoredDataSet(small)) is None
    assert cached_samples(StoredDataSet(large)) is None
    monkeypatch.setattr(cached, "LEAST_DATA", 1 << 20)
    assert cached_samples(StoredDataSet(small)) is None
    made = cached_samples(StoredDataSet(large))
    assert made is not None
    assert isinstance(made(), CachedSamples)
