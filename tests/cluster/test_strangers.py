"""Programs that connect to a node's port and stay silent leave descriptors for its clients and for other nodes."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from brand.cluster.options import answering
from brand.node.client.connector import look_at
from brand.node.wire.network import split_address
from tests.support import LIMIT_S, free_port

LIMIT = 1024
"""Open files of a server, as many systems have it."""
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a gRPC client sends first: its preface, and settings without a setting."""


@contextmanager
def node(data: Path, number: int, peers: list[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """One of two servers, which may have few open files; its address."""
    command = f"ulimit -n {LIMIT} && exec {sys.executable} -m brand serve {data} --memory 0.5 --node {number}"
    with subprocess.Popen(
        ["sh", "-c", f"{command} --peers {','.join(peers)}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"BRAND_TOKEN": "known to all the nodes"},
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", HTTP2], ids=["silent", "without a call"])
def test_1500_silent_connections(photos_set: Path, said: bytes) -> None:
    """A client on this machine connects at once, and the other node does once they were given up."""
    peers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        address, process = stack.enter_context(node(photos_set, 0, peers))
        strangers = []
        for _ in range(1500):
            strangers.append(stack.enter_context(socket.create_connection(split_address(peers[0]), timeout=LIMIT_S)))
            with suppress(ConnectionError):  # given up at once
                strangers[-1].sendall(said)
        for _ in range(20):
            assert look_at(address)["process"] == process.pid
            time.sleep(0.05)
        stack.enter_context(node(photos_set, 1, peers))
        assert process.stderr is not None
        while "all 2 nodes are connected" not in process.stderr.readline():
            assert process.poll() is None


def test_how_many_connections_a_node_takes() -> None:
    """All other nodes twice, and a quarter of the descriptors for strangers."""
    assert dict(answering(2, 1024))["grpc.max_allowed_incoming_connections"] == 256
    assert dict(answering(1024, 1024))["grpc.max_allowed_incoming_connections"] == 2064
    assert dict(answering(2, resource.RLIM_INFINITY))["grpc.max_allowed_incoming_connections"] == 1024
    assert dict(answering(2, 1 << 20))["grpc.max_allowed_incoming_connections"] == 1024
