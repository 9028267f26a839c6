"""Locks on files, and folders of file systems that have none."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import brand
from brand.collect import append_samples
from brand.formats import locks
from tests.filesystems import library, without_locks
from tests.support import SERVES

WRITERS = """
import json, sys, traceback
from pathlib import Path
import brand
from brand.chunker import Options, convert_images, distributed
from brand.collect import *
from brand.errors import BrandError
from brand.storage.maintenance.copying import copy
from brand.storage.maintenance.partition import partition

at = Path(sys.argv[1])
schema, samples = {"text": "str"}, [{"text": "more"}] * 5
uses = {
    "pack": lambda: brand.pack(samples, at / "new", schema, jobs=1),
    "convert": lambda: convert_images(at / "images", at / "new2", Options(jobs=1)),
    "plan": lambda: distributed.plan_images(at / "images", at / "new3", Options(jobs=1)),
    "append_samples": lambda: append_samples(samples, at / "grown", schema, options=Options(jobs=1)),
    "append_images": lambda: append_images(at / "images", at / "new4", Options(jobs=1)),
    "append_data_set": lambda: append_data_set(at / "set", at / "new5"),
    "overlay": lambda: overlay(at / "grown", "score", [1.0] * 20),
    "delete": lambda: delete(at / "grown", NamedSamples(indices=[1])),
    "compact": lambda: compact(at / "deleted"),
    "redact": lambda: redact(at / "grown", NamedSamples(indices=[1]), at / "report.json"),
    "cache": lambda: list(brand.BrandLoader(brand.BrandDataset(at / "set", cache=at / "cache"), batch_size=5)),
}
told = {}
for name, use in uses.items():
    try:
        use()
        told[name] = "worked"
    except BrandError as error:
        told[name] = f"{type(error).__name__}: {error}"
    except BaseException:
        told[name] = traceback.format_exc()
print(json.dumps(told))
"""

READERS = """
import sys
from pathlib import Path
import brand
from brand.collect import versions
at = Path(sys.argv[1])
if __name__ == "__main__":
    assert len(brand.open(at / "set").samples([0, 3, 7])) == 3
    assert len(brand.open(at / "grown").present()) == 20
    assert len(versions(at / "grown")) == 1
    for name in ("set", "grown"):
        loader = brand.BrandLoader(brand.BrandDataset(at / name), batch_size=5)
        assert sum(len(batch["text"]) for batch in loader) == 20
    print("read")
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A data set, collections, and images."""
    from PIL import Image

    from brand.collect import NamedSamples, delete

    folder = tmp_path / "lustre"
    (folder / "images" / "a").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / "images" / "a" / f"{number}.png")
    samples = [{"text": f"{k}"} for k in range(20)]
    brand.pack(samples, folder / "set", {"text": "str"}, jobs=1)
    for name in ("grown", "deleted"):
        append_samples(samples, folder / name, {"text": "str"})
    delete(folder / "deleted", NamedSamples(indices=[3]))
    return folder


@SERVES
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_writers_are_refused_in_one_sentence(refusing: Path, at: Path, error: int) -> None:
    """Every use that writes names the file, the reason and the cure, and leaves the data as they were."""
    environment = without_locks(refusing, at, error)
    run = subprocess.run(
        [sys.executable, "-c", WRITERS, at], env=environment, capture_output=True, text=True, check=True
    )
    told = json.loads(run.stdout.splitlines()[-1])
    for name, message in told.items():
        assert message.startswith("CacheError: " if name == "cache" else "StorageError: "), (name, message)
        assert "its file system has no locks (flock)" in message, (name, message)
        assert "`-o flock` for Lustre" in message
        assert "write to a folder of another file system" in message
        assert "\n" not in message
    assert len(told) == 11
    assert [path.name for path in (at / "grown" / "versions").iterdir()] == ["00000001.json"]
    assert len(brand.open(at / "grown").present()) == 20


def test_readers_take_no_lock(refusing: Path, at: Path) -> None:
    """Opening, random access, versions of a collection and training work without locks, also from a read-only mount."""
    environment = without_locks(refusing, at, errno.ENOSYS)
    run = subprocess.run(
        [sys.executable, "-c", READERS, at], env=environment, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("read\n", 0), run.stderr


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second descriptor waits its turn; those who share do not exclude each other."""
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert locks.take(first, tmp_path / "lock")
    assert not locks.take(second, tmp_path / "lock")
    assert locks.take(first, tmp_path / "lock", shared=True)
    assert locks.take(second, tmp_path / "lock", shared=True)
    os.close(first)
    assert locks.take(second, tmp_path / "lock", wait=True)
    os.close(second)
