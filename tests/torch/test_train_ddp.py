"""`examples/train_ddp.py` is the same script on one process, on two ranks, and on two nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import LIMIT_S, free_port

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]


def run(commands: Sequence[list[str]]) -> str:
    """What commands print that run at the same time."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))
    }
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment | {"OMP_NUM_THREADS": "1"})
        for command in commands
    ]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), said
    return "\n".join(said)


@pytest.mark.parametrize(("nodes", "ranks", "locality"), [(1, 2, False), (2, 1, True)])
def test_train_ddp(repository: Path, fashion_set: Path, nodes: int, ranks: int, locality: bool) -> None:
    """Two epochs, as many batches on each rank; nodes have sent each other samples."""
    script = [str(repository / "examples" / "train_ddp.py"), str(fashion_set), str(fashion_set)]
    script += ["--batch-size=20", "--memory=0.9", *(["--locality"] * locality)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={ranks}"]
    where = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    commands = [[*torchrun, f"--node-rank={node}", *where, *script] for node in range(nodes)]
    said = run(commands)
    batches = 600 // (20 * nodes * ranks)
    expected = [f"epoch {epoch}: {batches} batches on each of {nodes * ranks} ranks" for epoch in range(2)]
    assert re.findall(r"epoch \d: \d+ batches on each of \d+ ranks", said) == expected
    assert "test accuracy 0." in said
    came = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) samples came", said)]
    assert len(came) == nodes * ranks
    assert (sum(came) > 0) == (nodes == 2), said


def test_a_mixture_on_two_nodes(repository: Path, fashion_set: Path) -> None:
    """The same script, with exact shares in every global batch."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    where = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    script = [str(repository / "examples" / "mixture.py"), str(fashion_set), str(fashion_set)]
    said = run([[*torchrun, f"--node-rank={node}", *where, *script] for node in range(2)])
    assert re.findall(r"shares \[\((\d+), (\d+)\)\]", said) == [("70", "30")] * 2
