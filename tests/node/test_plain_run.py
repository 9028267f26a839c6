"""A plain run on one node imports no feature that is off: neither in the training process nor in its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import brand
from tests.support import LIMIT_S, wait_until

SEVERAL_NODES: Final = (
    "brand.cluster",
    "brand.node.decide.peers.sending",
    "brand.node.decide.peers.announcements",
    "brand.node.decide.peers.peering",
    "brand.node.decide.peers.peers",
    "brand.node.decide.peers.receiving",
    "brand.node.serve.exchange",
    "grpc",
)
JOBS_THAT_SHARE: Final = (
    "brand.node.decide.sharing.job_sharing",
    "brand.node.decide.sharing.join_messages",
    "brand.node.decide.sharing.consensus",
    "brand.node.decide.sharing.joins",
)
ONLINE_ORDERS: Final = (
    "brand.node.client.orders",
    "brand.node.decide.online.online_orders",
    "brand.node.decide.online.rounds",
    "brand.orders.joader.growing",
    "brand.orders.joader.tree",
)
SERVER_SIDE_DECODING: Final = (
    "brand.node.decide.decoding.ahead",
    "brand.node.decide.decoding.allotment",
    "brand.node.decide.decoding.queues",
    "brand.node.decide.decoding.workers",
    "brand.node.decide.decoding.server_decoding",
    "brand.node.decide.decoding.specs",
    "brand.node.memory.decoded",
    "brand.node.serve.decode_worker",
    "brand.node.serve.decode_workers",
    "brand.node.setup.decoding",
)
CACHE_FOLDERS: Final = ("brand.node.decide.reads.sources",)
RECORDING: Final = ("brand.node.serve.recording",)
FEATURES: Final = {*SEVERAL_NODES, *JOBS_THAT_SHARE, *ONLINE_ORDERS, *SERVER_SIDE_DECODING, *CACHE_FOLDERS, *RECORDING}
SERVER: Final = "brand.node.decide.node_state"

TELL: Final = """
import atexit, os, sys

def tell():
    path = os.path.join(os.environ["MODULES_OF"], str(os.getpid()))
    with open(path + ".part", "w") as file:
        file.write("\\n".join(sys.modules))
    os.rename(path + ".part", path)

atexit.register(tell)
"""
"""Has each process write the names of its modules to a file when it ends."""

TRAINING: Final = """
import sys
from brand.orders.baselines import Joader
from torch.utils.data import DataLoader
from brand.torch import BrandDataset, BrandSampler

dataset = BrandDataset(sys.argv[1], memory=1 << 20, order=Joader() if sys.argv[2:] else "stripes")
sampler = BrandSampler(dataset, seed=1)
drawn = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    drawn += sum(len(batch) for batch in DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=list))
print(drawn)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than memory holds, so that the server reads ahead."""
    target = tmp_path_factory.mktemp("plain") / "small.brand"
    samples = [{"data": bytes([number % 251]) * 10_000} for number in range(200)]
    brand.pack(samples, target, {"data": "bytes"}, chunk_size=16, compression="none", jobs=1)
    return target


def modules_of(data: Path, folder: Path, *joader: str) -> dict[str, set[str]]:
    """The modules of a training process and of its server, when they have ended; with any `joader`, of such a job."""
    (folder / "modules").mkdir()
    (folder / "sitecustomize.py").write_text(TELL)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = subprocess.run(
        [sys.executable, "-c", TRAINING, str(data), *joader],
        env=os.environ | {"PYTHONPATH": path, "MODULES_OF": str(folder / "modules")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert told.stdout == "400\n", told.stderr
    found: dict[str, set[str]] = {}

    def both() -> bool:
        for file in (folder / "modules").iterdir():
            if not file.name.endswith(".part"):
                modules = set(file.read_text().split("\n"))
                if SERVER in modules or "brand.torch" in modules:
                    found["server" if SERVER in modules else "training"] = modules
        return len(found) == 2

    wait_until(both, "both processes have told their modules")
    return found


@pytest.mark.slow
def test_a_plain_run_imports_no_feature(small: Path, tmp_path: Path) -> None:
    """The training process draws two epochs by the server that it has started."""
    found = modules_of(small, tmp_path)
    assert {who: sorted(FEATURES & modules) for who, modules in found.items()} == {"server": [], "training": []}


@pytest.mark.slow
def test_a_feature_that_is_on_is_imported(small: Path, tmp_path: Path) -> None:
    """Then the names above are those of modules: no test of absence passes by a misprint."""
    found = modules_of(small, tmp_path, "joader")
    elsewhere = {"brand.node.client.orders", "brand.node.decide.sharing.join_messages"}
    assert {*JOBS_THAT_SHARE, *ONLINE_ORDERS} - elsewhere <= found["server"]
    assert "brand.node.client.orders" in found["training"]
    assert not {*SEVERAL_NODES, *SERVER_SIDE_DECODING} & found["server"]


def test_a_server_that_decodes_consults_no_allotment_by_default() -> None:
    """Not even its module is imported."""
    code = (
        "import sys\n"
        "from brand.node.decide.decoding.server_decoding import _allots\n"
        "print(_allots('least'), 'brand.node.decide.decoding.allotment' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert told.stdout == "None False\n", told.stderr


def test_the_names_of_the_features_are_those_of_modules() -> None:
    """A module that has moved is not looked for at its old place."""
    root = Path(brand.__file__).parents[1]
    for name in FEATURES - {"grpc"}:
        path = root / name.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name
