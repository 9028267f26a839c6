"""A training in a container, without a container engine: it is process 1, and system calls are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox import OTHER_PROC, PROCESS_ONE, environment, needs_namespaces, without
from tests.support import LIMIT_S

TRAINING = '''
import json, os, sys
from torch.utils.data import DataLoader
from brand.torch import BrandDataset, BrandLoader, BrandSampler

def main():
    ds = BrandDataset(sys.argv[1], fields=("number",), memory=0.5, server=None if sys.argv[3] == "own" else sys.argv[3])
    sampler = BrandSampler(ds, seed=3)
    if sys.argv[2] == "loader":
        loader = BrandLoader(ds, 50, sampler=sampler)
    else:
        workers, _, start = sys.argv[2].partition(":")
        loader = DataLoader(ds, 50, sampler=sampler, num_workers=int(workers), multiprocessing_context=start or None)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            found += batch[0].tolist()
    direct = [sample[0] for sample in ds.__getitems__([5, 900, 17])]
    stats = ds.stats()
    print(json.dumps({"pid": os.getpid(), "found": found, "direct": direct, "problems": stats["problems"]}))

if __name__ == "__main__":
    main()
'''
HOW = ["loader", "0", "2:fork", "2:spawn", "2:forkserver"]


def train(command: tuple[str, ...], data: Path, folder: Path, how: str = "loader", server: str = "own") -> Any:
    """What a training prints that this command runs."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    done = subprocess.run(
        [*command, sys.executable, str(script), str(data), how, server],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["loader", "2:fork", pytest.param("2:spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", [PROCESS_ONE, OTHER_PROC], ids=["process 1", "another /proc"])
def test_a_training_that_is_process_1(texts: Path, tmp_path: Path, command: tuple[str, ...], how: str) -> None:
    """It gets the samples in the order in which every process gets them."""
    needs_namespaces(command)
    outside, inside = train((), texts, tmp_path, how), train(command, texts, tmp_path, how)
    assert inside["pid"] == 1
    assert outside["pid"] != 1
    for name in ("found", "direct", "problems"):
        assert inside[name] == outside[name]
