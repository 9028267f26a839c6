"""A data set is opened, some of its samples are read, and its file system is tried."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brand.doctor.examine import check_data_set
from brand.doctor.packages import CheckResult
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io import device
from brand.storage.io.device import device_name, mount_of
from brand.storage.profile.profile import Profile, save_profile
from tests.support import Disk, brand
from tests.tools.damage import flip_bit


def findings(where: Path | str) -> dict[str, CheckResult]:
    """By name."""
    return {each.name: each for each in check_data_set(where)}


def test_a_data_set_that_is_right(photos_set: Path) -> None:
    """Its numbers, three of its chunks, and its file system; the speed of the storage is not known."""
    found = findings(photos_set)
    assert list(found) == [
        "opens",
        "reads",
        "file system",
        "mappings",
        "locks",
        "page cache",
        "direct reads",
        "storage speed",
    ]
    assert found["opens"].told == f"{photos_set}, 31 samples in 4 chunks"
    assert found["reads"].told == "a sample of 3 chunks, with the right checksum"
    assert found["file system"].told == device_name(mount_of(photos_set))
    assert [name for name, each in found.items() if each.state == "problem"] == []


def test_a_damaged_sample_is_a_problem(photos_set: Path, tmp_path: Path) -> None:
    """File, chunk and sample are named."""
    shutil.copytree(photos_set, tmp_path / "set")
    data = StoredDataSet(tmp_path / "set")
    flip_bit(tmp_path / "set" / "chunks" / "00000000.brand", 8 * int(data.rows(0, 1)["offset"][0]))
    found = findings(tmp_path / "set")
    assert found["opens"].state == "ok"
    assert found["reads"].state == "problem"
    assert "00000000.brand, chunk 0, sample" in found["reads"].told


def test_a_missing_chunk_is_a_problem(photos_set: Path, tmp_path: Path) -> None:
    """Its name is told, and nothing is tried with it."""
    shutil.copytree(photos_set, tmp_path / "set")
    (tmp_path / "set" / "chunks" / "00000000.brand").unlink()
    found = findings(tmp_path / "set")
    assert found["reads"].state == "problem"
    assert "00000000.brand" in found["reads"].told
    assert list(found) == ["opens", "reads", "file system", "storage speed"]


def test_a_storage_without_a_name_is_no_problem(photos_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot, whose root is no mount that the process sees."""
    monkeypatch.setattr(device, "parse_mounts", lambda _: [])
    found = findings(photos_set)
    assert found["file system"].state == "missing"
    assert [name for name, each in found.items() if each.state == "problem"] == []
    assert "direct reads" in found


def test_no_data_set_is_a_problem(tmp_path: Path) -> None:
    """And the only finding."""
    (found,) = check_data_set(tmp_path / "nowhere")
    assert (found.state, found.told) == ("problem", f"{tmp_path / 'nowhere'}: there is no such folder")


def test_a_share_reads_its_own_chunks(photos_set: Path, tmp_path: Path) -> None:
    """The other chunks are not there."""
    assert brand("partition", photos_set, "--nodes", 2, tmp_path / "{node}").code == 0
    found = findings(tmp_path / "1")
    assert found["reads"].told == "a sample of 2 chunks, with the right checksum"
    assert [name for name, each in found.items() if each.state == "problem"] == []


def test_a_storage_that_was_measured(photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed is told; before, the command that measures it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = findings(photos_set)["storage speed"]
    assert (found.state, found.cure) == ("missing", f"brand profile {photos_set}")
    save_profile(Profile(device_name(mount_of(photos_set)), (4096, 65536), (1,), ((1e8, 2e8),), 2e8))
    found = findings(photos_set)["storage speed"]
    assert (found.state, found.told) == ("ok", "200.0 MB/s, measured by `brand profile`")


def test_a_file_system_in_memory_is_named(photos_set: Path, disk: Disk) -> None:
    """No storage lies below it."""
    disk.mount("size=8m")
    shutil.copytree(photos_set, disk.folder / "set")
    found = findings(disk.folder / "set")
    assert found["file system"].told == f"tmpfs on tmpfs at {disk.folder}, which is memory and not a storage device"
    assert [name for name, each in found.items() if each.state == "problem"] == []
