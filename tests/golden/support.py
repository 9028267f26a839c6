"""Checks of any golden data set."""

from __future__ import annotations

import shutil
from pathlib import Path

from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.verify import verify
from tests.support import files_below


def check_rebuilt(golden: Path, copy: Path) -> None:
    """`verify` finds nothing, and `reindex` makes manifest, index and columns again, byte for byte."""
    assert [error for step in verify(golden) for error in step.errors] == []
    shutil.copytree(golden, copy)
    (copy / "brand.json").unlink()
    shutil.rmtree(copy / "index")
    shutil.rmtree(copy / "columns", ignore_errors=True)
    reindex(copy)
    assert files_below(copy) == files_below(golden)
