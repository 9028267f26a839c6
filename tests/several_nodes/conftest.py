"""The texts of the data server's tests, whole and as shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.node.decide.draws import draws
from brand.node.decide.epochs import epochs
from brand.node.decide.peers import peering, receiving
from brand.orders.base.owners import owner_of_chunk
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.partition import partition
from tests.node.conftest import texts as texts
from tests.support import LIMIT_S


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, no node asks for a sample or gives up on another node because something is slow."""
    monkeypatch.setattr(receiving, "HURRY_S", LIMIT_S)
    monkeypatch.setattr(epochs, "RANKS_S", LIMIT_S)
    for module in (draws, peering):
        monkeypatch.setattr(module, "LONGEST_WAIT_S", LIMIT_S)
    for module in (peering, receiving):
        monkeypatch.setattr(module, "SILENCE_S", LIMIT_S)


@pytest.fixture(scope="session")
def shares(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The texts on the disks of three nodes."""
    outs = [tmp_path_factory.mktemp("shares") / f"node-{node}" for node in range(3)]
    partition(texts, outs, owner_of_chunk(StoredDataSet(texts).header.chunks, 4, 3).astype(np.int64), 4)
    return outs
