"""A training under schedulers: its ranks share the samples, and after a signal, a kill or a requeue it goes on exactly.

With the mark `frameworks`, the schedulers themselves run, if they are installed (Debian: `slurm-wlm`, `openmpi-bin`,
`mpich`). Their variables and signals are imitated otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.torch import BrandDataset, BrandSampler
from tests.sandbox import PROCESS_ONE, environment, needs_namespaces
from tests.support import LIMIT_S, descendants, free_port, wait_until
from tests.torch.slurm import slurm
from tests.torch.support import planned

SAMPLES = 1200


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 numbers in chunks of 32."""
    path = tmp_path_factory.mktemp("scheduled") / "numbers.brand"
    brand.pack([{"number": n} for n in range(SAMPLES)], path, {"number": "int"}, chunk_size=32, jobs=1)
    return path


def rank_of(numbers: Path, folder: Path, library: str = "torch") -> list[str]:
    """The command of a rank."""
    return [sys.executable, "-m", "tests.torch.scheduled", str(numbers), str(folder), library]


def store() -> dict[str, str]:
    """Variables for a job's store."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}


def started(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that no signal of a scheduler reaches the tests."""
    return subprocess.Popen(command, env=environment() | variables, start_new_session=True)


def trains(folder: Path, ranks: int, *processes: subprocess.Popen[bytes]) -> list[int]:
    """Wait until all ranks train; their processes."""
    marks = [folder / f"trains.{rank}" for rank in range(ranks)]

    def ready() -> bool:
        return all(mark.exists() and mark.read_text() for mark in marks)

    wait_until(lambda: ready() or any(process.poll() is not None for process in processes), "all ranks train")
    assert ready()
    return [int(mark.read_text()) for mark in marks]


def runs(folder: Path, ranks: int, number: int) -> list[dict[str, Any]]:
    """What each rank has written down in its first run, or in the one that continues."""
    return [json.loads((folder / f"run.{rank}.{number}.json").read_text()) for rank in range(ranks)]


def check_exact(numbers: Path, run: list[dict[str, Any]]) -> None:
    """Each rank has trained its share of the order from where the run began on."""
    sampler = BrandSampler(BrandDataset(numbers, server="none", memory=0.5), seed=2, num_replicas=1, rank=0)
    epoch, position = run[0]["began"]
    for rank, said in enumerate(run):
        assert (said["rank"], said["ranks"], said["began"]) == (rank, len(run), [epoch, position])
        wanted, at, first = list[int](), epoch, position
        while len(wanted) < len(said["found"]):
            wanted += planned(numbers, sampler.order, at)[first + rank :: len(run)]
            at, first = at + 1, 0
        assert said["found"] == wanted[: len(said["found"])]


def check_continued(numbers: Path, folder: Path, ranks: int, again: int | None = None) -> None:
    """The first run ended with a state; the second one begins there and ends with its epoch."""
    first, then = runs(folder, ranks, 0), runs(folder, again or ranks, 1)
    check_exact(numbers, first)
    check_exact(numbers, then)
    trained, (epoch, position) = sum(len(said["found"]) for said in first), then[0]["began"]
    assert trained == epoch * SAMPLES + position
    assert sum(len(said["found"]) for said in then) == SAMPLES - position


def slurm_variables(rank: int, node: str) -> dict[str, str]:
    """Those of one of two tasks that `srun` starts on two nodes."""
    number = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0", "SLURMD_NODENAME": node}
    return number | {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
    }


def test_a_job_of_slurm_that_is_requeued(numbers: Path, tmp_path: Path) -> None:
    """Imitated: USR1 reaches all processes, and the job starts again at once, with its number, on other nodes."""
    address = store()
    for number in range(2):
        nodes = (f"node{2 * number}", f"node{2 * number + 1}")
        variables = [address | slurm_variables(rank, node) for rank, node in enumerate(nodes)]
        ranks = [started(rank_of(numbers, tmp_path), each) for each in variables]
        if number == 0:
            for each in trains(tmp_path, 2, *ranks):
                os.kill(each, signal.SIGUSR1)
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    check_continued(numbers, tmp_path, 2)
    assert [said["node"] for run in range(2) for said in runs(tmp_path, 2, run)] == [f"node{n}" for n in range(4)]


@pytest.mark.frameworks
def test_a_job_of_slurm_itself(numbers: Path, tmp_path: Path) -> None:
    """`sbatch --requeue --signal=USR1@...`: the script of the page requeues the job if the training is not done."""
    script = tmp_path / "job.sbatch"
    with slurm(tmp_path) as cluster:
        script.write_text(
            f"#!/bin/bash\nexport MASTER_PORT={free_port()}\n"
            f"srun {' '.join(rank_of(numbers, tmp_path))} && [ ! -e {tmp_path}/done ] && "
            "scontrol requeue $SLURM_JOB_ID\nexit 0\n"
        )
        options = ["--parsable", "--requeue", "--nodes=2", "--ntasks=2", "--time=10", "--signal=USR1@590"]
        options += ["--output", str(tmp_path / "out"), "--open-mode=append"]
        more = environment() | store()
        number = cluster("sbatch", *options, script, **more).strip()
        wait_until(
            lambda: cluster.job(number, "JobState") in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"), "it ends"
        )
        said = (tmp_path / "out").read_text()
        assert (cluster.job(number, "JobState"), cluster.job(number, "Restarts")) == ("COMPLETED", "1"), said
    check_continued(numbers, tmp_path, 2)
    first = runs(tmp_path, 2, 0)
    assert all(said["signals"] == [signal.SIGUSR1] for said in first)
    assert [(said["nodes"], said["node"]) for said in first] == [(2, "node0"), (2, "node1")]


def test_a_pod_that_is_ended(numbers: Path, tmp_path: Path) -> None:
    """Imitated: SIGTERM to process 1 of a container, and the training goes on in a container of another name."""
    for number in range(2):
        name = ("sh", "-c", f'hostname pod-{number} && exec "$@"', "sh")
        needs_namespaces((*PROCESS_ONE[:2], "--uts", *PROCESS_ONE[2:]))
        pod = started([*PROCESS_ONE[:2], "--uts", *PROCESS_ONE[2:], *name, *rank_of(numbers, tmp_path)], store())
        if number == 0:
            assert trains(tmp_path, 1, pod) == [1]
            os.kill(descendants(pod.pid)[0], signal.SIGTERM)
        assert pod.wait(LIMIT_S) == 0
    check_continued(numbers, tmp_path, 1)
    assert [runs(tmp_path, 1, run)[0]["node"] for run in range(2)] == ["pod-0", "pod-1"]


def mpirun(name: str) -> str:
    """The command of an MPI. Skips the test if that is not installed."""
    found = shutil.which(f"mpirun.{name}")
    if found is None:
        pytest.skip(f"needs {name} (Debian: apt-get install {'openmpi-bin' if name == 'openmpi' else name})")
    return found


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "options"),
    [("openmpi", ("--allow-run-as-root", "--oversubscribe")), ("mpich", ())],
    ids=["openmpi", "mpich"],
)
def test_mpirun_itself(numbers: Path, tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    """It hands SIGUSR1 to its ranks; the next `mpirun` has another number of them."""
    command = [mpirun(name), *options, "-n"]
    for number, ranks in enumerate(("2", "4")):
        job = started([*command, ranks, *rank_of(numbers, tmp_path)], store())
        if number == 0:
            trains(tmp_path, 2, job)
            job.send_signal(signal.SIGUSR1)
        assert job.wait(LIMIT_S) == 0
    check_continued(numbers, tmp_path, 2, 4)
    assert all(said["signals"] == [signal.SIGUSR1] for said in runs(tmp_path, 2, 0))


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT_S)
def test_torchrun_that_starts_its_ranks_again(numbers: Path, tmp_path: Path) -> None:
    """One rank is killed: torchrun ends the other one and starts both again, which begin with the last state."""
    # Gloo waits 3 s for the other rank to listen. On a busy machine, that may take several restarts, each of minutes.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=8"]
    torchrun += ["--monitor-interval=0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    job = started([*torchrun, *rank_of(numbers, tmp_path)[1:]], variables)
    os.kill(trains(tmp_path, 2, job)[1], signal.SIGKILL)
    assert job.wait(2 * LIMIT_S) == 0
    then = runs(tmp_path, 2, 1)
    check_exact(numbers, then)
    assert sum(len(said["found"]) for said in then) == SAMPLES - then[0]["began"][1]


@pytest.mark.frameworks
def test_processes_of_jax(numbers: Path, tmp_path: Path) -> None:
    """`jax.distributed` with two processes on the CPU; SIGUSR1 to both, and both again."""
    pytest.importorskip("jax")
    for number in range(2):
        address = store() | {"PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
        both = [started(rank_of(numbers, tmp_path, "jax"), address | {"PROCESS": str(n)}) for n in range(2)]
        if number == 0:
            for each in trains(tmp_path, 2, *both):
                os.kill(each, signal.SIGUSR1)
        assert [process.wait(LIMIT_S) for process in both] == [0, 0]
    check_continued(numbers, tmp_path, 2)
