"""Which rank, node and job does this process belong to?

An argument counts first, then `torch.distributed`, then the environment of torchrun or Slurm. If there is none of them,
the process is alone. Callers ask as late as possible, because frameworks start their ranks after the data set was made.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch.distributed

from brand.errors import UsageError

_LAUNCHERS: Final = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_NODES: Final = (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("SLURM_NODEID", "SLURM_STEP_NUM_NODES"))
_JOB: Final = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)


def find_rank(rank: int | None, replicas: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the rank and the number of ranks. Raises `UsageError` if they contradict each other."""
    if rank is None or replicas is None:
        found = _found(environment)
        if replicas not in (None, found[1]):
            raise UsageError(f"num_replicas={replicas} without rank=, and this process is one of {found[1]}: give both")
        rank, replicas = (found[0] if rank is None else rank), found[1]
    if not 0 <= rank < replicas:
        raise UsageError(f"rank {rank} of {replicas}: ranks are 0 to num_replicas - 1; give both or neither")
    return rank, replicas


def job_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a name that all ranks of one job on this node have in common; None if there is one process."""
    if _found(environment)[1] == 1:
        return None
    facts = "|".join(f"{name}={value}" for name, value in job_facts(environment).items())
    return hashlib.blake2s(facts.encode(), digest_size=8).hexdigest()


def node_by_launcher(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return the number of this node and the number of nodes, from torchrun or Slurm; None if neither gives them.

    Ranks that meet on loopback are all on one node. Raises `UsageError`.
    """
    if _found(environment)[1] == 1:
        return 0, 1
    found = _numbers(_NODES, environment)
    on_loopback = environment.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1")
    return (0, 1) if found is None and on_loopback else found


def named_master(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the host of the job's store as the environment names it; None if it does not."""
    return environment.get("MASTER_ADDR")


def master(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the host and port of the job's store. Raises `UsageError` if the environment does not have them."""
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        found = f"MASTER_ADDR={host!r}, MASTER_PORT={port!r}"
        raise UsageError(f"several nodes find each other through the job's store, and the environment says {found}")
    return host, int(port)


def this_machine() -> str:
    """Return a name of this kernel and network namespace. Processes with the same name can share a data server."""
    return f"{socket.gethostname()}|{this_network()}"


def this_network() -> str:
    """Return a name of this network namespace. Processes with the same name reach each other at loopback addresses."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}|{Path('/proc/self/ns/net').readlink()}"


def job_facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables from which the name of the job is made."""
    return {name: environment.get(name, "") for name in _JOB}


def _found(environment: Mapping[str, str]) -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _numbers(_LAUNCHERS, environment) or (0, 1)


def _numbers(names: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the values of the first pair of variables that are both set."""
    for number, count in names:
        if number in environment and count in environment:
            try:
                return int(environment[number]), int(environment[count])
            except ValueError:
                found = f"{number}={environment[number]!r}, {count}={environment[count]!r}"
                raise UsageError(f"the environment says {found}, which are no numbers") from None
    return None
