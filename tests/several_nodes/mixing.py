"""A rank of a training on several nodes that mixes: `python -m tests.several_nodes.mixing JSON` prints what it fetched.

The JSON has the paths and servers of the data sets, `kind` (one of `MIXED`, or `weights`, `expand`, `lengths`,
`packed` or `plain`), `ranks`, `rank`, `workers` of a `DataLoader` (None: a `BrandLoader`), epochs, a state to load,
batches after which to stop, the weights of the second epoch of a mixture, and the groups of ranks that get the same
samples: `replication`, or the shape of a `mesh` with the dimensions `pp` and `dp`. It prints a list of batches by
epoch, the state, and the server's statistics.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from torch.utils.data import DataLoader

from brand.torch import BrandDataset, BrandLoader, BrandSampler, LengthBatchSampler, Mixture, PackedBatchSampler

BATCH = 16
MIXED = ("mixture", "mixture, lengths", "mixture, packed")
"""Kinds of trainings that fetch a mixture."""


def fetched_from(  # noqa: PLR0913 - as the JSON has them
    kind: str,
    paths: list[str],
    servers: list[str | None],
    ranks: int,
    rank: int,
    *,
    workers: int | None = None,
    epochs: int = 2,
    state: dict[str, Any] | None = None,
    stop: int | None = None,
    weights: list[float] | None = None,
    replication: int = 1,
    mesh: list[int] | None = None,
    window: int = 160,
) -> tuple[list[list[Any]], dict[str, Any], list[dict[str, Any]]]:
    """Return the batches of each epoch, the state after the last one, and the statistics of the servers."""
    more: dict[str, Any] = {"expand": "captions"} if kind == "expand" else {}
    members = [
        BrandDataset(path, fields=("label", "index"), server=server, memory=0.5, job=server and "mixing", **more)
        for path, server in zip(paths, servers, strict=True)
    ]
    data: Any = members[0]
    options: dict[str, Any] = {}
    if kind in MIXED:
        data = Mixture(dict(zip(members, (3, 1), strict=True)), samples=1000, seed=3)
    if kind == "weights":
        options = {"weights": "balanced", "num_samples": 750}
    division: dict[str, Any] = {"num_replicas": ranks, "rank": rank, "replication": replication}
    if mesh is not None:
        division["device_mesh"] = mesh_of(mesh)
    planned = kind.endswith(("lengths", "packed"))
    sampler: Any
    if kind.endswith("lengths"):
        sampler = LengthBatchSampler(
            data, "length", batch_size=BATCH, seed=3, drop_last=True, window=window, **division
        )
    elif kind.endswith("packed"):
        limits: dict[str, Any] = {"tokens_per_row": 64, "rows_per_batch": 4, "window": window}
        sampler = PackedBatchSampler(data, "length", seed=3, drop_last=True, **limits, **division)
    else:
        sampler = BrandSampler(data, seed=3, drop_last=True, **division, **options)
    if state is not None:
        sampler.load_state_dict(state)
    which: dict[str, Any] = {"batch_sampler": sampler} if planned else {"batch_size": BATCH, "sampler": sampler}
    loader: Any = BrandLoader(data, **which)
    if workers is not None:
        loader = DataLoader(data, num_workers=workers, **which)
    found = []
    for epoch in range(epochs):
        if weights is not None and epoch:
            data.set_weights(dict(zip(members, weights, strict=True)))
        batches: list[Any] = []
        found.append(batches)
        for batch in loader:
            batches.append([each.tolist() for each in batch])
            if len(batches) == stop:
                break
    trained = {} if stop is None else {"batches": stop} if planned else {"samples": stop * BATCH}
    after = sampler.state_dict(**trained)
    return found, after, [member.stats() for member in members]


def mesh_of(shape: list[int]) -> Any:
    """Return a mesh of PyTorch with these dimensions, without processes."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=math.prod(shape), store=FakeStore())
    try:
        return init_device_mesh("cpu", tuple(shape), mesh_dim_names=("pp", "dp"))
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fetched_from(**json.loads(sys.argv[1]))))
