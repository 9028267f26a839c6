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
                assert "replication=2" in told, told
        assert len(result["dp_replicate prepared"]) == 300
        assert sorted(result["cured"]) == sorted(result["accelerate"]) == list(range(600))


@pytest.mark.parametrize(("dimensions", "named"), [(("dp", "tp"), "(tp=2)"), (("pp", "dp"), "(pp=2)")])
def test_a_mesh_with_such_a_dimension_is_refused(
    numbers: Path, tmp_path: Path, dimensions: tuple[str, str], named: str
) -> None:
    for told in launch(4, f"{__name__}:of_mesh", numbers, tmp_path, dimensions=dimensions):
        assert named in told
        assert "replication=2" in told


def test_ranks_of_a_mesh_get_the_samples_of_their_group(numbers: Path, tmp_path: Path) -> None:
    """The mesh is 2 x 2: ranks 0 and 1 hold parts of one model, and ranks 2 and 3 hold parts of another."""
    found = launch(4, f"{__name__}:of_mesh", numbers, tmp_path, dimensions=("dp", "tp"), told=True)
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert sorted(found[0] + found[2]) == list(range(600))


def test_a_mesh_of_data_parallel_dimensions_is_not(numbers: Path, tmp_path: Path) -> None:
    found = launch(4, f"{__name__}:of_mesh", numbers, tmp_path, dimensions=("replicate", "shard"))
    assert sorted(index for of_rank in found for index in of_rank) == list(range(600))


def of_mesh(path: Path, _: Path, dimensions: list[str], *, told: bool = False) -> list[int] | str:
    """Return the samples of a rank of a mesh of 2 x 2, or the refusal. `told`: the sampler gets the mesh."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(dimensions))
    data = BrandDataset(path, memory=0.3, fields=("index",))
    try:
        sampler = BrandSampler(data, device_mesh=mesh if told else None)
        return [index for (batch,) in BrandLoader(data, 32, sampler=sampler) for index in batch.tolist()]
    except UsageError as error:
        return str(error)


def test_a_model_parallel_strategy_is_refused(numbers: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    for told in launch(2, f"{__name__}:of_strategy", numbers, tmp_path):
        assert "the 2 ranks are model-parallel" in told
        assert "replication=2" in told


def of_strategy(path: Path, _: Path) -> str:
    """Return the refusal of a training by tensor parallelism."""
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import ModelParallelStrategy

    class Model(pl.LightningModule):  # type: ignore[misc]
        def configure_model(self) -> None:
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0].float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
    with pytest.raises(UsageError) as told:
        trainer.fit(Model(), BrandLoader(BrandDataset(path, memory=0.3, fields=("index",)), 32))
    return str(told.value)


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
    sampler = BrandSampler(data, replication=2)
    cured = prepare(accelerator, BrandLoader(data, 32, sampler=sampler))
    found["cured"] = [index for (batch,) in cured for index in batch.tolist()]
    own = accelerator.prepare(DataLoader(data, 32, sampler=BrandSampler(data)))
    found["accelerate"] = [index for (batch,) in own for index in batch.tolist()]
    return found
