"""Samples that the page cache holds: they are copied out of it, and nothing is read that it has not most of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.storage.dataset import cached
from brand.storage.dataset.cached import LEAST_BYTES, CachedSamples, cached_samples
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.crew import Crew
from brand.storage.io.pagecache import CachedFile, in_page_cache

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


def refused(path: Path, places: np.ndarray, part: slice = slice(None)) -> bool:
    """Whether a copy is refused while the page cache lacks a part of each chunk.

    The copy's own question makes the kernel read the missing page. On a fast disk this read is sometimes complete
    before the answer, and the page counts as cached; so the part is dropped, and the copy is tried, up to 20 times.
    """
    for _ in range(20):
        drop(path, part)
        if copied(StoredDataSet(path), places) is None:
            return True
    return False


def copied(data: StoredDataSet, places: np.ndarray) -> list[bytes] | None:
    """The stored bytes of samples, as the page cache has them; None where it has not."""
    samples = CachedSamples(data, Crew(2))
    rows = samples.rows(places)
    sizes = rows["size"].astype(np.int64)
    memory = bytearray(int(sizes.sum()))
    starts = np.cumsum(sizes) - sizes
    if not samples.copy(places, rows, memoryview(memory), starts):
        return None
    return [bytes(memory[start : start + size]) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]


@pytest.fixture(autouse=True, params=["core", "no core", "few files"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all samples of a thread, or a call for each."""
    if request.param == "no core":
        monkeypatch.setattr(cached, "CORE", None)
    if request.param == "few files":
        monkeypatch.setattr(cached, "plenty_open", lambda: 2)


def test_samples_come_out_of_the_page_cache(large: Path) -> None:
    warm(large)
    data, places = StoredDataSet(large), np.arange(SAMPLES)[::-3].copy()
    assert copied(data, places) == data.stored_bytes(places, raising=True)


def test_what_is_not_there_is_not_read(large: Path) -> None:
    """Many samples that are not there stop the copy at the first one that is too many."""
    assert refused(large, np.arange(SAMPLES))


def test_a_missing_chunk_is_not_there(large: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.brand"
    shutil.copytree(large, copy)
    data = StoredDataSet(copy)
    assert copied(data, np.arange(4)) is not None
    (copy / "chunks" / "00000001.brand").unlink()
    assert copied(data, np.arange(24, 28)) is None
    assert not in_page_cache(str(tmp_path / "none"), 0, 5)


def test_wrong_bytes_are_not_taken(large: Path, tmp_path: Path) -> None:
    """One of many samples has changed."""
    copy = tmp_path / "copy.brand"
    shutil.copytree(large, copy)
    data = StoredDataSet(copy)
    row = data.rows_at(np.array([50]))[0]
    with (copy / "chunks" / "00000002.brand").open("r+b") as file:
        file.seek(int(row["offset"]) + 7)
        file.write(bytes([255 - content(int(row["index"]))[7]]))
    assert copied(data, np.arange(48, 60)) is None
    assert copied(data, np.arange(51, 60)) is not None


def test_rows_that_point_out_of_their_file_are_not_followed(large: Path) -> None:
    """The index is not trusted: the client asks, and an exact read says what is wrong."""
    warm(large)
    data, places = StoredDataSet(large), np.arange(24)
    samples = CachedSamples(data, Crew(1))
    end = int(data.chunk_rows["file_size"][0])
    for offset in (end, end - 1, end + (1 << 20), 1 << 63, (1 << 64) - 1):
        rows = samples.rows(places)
        rows["offset"][5] = offset
        sizes = rows["size"].astype(np.int64)
        memory = memoryview(bytearray(int(sizes.sum())))
        assert not samples.copy(places, rows, memory, np.cumsum(sizes) - sizes)


def test_a_few_that_are_not_there_are_read(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many; no more."""
    warm(large)
    data, dropped = StoredDataSet(large), slice(0, 8192)
    rows = data.rows(0, SAMPLES)
    missing = int(np.argmin(rows["offset"][:24]))
    places = np.array([missing, *(place for place in range(24, 90) if rows["offset"][place] > 1 << 16)])
    assert len(places) > 40
    assert refused(large, places[:20], dropped), "one of 20 is too many"
    drop(large, dropped)
    monkeypatch.setattr(cached, "FEW", len(places))
    assert copied(data, places) == data.stored_bytes(places, raising=True)


def test_a_range_is_left_where_most_of_it_is_there(large: Path) -> None:
    warm(large)
    chunk = large / "chunks" / "00000000.brand"
    size = chunk.stat().st_size
    assert in_page_cache(str(chunk), 0, size)
    assert in_page_cache(str(chunk))
    drop(large, slice(0, 8192))
    assert in_page_cache(str(chunk), 0, size), "nearly all of it is there"
    drop(large)
    assert not in_page_cache(str(chunk), 0, size)
    assert not in_page_cache(str(chunk))


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
    assert isinstance(made(Crew(1)), CachedSamples)
