"""Which rank, node and job does this process belong to?

An argument counts first, then `torch.distributed`, then `jax.distributed`, then the environment of torchrun, Slurm or
MPI. If there is none of them, the process is alone. Callers ask as late as possible, because frameworks start their
ranks after the data set was made.
"""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from brand.errors import UsageError
from brand.torch.pytorch import process_group

_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of torchrun, Open MPI, MVAPICH, MPICH and Intel MPI, Horovod, jsrun, Flux, and Slurm.

Inside a step of Slurm, `mpirun` counts.
"""
_MPI: Final = tuple(rank for rank, _ in _LAUNCHERS[1:-1])
_ON_NODE: Final = (
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)
"""Ranks on this node and of the job. If they are equal, the job has one node."""
_NODES: Final = (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("SLURM_NODEID", "SLURM_STEP_NUM_NODES"))
_JOB: Final = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "FLUX_JOB_ID",
)
_NO_JOB: Final = ("SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables that several jobs of `mpirun` have in common."""


def find_rank(rank: int | None, replicas: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the rank and the number of ranks. Raises `UsageError` if they contradict each other."""
    if rank is None or replicas is None:
        found = _found(environment)
        if replicas not in (None, found.ranks):
            raise UsageError(
                f"num_replicas={replicas} without rank=, and this process is one of {found.ranks}: give both"
            )
        rank, replicas = (found.rank if rank is None else rank), found.ranks
        source = f", from {found.source}" if found.source else ""
    else:
        source = ""
    if not 0 <= rank < replicas:
        raise UsageError(f"rank {rank} of {replicas}{source}: ranks are 0 to num_replicas - 1; give both or neither")
    return rank, replicas


def rank_source(rank: int | None, replicas: int | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return from where `find_rank` takes the rank: a library, or a variable; empty if the caller gives it, or none."""
    found = _found(environment)
    return "" if rank is not None or replicas is not None or found.ranks == 1 else found.source


def is_alone(rank: int | None, replicas: int | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a rank of no job, and its user has not said so."""
    return rank is None and replicas is None and _found(environment).ranks == 1


def half_said(environment: Mapping[str, str] = os.environ) -> str:
    """Return in words which variable of torchrun is missing if the other one is set; otherwise an empty text."""
    rank, size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is not None and size is None:
        return f"RANK={rank} is set, and WORLD_SIZE is not"
    return f"WORLD_SIZE={size} is set, and RANK is not" if rank is None and size not in (None, "1") else ""


def has_group(replicas: int) -> bool:
    """Whether this process is in a group of that many processes, of `torch.distributed`, JAX or mpi4py."""
    group = _group()
    if group is not None:
        return group.ranks == replicas
    mpi = sys.modules.get("mpi4py.MPI")
    return bool(mpi and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() == replicas)


def job_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a name that all ranks of one job on this node have in common; None if there is one process."""
    if _found(environment).ranks == 1:
        return None
    facts = "|".join(f"{name}={value}" for name, value in job_facts(environment).items())
    return hashlib.blake2s(facts.encode(), digest_size=8).hexdigest()


def node_by_launcher(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return the number of this node and the number of nodes, from the launcher; None if it does not give them.

    Ranks that meet on loopback are all on one node. Raises `UsageError`.
    """
    if _found(environment).ranks == 1:
        return 0, 1
    found = _numbers(_NODES, environment)
    here = _numbers(_ON_NODE, environment)
    on_loopback = environment.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1")
    together = on_loopback or (here is not None and here[0] == here[1])
    return (0, 1) if found is None and together else found[:2] if found else None


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
    """Return the variables from which the name of the job is made.

    MPICH has none that tells two jobs apart. So the process that has started its ranks on this machine is added; for
    JAX, the address of its coordinator.
    """
    facts = {name: environment.get(name, "") for name in _JOB}
    source = _found(environment).source
    if source == "jax.distributed":
        facts["coordinator"] = _coordinator()
    elif source in _MPI and not any(value for name, value in facts.items() if name not in _NO_JOB):
        facts["launcher"] = _launcher(source)
    return facts


@functools.cache
def _launcher(variable: str) -> str:
    """Return a name of the nearest process above this one that does not have an environment variable."""
    process = Path("/proc/self")
    while True:
        facts = (process / "stat").read_text().rpartition(")")[2].split()
        parent, started = Path("/proc", facts[1]), facts[19]
        try:
            known = f"{variable}=".encode() in (process / "environ").read_bytes()
        except OSError:  # a process of another user
            known = False
        if not known or facts[1] == "0":
            return f"{process.name} {started}"
        process = parent


class _Found(NamedTuple):
    """A rank, the number of ranks, and the library or variable that says so."""

    rank: int
    ranks: int
    source: str


def _found(environment: Mapping[str, str]) -> _Found:
    group = _group()
    if group is not None:
        return group
    found = _Found(*(_numbers(_LAUNCHERS, environment) or (0, 1, "")))
    slurm = _numbers(_LAUNCHERS[-1:], environment) if found.source in _MPI else None
    # `srun --mpi=` sets the variables of MPI, too. Below `mpirun`, several ranks have the same variables of Slurm.
    return _Found(*slurm) if slurm is not None and slurm[:2] == found[:2] else found


def _group() -> _Found | None:
    """Return the rank in the process group of a library; None if none is initialised."""
    if (group := process_group()) is not None:
        return _Found(group.get_rank(), group.get_world_size(), "torch.distributed")
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    return _of_jax() if is_initialized is not None and is_initialized() else None


@functools.cache
def _of_jax() -> _Found:
    """Return the rank of JAX. A forked worker has the answer of its parent, because JAX does not work in it."""
    jax = sys.modules["jax"]
    return _Found(jax.process_index(), jax.process_count(), "jax.distributed")


def _coordinator() -> str:
    """Return the address at which the processes of JAX have met; JAX has no public name for it."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return str(getattr(state, "coordinator_address", ""))


def _numbers(names: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Return the values of the first pair of variables that are both set, and the name of the first of them."""
    for number, count in names:
        if number in environment and count in environment:
            try:
                return int(environment[number]), int(environment[count]), number
            except ValueError:
                found = f"{number}={environment[number]!r}, {count}={environment[count]!r}"
                raise UsageError(f"the environment says {found}, which are no numbers") from None
    return None
