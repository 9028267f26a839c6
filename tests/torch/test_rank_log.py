"""No rank is a surprise: the log says whose rank a process is, and warns if it is a rank of no job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.torch.job.ranks import find_rank, job_facts, job_name, node_by_launcher, rank_source
from tests.support import LIMIT_S, free_port
from tests.torch.training import two_ranks

CURE = "for a run of its own pass num_replicas=1, rank=0"
LAUNCHERS = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
    "RANK alone": {"RANK": "3", "WORLD_SIZE": "8"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "8"},
    "MVAPICH": {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "8", "MV2_COMM_WORLD_LOCAL_SIZE": "8"},
}
KNOWN = tuple({name for variables in LAUNCHERS.values() for name in variables} | {"GROUP_RANK", "GROUP_WORLD_SIZE"})

SEEN = """
import json, sys
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from torch.utils.data import DataLoader

data, how, given = BrandDataset(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
for _ in range(2):
    if how == "BrandLoader":
        loader = BrandLoader(data, batch_size=8, sampler=BrandSampler(data, **given))
        seen = [n for batch in loader for n in batch["n"].tolist()]
    elif how == "LengthBatchSampler":
        from brand.torch import LengthBatchSampler
        sampler = LengthBatchSampler(data, length="n", batch_size=4, **given)
        seen = [n for batch in BrandLoader(data, batch_sampler=sampler) for n in batch["n"].tolist()]
    else:
        sampler = BrandSampler(data, shuffle=how != "in order", **given)
        loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, collate_fn=list)
        seen = [sample["n"] for batch in loader for sample in batch]
print(json.dumps(seen))
"""


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    brand.pack([{"n": n} for n in range(80)], tmp_path / "n.brand", {"n": "int"}, chunk_size=4)
    return tmp_path / "n.brand"


def run(variables: dict[str, str], path: Path, how: str = "DataLoader", **given: int) -> tuple[list[int], str]:
    """What a process with these variables sees in its second epoch, and what it says."""
    plain = {name: value for name, value in os.environ.items() if name not in KNOWN}
    command = [sys.executable, "-W", "error", "-c", SEEN, str(path), how, json.dumps(given)]
    done = subprocess.run(command, env=plain | variables, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_of_no_job(launcher: str, numbers: Path) -> None:
    """It is said at the beginning and, with the counts, at the end; the cure that both name helps."""
    seen, said = run(LAUNCHERS[launcher], numbers)
    source = next(iter(LAUNCHERS[launcher]))
    assert len(set(seen)) == 10
    assert said.count(f"rank 3 of 8, from {source}, and there is no process group of that size; {CURE}") == 1
    assert said.count("this process has seen 10 of 80 samples in this epoch, as rank 3 of 8") == 1
    seen, said = run(LAUNCHERS[launcher], numbers, num_replicas=1, rank=0)
    assert sorted(seen) == list(range(80))
    assert "rank 3 of 8" not in said


@pytest.mark.parametrize("how", ["BrandLoader", "in order", "LengthBatchSampler"])
def test_every_loader_says_so(how: str, numbers: Path) -> None:
    """Also batches that are planned, and plain indices."""
    seen, said = run(LAUNCHERS["torchrun"], numbers, how)
    assert len(seen) < 80
    assert said.count(CURE) == 2, said
    assert f"has seen {len(seen)} of 80 samples" in said
    seen, said = run(LAUNCHERS["torchrun"], numbers, how, num_replicas=1, rank=0)
    assert (sorted(seen), said) == (list(range(80)), "")


STARTER = """
import os, subprocess, sys
code, path, ranks = sys.argv[1:]
started = [
    subprocess.Popen(
        ["sh", "-c", 'exec "$0" "$@"', sys.executable, "-c", code, path, "DataLoader", "{}"],
        env=os.environ | {"PMI_RANK": str(rank), "PMI_SIZE": ranks, "MPI_LOCALNRANKS": ranks},
    )
    for rank in range(int(ranks))
]
sys.exit(max(process.wait() for process in started))
"""


def test_two_jobs_of_mpich(numbers: Path) -> None:
    """Its ranks share the samples, and two jobs at a time, which no variable tells apart, do not mix."""
    plain = {name: value for name, value in os.environ.items() if name not in KNOWN}
    command = [sys.executable, "-c", STARTER, SEEN, str(numbers), "2"]
    jobs = [subprocess.Popen(command, env=plain, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for job in jobs:
        out, _ = job.communicate(timeout=LIMIT_S)
        assert job.returncode == 0
        shares = [json.loads(line) for line in out.splitlines()]
        assert [len(share) for share in shares] == [40, 40]
        assert sorted(n for share in shares for n in share) == list(range(80))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "5", "PMI_SIZE": "8"}, "PMI_RANK"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
         "OMPI_COMM_WORLD_RANK"),
        ({"RANK": "1", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "RANK"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, ""),
        ({"PMI_RANK": "1"}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_launchers_inside_launchers(variables: dict[str, str], expected: str) -> None:
    """`srun --mpi=` sets variables of MPI with the same numbers; `mpirun` in a step of Slurm has other numbers."""
    assert rank_source(None, None, variables) == expected
    sizes = {"SLURM_PROCID": "SLURM_STEP_NUM_TASKS", "RANK": "WORLD_SIZE"}
    size = sizes.get(expected, expected.replace("RANK", "SIZE"))
    found = (int(variables[expected]), int(variables[size])) if expected else (0, 1)
    assert find_rank(None, None, variables) == found
    assert rank_source(0, 1, variables) == ""


def test_nodes_of_mpi() -> None:
    """As many ranks on this node as in the job are one node; Open MPI names the job."""
    ompi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8", "PMIX_NAMESPACE": "one"}
    assert node_by_launcher(ompi | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}) == (0, 1)
    assert node_by_launcher(ompi | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}) is None
    assert "launcher" not in job_facts(ompi)
    assert job_name(ompi) != job_name(ompi | {"PMIX_NAMESPACE": "two"})


EVALUATION = """
import sys
import torch.distributed as dist
from brand.torch import BrandDataset, BrandSampler

dist.init_process_group("gloo")
data, given = BrandDataset(sys.argv[1]), {"num_replicas": 1, "rank": 0} if sys.argv[2] == "cure" else {}
train = BrandSampler(data)
for _ in range(2):
    list(train)
    dist.barrier()
    if dist.get_rank() == 0 or sys.argv[2] == "all":
        print(len(list(BrandSampler(data, shuffle=False, **given))))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("how", "samples"), [("rank 0", 40), ("all", 40), ("cure", 80)])
def test_evaluation_on_one_rank(how: str, samples: int, numbers: Path) -> None:
    """It gets half of the samples, which is said once; the cure helps."""
    (status, out, said), (_, _, other) = two_ranks(EVALUATION, numbers, how)
    assert (status, out) == (0, f"{samples}\n{samples}\n"), said
    assert said.count("n.brand, and none of the other 1 has begun one") == (how == "rank 0")
    assert "begun" not in said.replace("none of the other 1 has begun one", "")
    assert "begun" not in other


def test_jax(numbers: Path) -> None:
    """Its processes share the samples, as process_index says."""
    pytest.importorskip("jax")
    code = """
import sys, jax
port, rank, path = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
from brand.torch.job.ranks import find_rank, has_group, rank_source
print(find_rank(None, None) == (int(rank), 2), has_group(2), rank_source(None, None))
"""
    port = free_port()
    started: list[Any] = [
        subprocess.Popen([sys.executable, "-c", code, str(port), str(rank), numbers], stdout=subprocess.PIPE, text=True,
                         env=os.environ | {"JAX_PLATFORMS": "cpu"})
        for rank in range(2)
    ]  # fmt: skip
    told = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    assert told == ["True True jax.distributed\n"] * 2
