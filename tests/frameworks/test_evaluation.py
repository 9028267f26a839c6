"""601 samples on two, three and four ranks, which divide them unevenly: each framework counts 601."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import brand
from tests.support import LIMIT_S

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800)]
COUNT = 601
TOTAL = COUNT * (COUNT - 1) // 2
ALL = f"{COUNT} {COUNT} {TOTAL}"
METRICS = f"{COUNT} {TOTAL / COUNT:.3f}"
EXPECTED = {
    "plain": [*[f"loop: {ALL}"] * 3, f"workers: {ALL}"],
    "lightning": [
        *[f"validate: {ALL}", f"validate metrics: {METRICS}", f"test: {ALL}", f"test metrics: {METRICS}"],
        *[f"fit: {ALL}", f"fit metrics: {METRICS}", f"predict: {ALL}"],
    ],
    "accelerate": [f"prepare: {ALL}", f"gather: {ALL}", f"reduced: {COUNT}"],
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 images of eight by eight pixels, in chunks of 16."""
    folder = tmp_path_factory.mktemp("sets") / "odd.brand"
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    brand.pack(({"image": file.getvalue()} for _ in range(COUNT)), folder, {"image": "image"}, chunk_size=16, jobs=1)
    return folder


def said(ranks: int, *program: str) -> str:
    """Start ranks with torchrun, and return their output."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=None)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("way", EXPECTED)
def test_every_sample_is_counted_once(odd: Path, way: str, ranks: int) -> None:
    """In sums, means and lists of indices; a loader that would repeat samples is refused."""
    pytest.importorskip(way) if way != "plain" else None
    lines = said(ranks, "-m", "tests.frameworks.evaluated", way, str(odd), str(ranks)).splitlines()
    found = [line for line in lines if re.match(r"[a-z ]+: [\d. ]+$", line)]
    assert found == EXPECTED[way]
    if way == "accelerate":
        (refused,) = [line for line in lines if line.startswith("refused:")]
        assert "Accelerate gives all its processes equally many batches" in refused


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_example(odd: Path, repository: Path, ranks: int) -> None:
    """It says so itself."""
    text = said(ranks, str(repository / "examples" / "evaluate_ddp.py"), str(odd))
    assert text == f"{COUNT} samples fetched by {ranks} ranks, {COUNT} counted, each of {COUNT} once: True\n"
