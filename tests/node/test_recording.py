"""A log of decisions, and the same decisions once more."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import UsageError
from brand.node.decide.stimuli import ClientOrders, ClientReleases
from brand.node.serve.recording import Recorder, replay
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire.drawing import Announcement
from brand.node.wire.numbers import ClientNumber
from brand.storage.dataset.dataset import StoredDataSet
from brand.testing.node import attached, random_address, running
from tests.made_orders import order_of
from tests.node.world import World
from tests.several_nodes.world import Walk

ORDER: dict[str, Any] = {"group_chunks": 3, "stripe": 4, "seed": 1}


def recorded(world: World, path: Path, **more: Any) -> None:
    """Log what a world decides from now on; it has decided nothing yet."""
    world.recorder = Recorder(path, world.turn, **more)


def alone(path: Path, **more: Any) -> World:
    """A node alone that draws half an epoch, recorded."""
    world = World([96] * 240, 8, 81)
    recorded(world, path, **more)
    run = world.register(1, **ORDER)
    world.begin(1, run, 0)
    world.quiet()
    for first in range(0, 120, 5):
        assert world.draw(1, run, 0, range(first, first + 5))
        world.settle()
    with pytest.raises(UsageError):
        world.tell(ClientReleases(ClientNumber(1), 9999, checked=True))
    world.leave(1)
    assert world.recorder is not None
    world.recorder.close()
    return world


@pytest.mark.parametrize(("seed", "sharing"), [*((seed, False) for seed in range(6)), (1, True), (2, True), (7, True)])
def test_a_walk_is_replayed_to_the_same_instructions(seed: int, sharing: bool, tmp_path: Path) -> None:
    """Several nodes, streams that end, reads that fail, ranks that leave: every decision of every node."""
    walk = Walk(seed, sharing=sharing)
    walk.restarts = 0.0  # a new server would have a log of its own
    fresh = [World(w.sizes, w.chunk_size, w.pages, w.depth, w.members, w.remote_pages) for w in walk.cluster.worlds]
    for node, world in enumerate(walk.cluster.worlds):
        # A run was registered before the walk began; the log must know it, too.
        recorded(world, tmp_path / f"{node}")
    for rank in walk.cluster.ranks:
        rank.register()
    walk.cluster.join()
    for _ in range(250):
        walk.step()
    walk.cluster.settle()
    for node, world in enumerate(walk.cluster.worlds):
        assert world.recorder is not None
        world.recorder.close()
        entries = replay(tmp_path / f"{node}", fresh[node].index, world.pages_of)
        assert entries == len((tmp_path / f"{node}").read_text().splitlines()) - 1 > 50


def test_orders_that_grow_are_replayed(tmp_path: Path) -> None:
    """What jobs draw depends on when each of them draws, and what a new server learns of a client; all is logged."""
    path = tmp_path / "log"
    world = World([96] * 120, 8, 41)
    recorded(world, path)
    runs = [world.register(client, f"job {client}", protocol="joader", seed=1) for client in (1, 2)]
    world.tell(ClientOrders(ClientNumber(1), (runs[0], 0), 0, np.arange(9, dtype=np.int32), 4, 0))
    world.begin(2, runs[1], 0)
    for first in range(0, 120, 6):
        for client, run in zip((1, 2), runs, strict=True):
            assert world.draw(client, run, 0, range(first, first + 6))
        world.settle()
    assert world.recorder is not None
    world.recorder.close()
    assert replay(path, world.index, world.pages_of) > 50


def test_a_decision_that_differs_is_named(tmp_path: Path) -> None:
    """The line of the log, and what follows now. What was refused is refused again."""
    path = tmp_path / "log"
    world = alone(path)
    assert replay(path, world.index, world.pages_of) > 50
    lines = path.read_text().splitlines()
    assert any(json.loads(line).get("raises") == "UsageError" for line in lines)
    at = next(n for n, line in enumerate(lines) if json.loads(line).get("is") == "ClientDraws")
    changed = json.loads(lines[at])
    changed["client"] += 1
    path.write_text("\n".join([*lines[:at], json.dumps(changed), *lines[at + 1 :]]))
    with pytest.raises(UsageError, match=rf"log, line {at + 1} \(ClientDraws\)"):
        replay(path, world.index, world.pages_of)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"version": 99, "samples": 240}',
        '{"version": 1, "samples": 240}',
        '{"version": 2, "samples": 1}',
    ],
)
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    """Nothing, garbage, another version, the one before, another data set."""
    world, path = World([96] * 240, 8, 81), tmp_path / "log"
    path.write_text(text)
    with pytest.raises(UsageError):
        replay(path, world.index, world.pages_of)


def test_a_record_has_a_largest_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It ends there with a warning, and what it holds is replayed."""
    path = tmp_path / "log"
    with caplog.at_level(logging.WARNING):
        world = alone(path, most_bytes=20_000)
    assert path.stat().st_size <= 20_000
    assert caplog.text.count("ends here: it has reached its limit of 20,000 bytes") == 1
    assert replay(path, world.index, world.pages_of) > 5


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    """The file is named, and why."""
    with pytest.raises(UsageError, match="nowhere/log cannot be written: No such file"):
        Recorder(tmp_path / "nowhere" / "log", World([96], 8, 81).turn)


def test_a_server_records_and_is_replayed(texts: Path, tmp_path: Path) -> None:
    """A real server, storage and client; `python -m tests.tools.replay` decides the same."""
    record = tmp_path / "record"
    server = NodeServer(ServerSpec(texts, random_address(), memory=0.5, record=record))
    with running(str(texts), server) as found:
        client = attached(found, "run")
        order = order_of(texts)
        client.begin(order, 0, Announcement(0))
        for first in range(0, 200, 50):
            drawn = client.draw(order, 0, np.arange(first, first + 50), owner=os.getpid())
            assert sum(len(part.places) for part in drawn) == 50
        client.close()
    assert len(StoredDataSet(texts)) >= 200
    command = [sys.executable, "-m", "tests.tools.replay", str(record), str(texts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "the same decisions" in done.stdout


def test_an_entry_that_is_none_is_named(tmp_path: Path) -> None:
    """A line that was cut or changed: an error with its number, and no traceback."""
    path = tmp_path / "log"
    world = alone(path)
    lines = path.read_text().splitlines()
    for wrong in (
        "{}",
        '{"is": "ReadEnded", "at": 1.0, "read": 10000, "failed": [], "left": [], "chunks": [], "seconds": []}',
        '{"is": "Nothing", "at": 1.0}',
    ):
        path.write_text("\n".join([lines[0], wrong]))
        with pytest.raises(UsageError, match="log, line 2, is not an entry"):
            replay(path, world.index, world.pages_of)
