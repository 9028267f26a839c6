"""A cluster of Slurm with two nodes on this machine, if its daemons are installed (Debian: `slurm-wlm`)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import LIMIT_S, free_port, wait_until

_DAEMONS: Final = ("slurmctld", "slurmd")
_CONF: Final = """
ClusterName=brand
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=1
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
NodeName=node[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{second} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=node[0-1] Default=YES State=UP
"""


class Slurm:
    """Runs its commands."""

    def __init__(self, folder: Path) -> None:
        self.conf = folder / "slurm.conf"

    def __call__(self, *command: object, **variables: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(
            list(map(str, command)),
            env=os.environ | variables | {"SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def job(self, number: str, name: str) -> str:
        """What `scontrol` says about a job."""
        said = self("scontrol", "--oneliner", "show", "job", number)
        return next((each.partition("=")[2] for each in said.split() if each.startswith(f"{name}=")), "")


def _ports() -> tuple[int, int]:
    """Two neighbouring ports that nobody uses just now."""
    while True:
        first = free_port()
        try:
            with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", first + 1)):
                return first, first + 1
        except (OSError, OverflowError):
            continue


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """A cluster for the length of a block. Skips the test if Slurm is not installed, or its user is not root."""
    if os.getuid() or not all(map(shutil.which, _DAEMONS)):
        pytest.skip("needs the daemons of Slurm (Debian: apt-get install slurm-wlm), and root")
    (folder / "state").mkdir()
    first, second = _ports()
    host, cluster = socket.gethostname(), Slurm(folder)
    cluster.conf.write_text(_CONF.format(host=host, port=free_port(), folder=folder, first=first, second=second))
    commands: list[list[str]] = [["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", f"node{n}"] for n in range(2))]
    more: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    more["env"] = os.environ | {"SLURM_CONF": str(cluster.conf)}
    daemons = [subprocess.Popen(command, **more) for command in commands]

    def idle() -> bool:
        command = ["sinfo", "--noheader", "--format", "%T %D"]
        done = subprocess.run(command, env=more["env"], capture_output=True, text=True, check=False)
        return done.stdout.strip() == "idle 2"

    try:
        wait_until(idle, "both nodes are there")
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(LIMIT_S)
