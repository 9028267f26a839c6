"""Ranks of tensor and context parallelism are refused by name, and the cure gives them the same samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brand import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler
from brand.errors import UsageError
from tests.frameworks.trainings import launch

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]
pytest.importorskip("accelerate")


def test_ranks_of_one_group_are_refused_by_name(numbers: Path, tmp_path: Path) -> None:
    for result in launch(2, f"{__name__}:of_two", numbers, tmp_path):
        for name in ("tp", "cp"):
            for loader in ("prepared", "BrandLoader", "lengths"):
                told = result[f"{name} {loader}"]
                assert f"({name}=2)" in told, told
                assert "num_replicas=1, rank=..." in told, told
        assert len(result["dp_replicate prepared"]) == 300
        assert sorted(result["cured"]) == sorted(result["accelerate"]) == list(range(600))


def of_two(path: Path, _: Path) -> dict[str, Any]:
    """Return the samples of a rank, or the refusal, by dimension and loader. CPUs have no such `Accelerator`."""
    from accelerate import Accelerator
    from accelerate.utils import ParallelismConfig
    from torch.utils.data import DataLoader

    from brand.frameworks.accelerate import prepare

    data, accelerator = BrandDataset(path, memory=0.3, fields=("index",)), Accelerator(cpu=True)
    makes: dict[str, Any] = {
        "prepared": lambda: prepare(accelerator, BrandLoader(data, 32, sampler=BrandSampler(data))),
        "BrandLoader": lambda: BrandLoader(data, 32, sampler=BrandSampler(data)),
        "lengths": lambda: BrandLoader(data, batch_sampler=LengthBatchSampler(data, batch_size=32)),
    }
    found: dict[str, Any] = {}
    for name in ("tp", "cp", "dp_replicate"):
        accelerator.state.parallelism_config = ParallelismConfig(**{f"{name}_size": 2})
        accelerator.state.device_mesh = accelerator.parallelism_config.get_device_mesh("cpu")
        for loader, make in makes.items():
            try:
                found[f"{name} {loader}"] = [index for (batch,) in make() for index in batch.tolist()]
            except UsageError as error:
                found[f"{name} {loader}"] = str(error)
    accelerator.state.parallelism_config = ParallelismConfig(tp_size=2)
    accelerator.state.device_mesh = accelerator.parallelism_config.get_device_mesh("cpu")
    sampler = BrandSampler(data, num_replicas=1, rank=0)
    cured = prepare(accelerator, BrandLoader(data, 32, sampler=sampler))
    found["cured"] = [index for (batch,) in cured for index in batch.tolist()]
    own = accelerator.prepare(DataLoader(data, 32, sampler=BrandSampler(data)))
    found["accelerate"] = [index for (batch,) in own for index in batch.tolist()]
    return found
