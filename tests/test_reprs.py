"""Objects with a state tell it in one line, without a secret and without their arrays."""

from __future__ import annotations

import ast
import os
import queue
import re
import selectors
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.cluster.greeting import Greeting, Nonces
from brand.cluster.peers import PeerStreams
from brand.cluster.serving import Attendance
from brand.cluster.streams import PeerLink, Streams, Unpacking
from brand.cluster.supervisor import LineBuffer
from brand.errors import DecodeError
from brand.node.client.client import Client
from brand.node.client.session import Session
from brand.node.decide.state.account import Account, Conduct
from brand.node.decide.state.epoch import Division
from brand.node.serve.clients import Clients
from brand.node.serve.executor import Executor, Readers
from brand.node.serve.lifetime import Lifetime
from brand.node.serve.troubles import Troubles
from brand.node.setup.server_spec import ServerSpec
from brand.node.wire.connection import Channel
from brand.node.wire.network import PeerStream
from brand.node.wire.numbers import ClientNumber
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.vectored import LocalFiles
from brand.testing.node import random_address, running_server
from brand.torch import BrandDataset, BrandLoader, BrandSampler
from brand.torch.data.set_source import AccessHint
from brand.torch.fetch.fetch import Replacements
from brand.torch.job.discovery import JobNodes
from brand.torch.loader.seeding import SampleSeeds
from tests.node.conftest import texts as texts

SECRET = "a token for tests only, 32 bytes"
_NODE = "client session clients connection executor lifetime troubles account"
ROOMS = ["torch/**/*.py", "cluster/*.py", *(f"node/{name}.py" for name in _NODE.split())]


def _closed(made: Any, stack: ExitStack) -> Any:
    stack.callback(made.close)
    return made


def _selector(stack: ExitStack) -> selectors.BaseSelector:
    return stack.enter_context(selectors.DefaultSelector())


def _socket(stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.socket(socket.AF_UNIX))


def _link() -> PeerLink:
    link = PeerLink(PeerStream(1, asks=True), lambda: None)
    assert link.put(b"abc")
    return link


def _replaced() -> Replacements:
    replacements = Replacements()
    for _ in range(2):
        replacements.note(1, 2, DecodeError("damaged", chunk=0))
    return replacements


GREETING = Greeting("set", 0, 2, 4096, None, "0")
EXPECTED: dict[str, tuple[Callable[[Path, str, ExitStack], object], str]] = {
    "Account": (lambda *_: Account(Division(8, 0, 2)), "Account(drawn=8 items, numbers={}, repeated=0)"),
    "Conduct": (lambda *_: Conduct([]), "Conduct(trainings=set(), fault=None)"),
    "Unpacking": (lambda *_: Unpacking(), "Unpacking(alone=False)"),
    "Nonces": (lambda *_: Nonces(), "Nonces(periods=[])"),
    "Attendance": (
        lambda *_: Attendance(["a:1", "b:2", "c:3"], 1),
        "Attendance(peers=['a:1', 'b:2', 'c:3'], missing={0: '', 2: ''}, refusal=None)",
    ),
    "LineBuffer": (lambda *_: LineBuffer(), "LineBuffer(rest=0 B)"),
    "JobNodes": (lambda *_: JobNodes("job", 1, 2), "JobNodes(name='job', node=1, nodes=2)"),
    "AccessHint": (lambda *_: AccessHint(), "AccessHint(jumps=0, single=0)"),
    "Replacements": (lambda *_: _replaced(), "Replacements(counted=1)"),
    "SampleSeeds": (lambda *_: SampleSeeds(), "SampleSeeds(seed NUMBER)"),
    "PeerLink": (lambda *_: _link(), "PeerLink(stream=PeerStream(node=1, asks=True), unsent=3, ended=False)"),
    "Streams": (lambda *a: _closed(Streams(), a[2]), "Streams(closed=False, links={}, events=[], held=0)"),
    "PeerStreams": (
        lambda *a: _closed(PeerStreams(GREETING, SECRET, "127.0.0.1:0"), a[2]),
        "PeerStreams(node=0, nodes=2, address='127.0.0.1:NUMBER', "
        "streams=Streams(closed=False, links={}, events=[], held=0))",
    ),
    "Executor": (
        lambda *a: _closed(Executor(2, lambda: Readers(LocalFiles(str))), a[2]),
        "Executor(depth=2, reads=0 items, plans=0 items, results=0 items)",
    ),
    "Lifetime": (
        lambda *a: _closed(Lifetime(_selector(a[2]), (os.getpid(),)), a[2]),
        "Lifetime(owners={NUMBER: NUMBER}, left_s=None)",
    ),
    "Clients": (
        lambda *a: _closed(Clients(random_address(), _selector(a[2]), lambda *_: None, lambda _: None), a[2]),
        "Clients(channels={}, numbers=0)",
    ),
    "Channel": (
        lambda *a: Channel(ClientNumber(7), _socket(a[2])),
        "Channel(number=7, greeted=False, closing=False, inbox=0 B, outbox=0 B)",
    ),
    "Troubles": (
        lambda *_: Troubles(str, lambda _: 0, 8),
        "Troubles(counted=0, told={})",
    ),
    "Session": (
        lambda *a: _closed(Session(a[1], StoredDataSet(a[0]).id, os.getpid()), a[2]),
        "Session(address='ADDRESS', alive=True, numbers={}, server=ServerFacts(share=1, nodes=1, remote_share=0, "
        f"listens_at=None, joined=False, node=0, process={os.getpid():,}))",
    ),
    "BrandSampler": (
        lambda *a: BrandSampler(BrandDataset(a[0], server=a[1]), seed=3),
        "BrandSampler('PATH', seed=3, next epoch 0 from 0)",
    ),
    "Positions": (lambda *a: iter(BrandSampler(BrandDataset(a[0], server=a[1]))), "Positions(not begun)"),
    "BrandLoader": (
        lambda *a: BrandLoader(BrandDataset(a[0], server=a[1]), 16),
        "BrandLoader(BrandDataset('PATH', 1,200 samples, NUMBER chunks of NUMBER, {number: int, text: str}), 16, "
        "sampler=BrandSampler('PATH', seed=0, next epoch 0 from 0), 0 iterations begun)",
    ),
    "Client": (
        lambda *a: Client(ServerSpec(str(a[0]), a[1]), "id", 1.0, "training", attach=True),
        "Client(path='PATH', address='ADDRESS', run='training', idle=[])",
    ),
    "ServerResolver": (lambda *a: BrandDataset(a[0], server=a[1])._source.port.resolver, "ServerResolver(not settled)"),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_object_tells_its_state_in_a_line(texts: Path, name: str) -> None:
    """What changes from run to run aside: numbers of processes, ports and the seed of torch."""
    make, expected = EXPECTED[name]
    with ExitStack() as stack:
        server = stack.enter_context(running_server(texts, memory=1.0))
        told = repr(make(texts, server.address, stack))
    told = told.replace(server.address, "ADDRESS").replace(str(texts), "PATH")
    assert re.fullmatch(re.escape(expected).replace("NUMBER", "[0-9]+"), told), told
    assert SECRET not in told


class _Shown(Reprs, shows="name _many _queue _rows _flag _late data.count"):
    """Fields of each kind; `_late` is not set."""

    def __init__(self) -> None:
        self.name, self._many, self._flag, self._rows = "a", list(range(12_345)), True, np.zeros((7, 2))
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.data = range(3)


def test_a_class_names_the_fields_that_are_shown() -> None:
    """Long collections by their length; a field that is not set is left out."""
    shown = repr(_Shown())
    assert shown.startswith("_Shown(name='a', many=12,345 items, queue=0 items, rows=7 items, flag=True, count=<")


def test_every_class_with_a_state_has_a_repr(repository: Path) -> None:
    """Of the rooms where a state lives; dataclasses have theirs."""
    silent = []
    for path in sorted(path for room in ROOMS for path in (repository / "brand").glob(room)):
        telling = {"Reprs"}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                inherited = telling & set(map(ast.unparse, node.bases))
                telling |= {node.name} if "__repr__" in methods or inherited else set()
                if "__init__" in methods and node.name not in telling:
                    silent.append(f"{path.name}: {node.name}")
    assert silent == []
