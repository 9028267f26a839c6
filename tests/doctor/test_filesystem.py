"""What `brand doctor` says of a folder, and what then happens in it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from brand.doctor.examine import check_data_set
from tests.filesystems import library, without_locks, without_maps
from tests.support import LIMIT_S, Disk

SAYS = """
import json, sys
from pathlib import Path
import brand
from brand.doctor.examine import check_data_set
from brand.errors import BrandError

at, here = Path(sys.argv[1]), Path(sys.argv[2])
told = {}
for name, path in {"folder": at, "set": here}.items():
    told[name] = {each.name: [each.state, each.told, each.cure] for each in check_data_set(path)}
try:
    brand.pack([{"text": "a"}] * 30, at / "new.brand", {"text": "str"}, jobs=1)
    told["pack"] = ""
except BrandError as error:
    told["pack"] = str(error)
told["samples"] = len(brand.open(here).samples([0, 1, 2]))
told["left"] = sorted(path.name for path in at.iterdir() if path.name.startswith(".brand-doctor"))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that refuses calls."""
    return library(tmp_path_factory.mktemp("refusing"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_folder_without_locks(refusing: Path, photos_set: Path, tmp_path: Path, number: int) -> None:
    """Nothing can be written there, with the same advice; a data set there can be read."""
    check_claim(without_locks(refusing, tmp_path, number), photos_set, tmp_path, "locks", "flock")


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENODEV, errno.EINVAL])
def test_a_folder_without_mappings(refusing: Path, photos_set: Path, tmp_path: Path, number: int) -> None:
    """The same for mmap."""
    check_claim(without_maps(refusing, tmp_path, number), photos_set, tmp_path, "mappings", "mmap")


def check_claim(variables: dict[str, str], photos_set: Path, tmp_path: Path, name: str, call: str) -> None:
    """The check named `name` is the only one that is missing, for the folder and for a data set in it."""
    subprocess.run(["cp", "-r", photos_set, tmp_path / "set.brand"], check=True)
    command = [sys.executable, "-c", SAYS, str(tmp_path), str(tmp_path / "set.brand")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=variables)
    told = json.loads(done.stdout)
    missing = {each for each, (state, *_) in told["folder"].items() if state != "ok"}
    assert missing == {"data set", name}
    state, said, cure = told["set"][name]
    assert (state, told["folder"][name]) == ("missing", [state, said, cure])
    assert f"{call} is refused" in said
    assert "write to another file system" in told["pack"] or "write to a folder of another file system" in told["pack"]
    assert told["samples"] == 3
    assert told["left"] == []


def test_a_folder_that_can_do_all(tmp_path: Path) -> None:
    """Nothing but a data set is missing, and nothing is left in it."""
    found = {each.name: each.state for each in check_data_set(tmp_path)}
    assert found == {
        "data set": "missing", "file system": "ok", "writes": "ok", "locks": "ok", "mappings": "ok", "links": "ok"
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_only_be_read(disk: Disk) -> None:
    """What can be done there is said; it is no fault of the machine."""
    disk.mount("size=1m,ro")
    found = {each.name: each for each in check_data_set(disk.folder)}
    assert found["writes"].state == "missing"
    assert found["writes"].told.startswith("nothing can be written (")
    assert {each.state for each in found.values()} == {"ok", "missing"}
