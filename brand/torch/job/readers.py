"""Does this process fetch for itself alone? An `IterableDataset` around a loader may serve several processes.

Each worker process of a `DataLoader` iterates over all of its `IterableDataset`, so each of them would fetch all
samples. Frameworks make one process read a stream and send batches to the others, or let each process skip the others'
part of it: if the sampler shards the samples among the same processes, the others' samples are lost. They tell the
stream nothing, so this module inspects the variables of its callers. No framework is imported here.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from typing import Any, Final

from brand.errors import UsageError
from brand.torch.job.callers import methods
from brand.torch.job.rank_log import warn_new_worker
from brand.torch.pytorch import get_worker_info

_DIVIDERS: Final = {
    "IterableDatasetShard": "num_processes",  # of Accelerate and transformers
    "DataLoaderDispatcher": "state.num_processes",  # of Accelerate
    "StepExamplesIterable": "step",  # of datasets: split_dataset_by_node
    "ShardingFilterIterDataPipe": "num_of_instances",  # of PyTorch
}
"""Classes that divide a stream among processes, and the attribute that says among how many."""
_SPLITTERS: Final = {"split_by_node": "world_size", "split_by_worker": "num_workers"}
"""Functions of webdataset that divide a stream, and the variable that says among how many."""


def check_workers(given: tuple[int, int] = (0, 1)) -> None:
    """Raise `UsageError` if this is one of several worker processes, each of which would fetch the same samples.

    `given`: the rank and the number of ranks that the caller of a sampler gave, by which each worker process of a rank
    may have a share of its own: rank x workers + worker, or worker x ranks + rank.
    """
    worker, (rank, replicas) = get_worker_info(), given
    if worker is None:
        return
    if not _lasts():
        warn_new_worker()
    if worker.num_workers == 1:
        return
    ranks, rest = divmod(replicas, worker.num_workers)
    if rest or worker.id not in (rank % worker.num_workers, rank // ranks):
        raise UsageError(
            f"worker process {worker.id} of {worker.num_workers} of a DataLoader iterates over Brand's sampler or "
            f"loader, and so does each of the others: every sample would be trained {worker.num_workers} times. Give "
            "the IterableDataset's DataLoader num_workers=0 or 1 (a BrandLoader has threads of its own), or train from "
            "the BrandLoader without an IterableDataset (docs/guides/more-frameworks.md)"
        )


def _lasts() -> bool:
    """Whether this worker process lasts for more than one epoch."""
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code.co_name == "_worker_loop":
            return bool(frame.f_locals.get("persistent_workers", True))
    return True


def check_dividers(replicas: int) -> None:
    """Raise `UsageError` if a caller divides the samples of this rank, one of `replicas`, among processes again."""
    if replicas == 1:
        return
    for name, processes in _dividers():
        if processes > 1:
            raise UsageError(
                f"{name} divides an IterableDataset among {processes} processes, and the BrandSampler in it has "
                f"divided the samples among {replicas} ranks already: most samples would be lost. Train from the "
                "BrandLoader without an IterableDataset (Accelerate: brand.frameworks.accelerate.prepare; Trainer: "
                "BrandTrainerMixin), or have it fetch all samples: sampler=BrandSampler(dataset, num_replicas=1, "
                "rank=0) (docs/guides/more-frameworks.md)"
            )


def _dividers() -> Iterator[tuple[str, int]]:
    """Yield what divides a stream among the callers, and among how many processes."""
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        name = frame.f_code.co_name
        if name in _SPLITTERS:
            yield name, _whole(frame.f_locals.get(_SPLITTERS[name]))
    for asking, _ in methods():
        for name in {kind.__name__ for kind in type(asking).__mro__} & set(_DIVIDERS):
            value: Any = asking
            for part in _DIVIDERS[name].split("."):
                value = getattr(value, part, 1)
            yield name, _whole(value)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 1
