"""Ray Train: two workers train whole epochs, and states count the trained batches. The matrix has its other cells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from brand import BrandLoader
from tests.frameworks.pages import program
from tests.frameworks.wrapped import Make, check_states, fixed_size, planned
from tests.test_docs import fashion_mnist

loops = pytest.importorskip("ray.train.torch.train_loop_utils", reason="Ray is not installed: pip install 'ray[train]'")
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]

LIMIT_S = 3000
STARTS = 6
"""Ray gives up if its first process has not registered after 30 s, as on a machine that other tests keep busy."""
_START = f"""
import ray, sys
for left in reversed(range({STARTS})):
    try:
        ray.init(num_cpus=3, include_dashboard=False, object_store_memory=200_000_000, _temp_dir=sys.argv[1],
                 log_to_driver=False)
        break
    except Exception:
        ray.shutdown()
        if not left:
            raise
"""
_OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
_OPEN |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(LIMIT_S), "OMP_NUM_THREADS": "1"}


def wrap(loader: BrandLoader) -> Any:
    """The loader that `prepare_data_loader` returns."""
    return loops._WrappedDataLoader(loader, torch.device("cpu"), True)


@pytest.mark.parametrize("make", [fixed_size, planned])
def test_a_state_counts_the_batches_that_were_trained(numbers: Path, make: Make) -> None:
    """Not the batch that Ray's loader has taken ahead."""
    check_states(numbers, make, wrap)


def test_the_page_trains_whole_epochs_and_resumes(tmp_path: Path) -> None:
    """With two workers. The second run has the name of the first one, so it begins with its last checkpoint."""
    shutil.copytree(fashion_mnist() / "train.brand", tmp_path / "train.brand")
    code, output = program("guides/more-frameworks.md", "Ray Train")
    longer = code.replace("range(first, 2)", "range(first, 3)")
    assert longer != code
    expected = output + output.replace("'epoch': 1", "'epoch': 2")
    (tmp_path / "train.py").write_text(f"{_START}{code}\n{longer}")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ran = subprocess.run(
            [sys.executable, "train.py", folder],
            cwd=tmp_path,
            env=os.environ | _OPEN | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout == expected
