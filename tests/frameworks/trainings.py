"""Trainings whose weights are compared with those of a framework's own sampler over the same order.

`python -m torch.distributed.run ... -m tests.frameworks.trainings FUNCTION DATA FOLDER` runs one of them in each
process of a job, and `launch` returns the results.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import Dataset

from brand.torch import BrandDataset, BrandSampler

SEED = 5
BATCH = 32
LIMIT_S = 300


class Net(nn.Module):
    """A small model with dropout, which notes the samples that it has seen."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4, 1))
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, as the Trainer expects it."""
        self.seen.append(index.tolist())
        output = self.layers(x)[:, 0]
        return {"loss": ((output - labels) ** 2).mean(), "logits": torch.stack([output, index.float()], 1)}

    def weights(self) -> list[float]:
        """All weights."""
        return torch.cat([value.detach().flatten() for value in self.parameters()]).tolist()


def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Net.forward`."""
    index = sample["index"]
    return {"index": index, "x": torch.tensor([index / 600, index % 11 / 11]), "labels": float(sample["label"])}


def open_data(path: Path) -> BrandDataset:
    """The data set, with samples for `Net`."""
    return BrandDataset(path, memory=0.3, transform=to_inputs)


class InOrder(Dataset[Any]):
    """The samples in the order of a `BrandSampler`, for a framework's own sequential sampler.

    With several `ranks`, samples of each global batch are ordered as the framework divides them: first all of rank 0.
    """

    def __init__(self, data: BrandDataset, ranks: int = 1) -> None:
        self._data, self._ranks = data, ranks
        self._order = BrandSampler(data, seed=SEED).order
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Change to the order of an epoch; frameworks call this."""
        indices = self._data._source.data.indices(self._order.plan(epoch).sample_of)
        size = BATCH * self._ranks
        batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        self._indices = [int(i) for batch in batches for rank in range(self._ranks) for i in batch[rank :: self._ranks]]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> Any:
        return self._data[self._indices[number]]


def launch(ranks: int, function: str, data: Path, folder: Path, **options: Any) -> list[Any]:
    """Run `module:function(data, folder, **options)` in a job of this many processes; the results by rank."""
    (folder / "options.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "tests.frameworks.trainings", function, str(data), str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(ranks)]


def main(function: str, data: Path, folder: Path) -> None:
    """Run a function in one process of a job, and write its result."""
    module, _, name = function.partition(":")
    options = json.loads((folder / "options.json").read_text())
    result = getattr(importlib.import_module(module), name)(data, folder, **options)
    (folder / f"result-{os.environ['RANK']}.json").write_text(json.dumps(result))
    leave_group()


def leave_group() -> None:
    """End the process group, and gloo's threads with it.

    If such a thread frees a tensor while the interpreter ends, the process aborts (pytorch/pytorch#179291). A model of
    `DistributedDataParallel` keeps the group, and is in a reference cycle.
    """
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
