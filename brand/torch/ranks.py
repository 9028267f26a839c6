"""Which rank of how many is this process, and which job does it belong to?

An argument counts more than `torch.distributed`, that more than what torchrun or Slurm say in the environment, that
more than being alone. Asked as late as possible: frameworks start their ranks after the data set was made.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Final

import torch.distributed

from brand.errors import UsageError

_LAUNCHERS: Final = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_JOB: Final = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID")


def find_rank(rank: int | None, replicas: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and number of ranks. Raises `UsageError` where they contradict each other."""
    if rank is None or replicas is None:
        found = _found(environment)
        if replicas not in (None, found[1]):
            raise UsageError(f"num_replicas={replicas} without rank=, and this process is one of {found[1]}: give both")
        rank, replicas = (found[0] if rank is None else rank), found[1]
    if not 0 <= rank < replicas:
        raise UsageError(f"rank {rank} of {replicas}: ranks are 0 to num_replicas - 1; give both or neither")
    return rank, replicas


def job_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """What all ranks of one job on this node agree on; None where this process is not one of several."""
    if _found(environment)[1] == 1:
        return None
    facts = "|".join(f"{name}={environment.get(name, '')}" for name in _JOB)
    return hashlib.blake2s(facts.encode(), digest_size=8).hexdigest()


def _found(environment: Mapping[str, str]) -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    for rank, replicas in _LAUNCHERS:
        if rank in environment and replicas in environment:
            try:
                return int(environment[rank]), int(environment[replicas])
            except ValueError:
                found = f"{rank}={environment[rank]!r}, {replicas}={environment[replicas]!r}"
                raise UsageError(f"the environment says {found}, which are no numbers") from None
    return 0, 1
