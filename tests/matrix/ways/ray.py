"""Ray Train: `prepare_data_loader`; as the page says, the loader itself. `python -m tests.matrix.ways.ray`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
from ray.train import ScalingConfig

from tests.matrix.loops import EPOCHS, MatrixRun, keeper_of, state_of
from tests.matrix.ways.base import Way, train_epoch


def fit(run: MatrixRun) -> None:
    """The loop that each worker of a `TorchTrainer` runs, with the checkpoint of the first of them."""
    made, model, first = run.loader(), run.model, 0
    loader = made if run.page and not run.task.stock else ray.train.torch.prepare_data_loader(made)
    trained = ray.train.torch.prepare_model(model)
    optimizer = run.optimizer(trained)
    if run.task.resume is not None:
        saved = run.read()
        keeper_of(made).load_state_dict(saved["data"])
        model.load_state_dict(saved["model"])
        first = saved["data"]["epoch"]

    def save(step: int, _: bool) -> None:
        run.write(data=state_of(made, step), model=model.state_dict())

    for epoch in range(first, EPOCHS):
        if run.page or run.ranks > 1:  # the documentation of Ray says so
            keeper_of(made).set_epoch(epoch)
        train_epoch(run, epoch, loader, trained, optimizer, save)


def serve_all(config: dict[str, Any]) -> None:
    """Serve as a rank of a `TorchTrainer`."""
    from tests.matrix.program import serve

    context = ray.train.get_context()
    serve("Ray Train", Path(config["data"]), config["address"], context.get_world_rank(), context.get_world_size())


RAY = Way(fit, {})


def main(data: str, address: str, ranks: int) -> None:
    """A cluster of one machine, and a trainer whose workers serve."""
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=ranks + 1, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
        trainer = ray.train.torch.TorchTrainer(
            serve_all,
            train_loop_config={"data": data, "address": address},
            scaling_config=ScalingConfig(num_workers=ranks),
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
