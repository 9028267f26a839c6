"""Samples that the page cache holds: they are copied out of it, and nothing is read that it has not most of."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.storage import cached, mappedfiles
from brand.storage.cached import LARGE_BYTES, CachedSamples, cached_samples
from brand.storage.crew import Crew
from brand.storage.dataset import StoredDataSet
from brand.storage.mappedfiles import MappedChunks
from brand.storage.pagecache import CachedFile, in_page_cache

SAMPLES, CHUNK = 96, 24
SIZES = {"large": 3 * LARGE_BYTES, "small": LARGE_BYTES // 2}


def content(path: Path, number: int) -> bytes:
    """The bytes of a sample."""
    return np.random.default_rng(number).bytes(SIZES[path.stem] + number)


@pytest.fixture(scope="module", params=list(SIZES))
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets on the storage: of samples that are worth a system call each, and of smaller ones."""
    path = tmp_path_factory.mktemp("cached") / f"{request.param}.brand"
    samples = ({"data": content(path, n)} for n in range(SAMPLES))
    brand.pack(samples, path, schema={"data": "bytes"}, chunk_size=CHUNK)
    for chunk in (path / "chunks").iterdir():
        with chunk.open("rb") as file:
            os.fsync(file.fileno())
    return path


@pytest.fixture
def copy(stored: Path, tmp_path: Path) -> Path:
    """A copy of such a data set, to be damaged."""
    return shutil.copytree(stored, tmp_path / stored.name)


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


def copied(data: StoredDataSet, places: np.ndarray, samples: CachedSamples | None = None) -> list[bytes] | None:
    """The stored bytes of samples, as the page cache has them; None where it has not."""
    samples = samples or CachedSamples(data, Crew(2))
    rows = samples.rows(places)
    sizes = rows["size"].astype(np.int64)
    out = np.empty(int(sizes.sum()), np.uint8)
    if not samples.copy(places, rows, out):
        return None
    ends = np.cumsum(sizes)
    return [out[end - size : end].tobytes() for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)]


def test_samples_come_out_of_the_page_cache(stored: Path) -> None:
    warm(stored)
    data, places = StoredDataSet(stored), np.arange(SAMPLES)[::-3].copy()
    samples = CachedSamples(data, Crew(2))
    for _ in range(2):
        assert copied(data, places, samples) == data.stored_bytes(places, raising=True)
    assert copied(data, places[:0]) == []


def test_several_threads_copy_a_large_draw(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(stored)
    monkeypatch.setattr("brand.storage.crew.PART_BYTES", 1 << 14)
    data, places = StoredDataSet(stored), np.arange(SAMPLES)[::-1].copy()
    assert copied(data, places, CachedSamples(data, Crew(3))) == data.stored_bytes(places, raising=True)


def test_what_is_not_there_is_not_read(stored: Path) -> None:
    """Many samples that are not there stop the copy at the first one that is too many."""
    drop(stored)
    assert copied(StoredDataSet(stored), np.arange(SAMPLES)) is None


def test_a_missing_chunk_is_not_there(copy: Path, tmp_path: Path) -> None:
    data = StoredDataSet(copy)
    assert copied(data, np.arange(4)) is not None
    (copy / "chunks" / "00000001.brand").unlink()
    assert copied(data, np.arange(24, 28)) is None
    assert not in_page_cache(str(tmp_path / "none"), 0, 5)


def test_wrong_bytes_are_not_taken(copy: Path) -> None:
    """One of many samples has changed."""
    data = StoredDataSet(copy)
    row = data.rows_at(np.array([50]))[0]
    with (copy / "chunks" / "00000002.brand").open("r+b") as file:
        file.seek(int(row["offset"]) + 7)
        file.write(bytes([255 - content(copy, int(row["index"]))[7]]))
    assert copied(data, np.arange(48, 60)) is None
    assert copied(data, np.arange(51, 60)) is not None


def test_a_file_that_is_cut_short_kills_nobody(copy: Path) -> None:
    """Also where it was mapped before: a process that touches a page that is gone gets SIGBUS."""
    data, places = StoredDataSet(copy), np.arange(CHUNK)
    samples = CachedSamples(data, Crew(1))
    assert copied(data, places, samples) is not None
    os.truncate(copy / "chunks" / "00000000.brand", 4096)
    assert copied(data, places, samples) is None
    assert copied(data, places) is None
    assert copied(data, np.arange(CHUNK, SAMPLES), samples) is not None


def test_rows_that_point_out_of_their_file_are_not_followed(stored: Path) -> None:
    """The index is not trusted: what lies behind the mapping of a file is other memory."""
    warm(stored)
    data, places = StoredDataSet(stored), np.arange(CHUNK)
    samples = CachedSamples(data, Crew(1))
    end = int(data.chunk_rows["file_size"][0])
    for offset in (end, end - 1, end + (1 << 20), (1 << 64) - 1, (1 << 64) - int(data.rows_at(places)["size"][5])):
        rows = samples.rows(places)
        rows["offset"][5] = offset
        assert not samples.copy(places, rows, np.empty(int(rows["size"].sum()), np.uint8))


def test_a_few_that_are_not_there_are_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of so many; no more."""
    warm(stored)
    part = slice(0, 8192) if stored.stem == "large" else slice(None)
    with (stored / "chunks" / "00000000.brand").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, part.stop or 0, os.POSIX_FADV_DONTNEED)
        if CachedFile(file.fileno()).holds(0, 8192) is not False:
            pytest.skip("this file system keeps its pages")
    data = StoredDataSet(stored)
    missing = int(np.argmin(data.rows(0, CHUNK)["offset"]))
    places = np.array([missing, *range(CHUNK, 90)])
    assert copied(data, places[:20]) is None, "one of 20 is too many"
    monkeypatch.setattr(cached, "FEW", len(places))
    assert copied(data, places) == data.stored_bytes(places, raising=True)


def test_the_kernel_is_asked_anew_where_copies_wait(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which files it holds is known until the process has waited for more than a few of their pages."""
    warm(stored)
    paths = sorted(str(path) for path in (stored / "chunks").iterdir())
    asked: list[int] = []

    def path_of(chunk: int) -> str:
        asked.append(chunk)
        return paths[chunk] if chunk < len(paths) else str(tmp_path / "none")

    sizes = np.append(StoredDataSet(stored).chunk_rows["file_size"], np.uint64(1))
    chunks, waits = MappedChunks(path_of, sizes), count()
    draw = np.array([0, 2, 2, 0, len(paths)])
    assert chunks.held(draw, 0) is None
    held = chunks.held(draw, 1)
    assert held is not None
    assert held.tolist() == [True, True, True, True, False]
    assert asked == [0, 2, len(paths), len(paths)], "what is held is not asked for again"
    monkeypatch.setattr(mappedfiles, "_waits", lambda: 3 * next(waits))
    asked.clear()
    with chunks.watched(3):
        pass
    assert chunks.held(draw, 1) is not None
    assert asked == [len(paths)]
    asked.clear()
    with chunks.watched(2):
        pass
    assert chunks.held(draw, 1) is not None
    assert asked == [0, 2, len(paths)]


def test_a_range_is_left_where_most_of_it_is_there(stored: Path) -> None:
    warm(stored)
    chunk = stored / "chunks" / "00000000.brand"
    size = chunk.stat().st_size
    assert in_page_cache(str(chunk), 0, size)
    assert in_page_cache(str(chunk))
    drop(stored, slice(0, 8192))
    assert in_page_cache(str(chunk), 0, size), "nearly all of it is there"
    assert not in_page_cache(str(chunk), 0, 4096) or size > 8192, "what is asked for was completed meanwhile"
    drop(stored)
    assert not in_page_cache(str(chunk), 0, size)
    assert not in_page_cache(str(chunk))


def test_small_data_sets_are_not_worth_it(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = StoredDataSet(stored)
    assert cached_samples(data) is None
    monkeypatch.setattr(cached, "LEAST_DATA", 1 << 16)
    made = cached_samples(data)
    assert made is not None
    assert isinstance(made(Crew(1)), CachedSamples)
    monkeypatch.setattr(cached, "MOST_MAPPED", SAMPLES // CHUNK - 1)
    assert (cached_samples(data) is None) == (stored.stem == "small"), "a mapping for each of many files"
