"""`bench/gpu_training.py` trains a small model on the CPU, from Brand and without a loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_small_model_trains_on_the_cpu(tmp_path: Path, repository: Path) -> None:
    """Every feed that needs no torchvision gives images, and the table has the waits of the loop."""
    options = ["--model", "tiny", "--device", "cpu", "--count", "64", "--batch", "8", "--workers", "2", "--repeat", "1"]
    feeds = ["no loader", "brand", "brand, DataLoader"]
    command = [sys.executable, "-m", "bench.gpu_training", "--work", str(tmp_path), "--seconds", "0.1", *options]
    subprocess.run([*command, "--out", str(tmp_path / "out.json"), "--only", *feeds], cwd=repository, check=True)
    content = json.loads((tmp_path / "out.json").read_text())
    assert [run["status"] for run in content["results"]] == ["ok"] * 3
    assert [row[0] for row in content["tables"][0]["rows"]] == feeds
    for run in content["results"]:
        assert run["values"]["images_per_s"] > 0
        assert 0 <= run["values"]["waits"] <= 1
