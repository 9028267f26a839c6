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
from brand.torch import BrandDataset, BrandLoader, BrandSampler
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


AGAIN = """
import selectors, socket, sys

def connect():
    stranger = socket.socket()
    stranger.setblocking(False)
    stranger.connect_ex((sys.argv[1], int(sys.argv[2])))
    selector.register(stranger, selectors.EVENT_READ)

selector, given_up = selectors.DefaultSelector(), 0
for _ in range(int(sys.argv[3])):
    connect()
while True:
    for key, _ in selector.select():
        try:
            ended = not key.fileobj.recv(100)
        except OSError:
            ended = True
        if ended:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            connect()
            given_up += 1
            if given_up == 1000:
                print("enough", flush=True)
"""


@pytest.mark.slow
def test_strangers_that_connect_again_each_time_they_are_given_up(photos_set: Path) -> None:
    """More than the node takes. A training on this machine starts meanwhile, and the other node joins it."""
    peers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with ExitStack() as stack:
        address, process = stack.enter_context(node(photos_set, 0, peers))
        command = [sys.executable, "-c", AGAIN, *map(str, split_address(peers[0])), "300"]
        strangers = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(strangers.kill)
        assert strangers.stdout is not None
        assert strangers.stdout.readline() == b"enough\n"
        data_set = BrandDataset(photos_set, fields=("index",), server=address)
        stack.callback(data_set._source.port.client.close)
        assert process.pid == look_at(address)["process"]
        stack.enter_context(node(photos_set, 1, peers))
        loader = BrandLoader(data_set, 8, sampler=BrandSampler(data_set, num_replicas=1, rank=0))
        assert sorted(index for (batch,) in loader for index in batch.tolist()) == list(range(len(data_set)))
        assert process.stderr is not None
        while "all 2 nodes are connected" not in process.stderr.readline():
            assert process.poll() is None
        assert strangers.poll() is None
