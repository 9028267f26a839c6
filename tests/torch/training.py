"""A training process, as a launcher starts it: `python -m tests.torch.training FOLDER --out FILE`.

It draws some epochs and writes down, as JSON, what came and which server it came from.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from brand.torch import BrandDataset, BrandLoader, BrandSampler
from tests.support import LIMIT_S, free_port
from tests.torch.support import records_of


def train() -> None:
    """Draw, and write down what came."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--loader", default="BrandLoader")
    parser.add_argument("--order", default="stripes")
    parser.add_argument("--epochs", type=int, default=1)
    asked = parser.parse_args()
    data_set = BrandDataset(asked.path, memory=0.3, order=asked.order)
    sampler = BrandSampler(data_set)
    loader: Any = BrandLoader(data_set, 8, sampler=sampler)
    if asked.loader == "DataLoader":
        loader = DataLoader(data_set, 8, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    epochs = []
    for epoch in range(asked.epochs):
        sampler.set_epoch(epoch)
        epochs.append([(index, key, data.hex(), number) for index, key, data, number in records_of(loader)])
    server = data_set.stats()["process"]
    asked.out.write_text(json.dumps({"epochs": epochs, "server": server}))


def run_ranks(count: int, path: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """What so many processes of one job wrote down, which torchrun would have started together."""
    job = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    job |= {"TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    outs = [folder / f"rank{rank}.json" for rank in range(count)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.training", str(path), "--out", str(out), *options],
            env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=Path(__file__).parents[2],
        )
        for rank, out in enumerate(outs)
    ]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(out.read_text()) for out in outs]


def two_ranks(code: str, *arguments: str | Path) -> list[tuple[int, str, str]]:
    """The exit status, output and errors of two processes of one job, which both run `code`."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job |= {"TORCHELASTIC_RUN_ID": secrets.token_hex(8)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
            env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, told, strict=True)]


if __name__ == "__main__":
    train()
