"""Data sets on a file system that maps no files."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import brand
from brand.collect import append_data_set
from tests.filesystems import library, without_maps

READER = """
import sys
from pathlib import Path
import brand
from brand.storage.maintenance.verify import verify
at = Path(sys.argv[1])
if __name__ == "__main__":
    for name in ("set", "grown"):
        data = brand.open(at / name)
        assert [each["number"] for each in data.samples([7, 299, 0, 7])] == [7, 299, 0, 7]
        assert data.column("number").tolist() == list(range(300))
        loader = brand.BrandLoader(brand.BrandDataset(at / name), batch_size=50)
        assert sorted(n for batch in loader for n in batch["number"].tolist()) == list(range(300))
        assert not [error for step in verify(at / name) for error in step.errors]
    print("read")
    try:
        brand.pack([{"number": 1}], at / "new", {"number": "int"}, jobs=1)
    except brand.BrandError as error:
        print(error)
"""


@pytest.mark.parametrize("error", [errno.ENODEV, errno.EINVAL])
def test_an_index_that_cannot_be_mapped_is_read(tmp_path: Path, error: int) -> None:
    """Random access, columns, training and verification work; a conversion there says what helps."""
    at = tmp_path / "fuse"
    at.mkdir()
    samples = [{"number": k, "text": f"text {k}"} for k in range(300)]
    brand.pack(samples, at / "set", {"number": "int", "text": "str"}, chunk_size=64, jobs=1)
    append_data_set(at / "set", at / "grown", copy=True)
    command = [sys.executable, "-c", READER, str(at)]
    environment = without_maps(library(tmp_path), at, error)
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.startswith("read\n"), run.stderr
    if error == errno.ENODEV:
        assert "its file system cannot map files (mmap)" in run.stdout
        assert "write to another file system" in run.stdout
