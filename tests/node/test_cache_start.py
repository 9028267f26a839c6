"""A training whose cache folder cannot be used: it gets the error that the pages name, or runs without a cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import brand
from brand import BrandDataset, BrandLoader
from brand.errors import CacheError, ServerError
from tests.support import Disk

TRAINING = """
import sys
import brand
if __name__ == "__main__":
    loader = brand.BrandLoader(brand.BrandDataset(sys.argv[1], cache=sys.argv[2]), batch_size=5)
    print(sum(len(batch["text"]) for batch in loader))
"""


@pytest.fixture
def some_set(tmp_path: Path) -> Path:
    brand.pack([{"text": f"{k}" * 100} for k in range(20)], tmp_path / "set", {"text": "str"}, jobs=1)
    return tmp_path / "set"


def train(some_set: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", TRAINING, str(some_set), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fill", [False, True])
def test_a_read_only_disk_is_a_warning(some_set: Path, disk: Disk, fill: bool) -> None:
    """Empty, or with a cache of an earlier training: the training runs without it, and says so."""
    disk.mount("size=8m")
    folder = disk.folder / "cache"
    folder.mkdir()
    if fill:
        assert train(some_set, folder).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", disk.folder], check=True)
    told = train(some_set, folder)
    assert (told.stdout, told.returncode) == ("20\n", 0), told.stderr
    assert "cannot be used: the file system is read-only; give another one. The training runs without a" in told.stderr
    assert told.stderr.count("\n") == 1


def test_a_full_disk_is_a_warning(some_set: Path, disk: Disk) -> None:
    """Not even a folder can be made."""
    disk.mount("size=1m,nr_inodes=2")
    (disk.folder / "cache").mkdir()
    told = train(some_set, disk.folder / "cache")
    assert (told.stdout, told.returncode) == ("20\n", 0), told.stderr
    assert "no space left on the device" in told.stderr


def test_the_server_of_a_training_ends_before_it(some_set: Path) -> None:
    """If memory runs out, the kernel ends the server, which is started again, and not the training."""
    data = BrandDataset(some_set)
    batches = iter(BrandLoader(data, batch_size=5))
    next(batches)
    own, server = (
        int(Path(f"/proc/{process}/oom_score_adj").read_text()) for process in ("self", data.stats()["process"])
    )
    assert own < server == 800
    os.kill(data.stats()["process"], signal.SIGKILL)
    assert sum(len(batch["text"]) for batch in batches) == 15


@pytest.mark.parametrize("bad", ["open", "file", "link", "missing"])
def test_an_unsafe_folder_is_a_cache_error(some_set: Path, tmp_path: Path, bad: str) -> None:
    """As the page says, in the training, and not the error of a server."""
    folder = tmp_path / "cache"
    if bad != "missing":
        folder.mkdir()
    if bad == "open":
        (folder / "brand-cache").mkdir()
        (folder / "brand-cache").chmod(0o777)
    elif bad == "file":
        (folder / "brand-cache").write_bytes(b"")
    elif bad == "link":
        (folder / "brand-cache").symlink_to(tmp_path)
    else:
        folder = folder / "cache"
    with pytest.raises(CacheError, match=str(folder)) as caught:
        list(BrandLoader(BrandDataset(some_set, cache=folder), batch_size=5))
    assert not isinstance(caught.value, ServerError)
    assert "chmod" in str(caught.value) if bad == "open" else "give another" in str(caught.value)
