"""`brand cache`: fill a folder, list it, clear it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.node.setup.caching import Cache
from brand.node.setup.measure import stored_sizes
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import running_server
from tests.support import brand


def held(data_set: Path, folder: Path) -> np.ndarray:
    """Which samples the folder holds, as a server finds it."""
    data = StoredDataSet(data_set)
    found = CacheFolder(str(folder), data, stored_sizes(data), None)
    found.close()
    return found.held


def test_a_folder_is_filled_listed_and_cleared(photos_set: Path, clips_set: Path, tmp_path: Path) -> None:
    """Two data sets; what is there is not copied again, and one of them goes alone."""
    for path in (photos_set, clips_set):
        done = brand("cache", "fill", path, tmp_path)
        assert (done.code, "are in" in done.out) == (0, True), done
        assert held(path, tmp_path).all()
    again = brand("cache", "fill", photos_set, tmp_path, "--json")
    assert (again.json["held"], again.json["samples"], again.json["stopped"]) == (31, 0, None)
    photos, clips = (StoredDataSet(path).id for path in (photos_set, clips_set))
    listed = brand("cache", "list", tmp_path)
    assert f"2 data sets in {tmp_path}" in listed.out
    assert f"{photos}  31 of 31 samples" in listed.out
    found = brand("cache", "list", tmp_path, "--json").json["caches"]
    assert {each["data_set"]: each["held"] for each in found} == {photos: 31, clips: 41}
    assert all(each["bytes"] > 0 and not each["in_use"] for each in found)
    assert brand("cache", "clear", tmp_path, "--data-set", clips).out.startswith("1 cache removed")
    assert [each["data_set"] for each in brand("cache", "list", tmp_path, "--json").json["caches"]] == [photos]
    assert len(brand("cache", "clear", tmp_path, "--json").json["removed"]) == 1
    assert list((tmp_path / "brand-cache").iterdir()) == []


def test_a_smaller_folder_is_filled_from_the_first_chunk_on(photos_set: Path, tmp_path: Path) -> None:
    """Until there is no more room; the rest goes on with a larger size."""
    done = brand("cache", "fill", photos_set, f"{tmp_path}:400kB")
    assert (done.code, "there is no more room" in done.out) == (0, True)
    found = held(photos_set, tmp_path)
    assert 0 < found.sum() < 31
    assert int(stored_sizes(StoredDataSet(photos_set))[found].sum()) <= 400_000
    assert brand("cache", "fill", photos_set, f"{tmp_path}:10MB").code == 0
    assert held(photos_set, tmp_path).all()


def test_what_a_server_writes_stays(photos_set: Path, tmp_path: Path) -> None:
    """It is neither cleared nor filled by another process."""
    with running_server(photos_set, memory=1.0, cache=Cache(tmp_path)):
        assert "a server writes it" in brand("cache", "list", tmp_path).out
        cleared = brand("cache", "clear", tmp_path)
        assert (cleared.code, "stays: a server writes it" in cleared.out) == (1, True)
        filled = brand("cache", "fill", photos_set, tmp_path)
        assert (filled.code, "a server writes the cache" in filled.err) == (1, True)


def test_a_damaged_sample_is_left_out(photos_set: Path, tmp_path: Path) -> None:
    """And named by the exit code; all others are there."""
    data, copy = StoredDataSet(photos_set), tmp_path / "damaged.brand"
    brand("partition", photos_set, copy, "--nodes", "1", "--copy")
    row = data.rows(3, 4)[0]
    chunk = next((copy / "chunks").iterdir())
    chunk = copy / "chunks" / "00000000.brand"
    damaged = bytearray(chunk.read_bytes())
    damaged[int(row["offset"]) + int(row["size"]) // 2] ^= 1
    chunk.write_bytes(damaged)
    done = brand("cache", "fill", copy, tmp_path / "cache")
    assert (done.code, "1 sample cannot be read" in done.out) == (1, True), done
    assert np.flatnonzero(~held(copy, tmp_path / "cache")).tolist() == [3]


@pytest.mark.parametrize("verb", ["list", "clear"])
def test_a_folder_without_caches(tmp_path: Path, verb: str) -> None:
    """It is named."""
    assert "there is no folder brand-cache in it" in brand("cache", verb, tmp_path).err
    assert "there is no such folder" in brand("cache", verb, tmp_path / "missing").err


def test_wrong_use(photos_set: Path, tmp_path: Path) -> None:
    """A size that is none, a data set that is not there, a folder that others may write."""
    for size, why in (
        ("0GB", "at least one byte is needed"),
        ("100", "give a size such as '8GB'"),
        ("1x", "write it like 2GB, 500MB or 1.5GiB"),
    ):
        refused = brand("cache", "fill", photos_set, f"{tmp_path}:{size}")
        assert (refused.code, refused.err.startswith(f"brand: {tmp_path}:{size}: ")) == (2, True), refused
        assert refused.err.rstrip().endswith(why)
    brand("cache", "fill", photos_set, tmp_path)
    assert "holds no data set" in brand("cache", "clear", tmp_path, "--data-set", "abc").err
    (tmp_path / "brand-cache").chmod(0o777)
    for words in (("list", tmp_path), ("clear", tmp_path), ("fill", photos_set, tmp_path)):
        refused = brand("cache", *words)
        assert (refused.code, "chmod -R go-w" in refused.err) == (1, True)


def test_serve_takes_a_folder(photos_set: Path, tmp_path: Path) -> None:
    """And refuses sizes that are none."""
    refused = brand("serve", photos_set, "--cache", f"{tmp_path}:0GB")
    assert (refused.code, "--cache: size='0GB'" in refused.err) == (2, True)
    with running_server(photos_set, memory=1.0, cache=Cache(tmp_path, "1GB")) as server:
        shown = brand("top", server.address, "--once").out
        assert "cache" in shown
        assert "filling" in shown
