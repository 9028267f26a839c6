"""How a server's process is set up, whatever starts it; and that constructors leave the process that they run in."""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from brand.errors import ServerError
from brand.node.client.connector import look_at
from brand.node.setup.server_spec import Member, ServerSpec
from tests.support import LIMIT_S, wait_until

_FACTS = """
import ctypes, json, os, sys

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks a b c d e f".split()]

libc.mallinfo.restype = Mallinfo

def own_mapping(size):  # whether a block of this size is mapped by itself, and so unmapped as soon as it is freed
    before = libc.mallinfo().hblks
    libc.malloc(size)  # not freed: glibc learns from what is freed
    return libc.mallinfo().hblks > before

def facts():
    return {"switch_s": sys.getswitchinterval(), "mapped": [own_mapping(size << 20) for size in (8, 64)]}
"""
_SERVER = (
    _FACTS
    + """
import importlib, signal

def tell(*_):
    with open(target + ".part", "w") as file:
        json.dump(facts(), file)
    os.rename(target + ".part", target)

module, target = sys.argv[1:3]
sys.argv[1:3] = []
signal.signal(signal.SIGPROF, tell)
importlib.import_module(module).main()
"""
)
_GLIBC = platform.libc_ver()[0] == "glibc"
pytestmark = [
    pytest.mark.skipif(not _GLIBC, reason="malloc is that of glibc"),
    pytest.mark.usefixtures("real_start"),
]
_UNTUNED = {"switch_s": 0.005, "mapped": [True, True]}
TUNED = {"switch_s": 0.0005, "mapped": [False, True]}


def _listens(address: str) -> bool:
    try:
        look_at(address)
    except ServerError:
        return False
    return True


def facts_of_server(data_set: Path, tmp_path: Path, way: str) -> object:
    """How the process of a server is set up that starts in this way."""
    address, target = f"unix:@brand-tuning-{secrets.token_hex(8)}", tmp_path / "facts.json"
    said = b""
    arguments: list[str] = []
    if way == "brand.cli.main":
        arguments = ["serve", str(data_set), "--address", address]
    else:
        member = Member(0, 2, secrets.token_hex(16)) if way == "brand.cluster.process" else None
        said = ServerSpec(str(data_set), address, 1.0, (os.getpid(),), member).to_json().encode()
    command = [sys.executable, "-c", _SERVER, way, str(target), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        assert started.stdin is not None
        started.stdin.write(said)
        started.stdin.close()
        wait_until(lambda: _listens(address), "a server listens")
        process = look_at(address)["process"]
        try:
            os.kill(process, signal.SIGPROF)
            wait_until(target.exists, "the server tells its facts")
        finally:
            os.kill(process, signal.SIGTERM)
            started.wait(LIMIT_S)
    return json.loads(target.read_text())


@pytest.mark.parametrize("way", ["brand.cli.main", "brand.node.serve.process", "brand.cluster.process"])
def test_every_server_process_is_tuned_the_same(texts: Path, tmp_path: Path, way: str) -> None:
    """Started by hand, by a training, or by a training on several nodes: quick switches, and one malloc policy."""
    assert facts_of_server(texts, tmp_path, way) == TUNED


_MAKES = """
before = facts()
from brand.cluster.greeting import Greeting
from brand.cluster.peers import PeerStreams
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec

peers = PeerStreams(Greeting("set", 0, 2, 4096, None, "0"), "secret" * 8, "127.0.0.1:0")
server = NodeServer(ServerSpec(sys.argv[1], sys.argv[2]))
print(json.dumps([before, facts()]), flush=True)
os._exit(0)
"""


def test_making_a_server_leaves_its_process_as_it_is(texts: Path) -> None:
    """Constructors set no policy of the whole process: a training or a test may hold a server."""
    command = [sys.executable, "-c", _FACTS + _MAKES, str(texts), f"unix:@brand-tuning-{secrets.token_hex(8)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert json.loads(done.stdout) == [_UNTUNED, _UNTUNED]
