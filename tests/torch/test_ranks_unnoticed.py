"""Ranks that nothing connects, ranks whose job begins late, and evaluation on one rank: the log says so, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.errors import UsageError
from brand.torch.job.ranks import find_rank, half_said, is_alone
from tests.support import LIMIT_S, free_port
from tests.torch.test_rank_log import KNOWN, SEEN, run
from tests.torch.training import two_ranks

TWIN = "has the same command, and gets all samples of"
CURE = "if not, pass num_replicas=1, rank=0"
PLAIN = {name: value for name, value in os.environ.items() if name not in KNOWN}


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    brand.pack([{"n": n} for n in range(80)], tmp_path / "n.brand", {"n": "int"}, chunk_size=4)
    return tmp_path / "n.brand"


TWINS = """
import json, sys
from brand.torch import BrandDataset, BrandSampler

given = json.loads(sys.argv[2])
order = given.pop("order", "stripes")
sampler = BrandSampler(BrandDataset(sys.argv[1], order=order), **given)
list(sampler)
print("ready", flush=True)
sys.stdin.read()
"""


def pair(path: Path, given: dict[str, Any], other: dict[str, Any] | None = None) -> list[str]:
    """What two processes of one command say, the second of which begins when the first has begun."""
    both, said = [], []
    for each in (given, given if other is None else other):
        command = [sys.executable, "-W", "error", "-c", TWINS, str(path), json.dumps(each)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, text=True, env=PLAIN, stdin=pipe, stdout=pipe, stderr=pipe)
        both.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        _, errors = process.communicate("", timeout=LIMIT_S)
        said.append(errors)
    return said


def test_ranks_of_an_unknown_launcher(numbers: Path) -> None:
    """The second of two processes that nothing tells apart says which process is its twin; the cure helps."""
    first, second = pair(numbers, {})
    assert first == ""
    assert second.count(TWIN) == 1
    assert f"all samples of {numbers} in the same order" in second
    assert CURE in second
    assert pair(numbers, {"num_replicas": 1, "rank": 0}) == ["", ""]


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ({"seed": 1}, {"seed": 2}),
        ({"order": "shared"}, None),
    ],
)
def test_jobs_that_are_no_ranks(given: dict[str, Any], other: dict[str, Any] | None, numbers: Path) -> None:
    """Trials with other arguments, and jobs that share an order on purpose."""
    assert pair(numbers, given, other) == ["", ""]


SPAWNED = """
import sys
from pathlib import Path
import torch.multiprocessing as mp
from brand.torch import BrandDataset, BrandSampler

def train(rank, path, barrier):
    list(BrandSampler(BrandDataset(path)))
    barrier.wait()

if __name__ == "__main__":
    context = mp.get_context(sys.argv[2])
    barrier = context.Barrier(2)
    started = [context.Process(target=train, args=(rank, sys.argv[1], barrier)) for rank in range(2)]
    [process.start() for process in started]
    [process.join() for process in started]
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_of_multiprocessing(method: str, numbers: Path, tmp_path: Path) -> None:
    """Ranks without a process group, whose arguments differ with spawn; each pair says it once."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    command = [sys.executable, str(tmp_path / "spawned.py"), str(numbers), method]
    done = subprocess.run(command, env=PLAIN, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stderr.count(TWIN) == 1, done.stderr


def test_one_process_has_no_twin(numbers: Path) -> None:
    """Two samplers of one process, and the next run of the same command."""
    code = SEEN.replace("import json, sys", "import json, sys\nimport brand.torch")
    command = [sys.executable, "-W", "error", "-c", code, str(numbers), "DataLoader", "{}"]
    for _ in range(2):
        done = subprocess.run(command, env=PLAIN, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "1"}, "RANK=1 is set, and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "WORLD_SIZE=2 is set, and RANK is not"),
    ],
)
def test_half_of_the_variables(variables: dict[str, str], expected: str, numbers: Path) -> None:
    """All samples, as no rank is known, and a warning."""
    seen, said = run(variables, numbers)
    assert sorted(seen) == list(range(80))
    assert said.count(f"this process gets all samples of {numbers}, but {expected}") == 1
    assert run(variables, numbers, num_replicas=1, rank=0)[1] == ""
    assert half_said({"WORLD_SIZE": "1"}) == half_said({}) == half_said({"RANK": "0", "WORLD_SIZE": "2"}) == ""


def test_a_rank_that_cannot_be(numbers: Path) -> None:
    """The error names the variable."""
    with pytest.raises(UsageError, match="rank 5 of 2, from RANK: ranks are 0 to"):
        find_rank(None, None, {"RANK": "5", "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="RANK='x', WORLD_SIZE='2', which are no numbers"):
        find_rank(None, None, {"RANK": "x", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (0, 1)),  # python in a script of sbatch
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (0, 1)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "RANK": "13", "WORLD_SIZE": "16"}, (13, 16)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}, (1, 4)),
        ({"JSM_NAMESPACE_RANK": "2", "JSM_NAMESPACE_SIZE": "6"}, (2, 6)),
        ({"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "3"}, (2, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "5"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 1)),
    ],
)  # fmt: skip
def test_other_environments(variables: dict[str, str], expected: tuple[int, int]) -> None:
    """Rank and number of ranks; `torchrun` inside `srun` counts."""
    assert find_rank(None, None, variables) == expected
    assert is_alone(None, None, variables) == (expected[1] == 1)


LATE = """
import sys
import torch.distributed as dist
from brand.torch import BrandDataset, BrandSampler

rank, port, path, early = sys.argv[1:]
data = BrandDataset(path)
given = {"num_replicas": 1, "rank": 0} if early == "cure" else {}
print(len(list(BrandSampler(data, **given))))
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2)
for _ in range(2):
    print(len(list(BrandSampler(data))))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("early", ["none", "cure"])
def test_a_group_after_the_first_fetch(early: str, numbers: Path) -> None:
    """The ranks have seen the same samples before; it is said once. The cure helps."""
    port = free_port()
    ranks = [
        subprocess.Popen([sys.executable, "-c", LATE, str(rank), str(port), str(numbers), early], env=PLAIN, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]  # fmt: skip
    for rank, process in enumerate(ranks):
        out, said = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out) == (0, "80\n40\n40\n"), said
        told = f"before it was rank {rank} of 2, from torch.distributed"
        assert said.count(told) == (early == "none"), said


AGAIN = """
import os, sys
import torch.distributed as dist
from brand.torch import BrandDataset, BrandSampler

data = BrandDataset(sys.argv[1])
dist.init_process_group("gloo")
print(len(list(BrandSampler(data))))
dist.barrier()
dist.destroy_process_group()
if sys.argv[2] == "smaller":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.{os.environ['RANK']}", rank=0, world_size=1)
print(len(list(BrandSampler(data))))
"""


@pytest.mark.parametrize(("how", "samples"), [("smaller", 80), ("destroyed", 40)])
def test_a_group_that_has_ended(how: str, samples: int, numbers: Path) -> None:
    """Another group counts; without one, the variables count again, which is said although a rank was said before."""
    for status, out, said in two_ranks(AGAIN, numbers, how):
        assert (status, out) == (0, f"40\n{samples}\n"), said
        assert said.count("and there is no process group of that size") == (how == "destroyed"), said


ONCE = """
import sys
import torch.distributed as dist
from brand.torch import BrandDataset, BrandLoader, BrandSampler

dist.init_process_group("gloo")
data, given = BrandDataset(sys.argv[1]), {"num_replicas": 1, "rank": 0} if sys.argv[2] == "cure" else {}
list(BrandSampler(data))
dist.barrier()
if dist.get_rank() == 0 or sys.argv[2] == "all":
    sampler = BrandSampler(data, shuffle=False, **given)
    loader = BrandLoader(data, batch_size=8, sampler=sampler) if sys.argv[3] == "loader" else sampler
    print(sum(len(batch["n"]) if sys.argv[3] == "loader" else 1 for batch in loader))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("through", ["loader", "sampler"])
@pytest.mark.parametrize(("how", "samples"), [("rank 0", 40), ("all", 40), ("cure", 80)])
def test_a_single_evaluation_on_one_rank(how: str, samples: int, through: str, numbers: Path) -> None:
    """It gets half of the samples, which is said at its end; the cure helps."""
    (status, out, said), (_, _, other) = two_ranks(ONCE, numbers, how, through)
    assert (status, out) == (0, f"{samples}\n"), said
    assert said.count("n.brand, and none of the other 1 has begun one") == (how == "rank 0"), said
    assert "has begun one" not in other
