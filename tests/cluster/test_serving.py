"""What a server that was started by hand says of the other nodes, and when it gives up."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.cluster.serving import DRAIN, Attendance, check_peers, everybody, only_here, stop_at_end_of
from brand.errors import UsageError
from brand.node.wire.network import Closed, Opened, PeerStream
from tests.support import LIMIT_S

PEERS = ["node0:7000", "node1:7000", "node2:7000"]


def opened(node: int) -> Opened:
    return Opened(PeerStream(node, asks=True))


def closed(node: int, reason: str = "why", *, refused: bool = False) -> Closed:
    return Closed(PeerStream(node, asks=True), reason, refused)


def test_it_says_when_all_are_there_and_when_one_goes_or_is_back() -> None:
    """Once all have met, each that comes back is news; before that, only all of them."""
    attendance = Attendance(PEERS, 1)
    assert attendance.missing() == "waiting for 2 of 3 nodes: node 0 at node0:7000; node 2 at node2:7000"
    assert attendance.take(opened(0)) == ""
    assert attendance.take(opened(2)) == "all 3 nodes are connected"
    assert attendance.missing() == ""
    assert attendance.take(closed(0, "it has ended")) == "node 0 at node0:7000 is lost: it has ended"
    assert attendance.take(closed(2, "it broke")) == "node 2 at node2:7000 is lost: it broke"
    assert attendance.missing() == "waiting for 2 of 3 nodes: node 0 at node0:7000; node 2 at node2:7000"
    assert attendance.take(closed(2, "node 2 at node2:7000 cannot be reached")) == ""
    assert attendance.missing().endswith("node 0 at node0:7000; node 2 at node2:7000 cannot be reached")
    assert attendance.take(opened(0)) == "node 0 is connected again"
    assert attendance.take(opened(2)) == "all 3 nodes are connected"


def test_what_other_nodes_ask_here_does_not_count() -> None:
    """A node is there when this one can ask it."""
    attendance = Attendance(PEERS, 0)
    for node in (1, 2):
        assert attendance.take(Opened(PeerStream(node, asks=False))) == ""
    assert attendance.missing().startswith("waiting for 2 of 3 nodes")
    attendance.take(opened(1))
    attendance.take(Closed(PeerStream(1, asks=False), "why", refused=True))
    assert attendance.missing().startswith("waiting for 1 of 3 nodes")
    assert attendance.refusal is None


def test_a_disagreement_at_the_start_ends_it() -> None:
    """Nodes that met once go on: a later one is the trouble of who comes back."""
    attendance = Attendance(PEERS[:2], 0)
    attendance.take(closed(1, "not there yet"))
    assert attendance.refusal is None
    attendance.take(closed(1, "another data set", refused=True))
    assert attendance.refusal == "another data set"
    later = Attendance(PEERS[:2], 0)
    later.take(opened(1))
    later.take(closed(1, "it has ended"))
    later.take(closed(1, "another data set", refused=True))
    assert later.refusal is None
    assert "another data set" in later.missing()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30))
def test_whom_it_waits_for_are_those_that_are_not_there(events: list[tuple[int, bool]]) -> None:
    """Whatever has happened before."""
    attendance, there = Attendance([f"h:{port}" for port in range(1, 6)], 0), set[int]()
    for node, comes in events:
        said = attendance.take(opened(node) if comes else closed(node, f"node {node} is away"))
        there = there | {node} if comes else there - {node}
        missing = attendance.missing()
        assert [node for node in range(1, 5) if f"node {node} " in missing] == sorted({1, 2, 3, 4} - there)
        assert (said == everybody(5)) == (comes and len(there) == 4)
        assert bool(missing) == (len(there) < 4)


def test_of_many_only_some_are_named() -> None:
    """A line stays a line."""
    missing = Attendance([f"h:{port}" for port in range(1, 101)], 0).missing()
    assert missing.startswith("waiting for 99 of 100 nodes: node 1 at h:2; ")
    assert missing.endswith("; node 8 at h:9; 91 more")


def test_one_node_waits_for_nobody() -> None:
    """It is all there is."""
    assert Attendance(["h:1"], 0).missing() == ""
    assert everybody(1) == "this is the only node"


@pytest.mark.parametrize(
    ("peers", "node", "says"),
    [
        (["a:1", "b:1"], 2, "node 2 of 2: --peers lists all nodes in order, and the first is node 0"),
        (["a:1", "b"], 0, "'b' is not an address"),
        (["a:1", ""], 0, "'' is not an address"),
        (["a:1", "b:0"], 0, "node 1 is at b:0: give a port"),
        (["a:1", "b:1", "a:1"], 0, "nodes 0 and 2 have the same address, a:1"),
    ],
)
def test_addresses_that_cannot_be(peers: list[str], node: int, says: str) -> None:
    """The message names what is wrong."""
    with pytest.raises(UsageError, match=says):
        check_peers(peers, node)


@pytest.mark.parametrize(
    ("bind", "peers", "warned"),
    [
        ("node0:7000", ["node0:7000", "node1:7000"], True),
        ("node0:7000", ["node0:7000", "node0:7001"], False),
        ("localhost:7000", ["localhost:7000", "node1:7000"], False),
        ("127.0.0.1:7000", ["127.0.0.1:7000", "127.0.0.2:7000"], False),
        ("far:7000", ["far:7000", "node1:7000"], False),
        ("nowhere:7000", ["nowhere:7000", "node1:7000"], False),
    ],
)
def test_a_name_that_means_loopback_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, bind: str, peers: list[str], warned: bool
) -> None:
    """Debian gives a host's own name such an address: it would listen where no other host reaches it."""
    known = {"node0": ["127.0.1.1"], "far": ["127.0.1.1", "10.0.0.1"]}

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        if host == "nowhere":
            raise socket.gaierror
        return [(0, 0, 0, "", (address, port)) for address in known.get(host, [host])]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    said = only_here(bind, peers)
    assert bool(said) == warned
    if warned:
        assert said == (
            "here node0 is 127.0.1.1, which no other host reaches: list its IP address, or --bind 0.0.0.0:7000"
        )


def test_it_stops_when_a_pipe_ends() -> None:
    """What is written into it before does not matter, but for one word of the launcher."""
    stopped, drained = threading.Event(), threading.Event()
    read, write = os.pipe()
    stop_at_end_of(read, stopped.set, drained.set)
    os.write(write, b"x" * 10_000)
    assert not stopped.is_set()
    assert not drained.is_set()
    os.write(write, DRAIN)
    assert drained.wait(LIMIT_S)
    assert not stopped.is_set()
    os.close(write)
    assert stopped.wait(LIMIT_S)
    os.close(read)
