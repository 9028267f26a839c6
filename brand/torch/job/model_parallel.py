"""Do several ranks of this job train on the same samples? Those of one tensor-, context- or pipeline-parallel group do.

Their frameworks make a mesh of ranks with named dimensions. A sampler that gives each rank its own samples would feed
the parts of one model with different samples. Accelerate says its dimensions; Lightning says the number of groups of a
strategy; otherwise, the process groups of PyTorch have the names of the dimensions. No framework is imported here.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from brand.errors import UsageError
from brand.torch.job.callers import methods
from brand.torch.pytorch import process_group

_DIMENSIONS: Final = {
    "tp": "tensor-parallel",
    "tensor_parallel": "tensor-parallel",
    "cp": "context-parallel",
    "context_parallel": "context-parallel",
    "pp": "pipeline-parallel",
    "pipeline_parallel": "pipeline-parallel",
}
"""Names of the dimensions of a mesh along which ranks train on the same samples."""


def refuse_model_parallel() -> None:
    """Raise `UsageError` if some ranks need the same samples, and the calling sampler gives each rank its own."""
    group = process_group()
    if group is None:
        return
    sizes = _of_accelerate() or _of_groups(group)
    named = [f"{_DIMENSIONS[name]} ({name}={size})" for name, size in sizes.items()]
    groups = _of_strategy()
    if groups is None:
        groups = group.get_world_size()
        for size in sizes.values():
            groups //= size
    elif groups < group.get_world_size() and not named:
        named = ["model-parallel"]
    if named:
        raise UsageError(
            f"some of the {group.get_world_size()} ranks are {' and '.join(named)}: they need the same samples, and "
            f"this sampler would give each rank its own. Make it BrandSampler(dataset, replication="
            f"{group.get_world_size() // groups}) if consecutive ranks need the same, or give device_mesh= and dims= "
            "(docs/guides/model-parallel.md)"
        )


def _of_accelerate() -> dict[str, int]:
    """Return the dimensions of Accelerate's `ParallelismConfig` that have several ranks."""
    state = sys.modules.get("accelerate.state")
    shared = {} if state is None else state.AcceleratorState._shared_state
    config = shared.get("parallelism_config")
    sizes = {name: getattr(config, f"{name}_size", None) or 1 for name in ("tp", "cp")}
    return {name: size for name, size in sizes.items() if size > 1}


def _of_groups(group: Any) -> dict[str, int]:
    """Return the dimensions of meshes that have several ranks. PyTorch names their process groups `mesh_NAME`."""
    known = group.distributed_c10d._world.pg_map
    sizes = {str(getattr(each, "group_desc", "")).removeprefix("mesh_"): each.size() for each in known}
    return {name: size for name, size in sizes.items() if name in _DIMENSIONS and size > 1}


def _of_strategy() -> int | None:
    """Return among how many groups the Lightning strategy of a calling Trainer shards samples; None if none calls."""
    for loop, _ in methods():
        if type(loop).__name__.endswith("Loop") and "lightning" in type(loop).__module__:
            told = getattr(loop.trainer.strategy, "distributed_sampler_kwargs", None) or {}
            return told.get("num_replicas")
    return None
