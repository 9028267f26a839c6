"""Where a process may have few open files: what can go on goes on, all else is a clear error within seconds."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from brand import pack
from brand.errors import ServerError
from brand.node.client.session import Session
from brand.node.wire import messages
from brand.node.wire.messages import Kind
from brand.storage.io.files import most_open
from tests import places
from tests.support import LIMIT_S, wait_until

_EPOCH = """
import resource, sys
import brand.torch
from brand import BrandDataset, BrandLoader
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
data_set = BrandDataset(sys.argv[1], fields=("n",), memory=0.3)
try:
    drawn = [n for numbers, in BrandLoader(data_set, 16) for n in numbers.tolist()]
except brand.BrandError as error:
    print(type(error).__name__, error)
else:
    print(sorted(drawn) == list(range(len(data_set))), data_set.stats()["failed_reads"])
"""
_SERVE = """
import resource, sys
import brand.cli.main, brand.cli.serve
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2)
brand.cli.main.main()
"""


@pytest.fixture(scope="module")
def many_chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More chunks than there are descriptors."""
    target = tmp_path_factory.mktemp("many") / "set"
    pack([{"n": n} for n in range(1600)], target, {"n": "int"}, chunk_size=4, jobs=1)
    return target


def connected(client: Session) -> int:
    """How many clients the server has."""
    return int(messages.unpack_json(client.request(messages.frame(Kind.STATS), Kind.STATS))["clients"])


def run(code: str, *args: object) -> str:
    """Output of a process, on both streams together. No coverage is measured there: that takes descriptors, too."""
    command = [sys.executable, "-c", code, *map(str, args)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False, env=environment
    )
    return done.stdout.decode()


_AT_THE_LIMIT = """
import os, resource, sys
import brand
uses = {
    "open": lambda: brand.open(sys.argv[1]).sample(3),
    "direct": lambda: brand.BrandDataset(sys.argv[1])[1],
    "fetch": lambda: list(brand.BrandLoader(brand.BrandDataset(sys.argv[1], memory=0.3), 16)),
}
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
uses["fetch"]()
for name, use in uses.items():
    for free in range(16):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + free, hard))
        try:
            use()
        except brand.BrandError as error:
            if "raise the limit, `ulimit -n" not in str(error):
                print(name, free, error)
        except Exception as error:
            print(name, free, repr(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
"""
_MANY_SETS = """
import resource, sys
import brand
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
kept = []
for number in range(400):
    try:
        kept.append(brand.open(sys.argv[1]))
        kept[-1].sample(number)
    except brand.BrandError as error:
        print("raise the limit, `ulimit -n`" in str(error), len(kept) >= 200)
        break
"""


def test_wherever_the_descriptors_end_the_error_says_so(many_chunks: Path) -> None:
    """With 0 to 15 free ones, each use works, or fails with the advice to raise the limit; none with a bare OSError."""
    assert [line for line in run(_AT_THE_LIMIT, many_chunks).splitlines() if "brand server: " not in line] == []


def test_two_hundred_data_sets_fit_the_usual_limit(many_chunks: Path) -> None:
    """More of them are refused with the advice."""
    assert run(_MANY_SETS, many_chunks) == "True True\n"


_MANY_THREADS = """
import os, resource, sys
from brand import BrandDataset, BrandLoader
from brand.testing.node import running_server
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
with running_server(sys.argv[1], memory=0.3, depth=64) as server:
    loader = BrandLoader(BrandDataset(sys.argv[1], fields=("n",), server=server.address), 64)
    for epoch in range(6):
        count = sum(len(numbers) for (numbers,) in loader)
        print(count, len(os.listdir("/proc/self/fd")) < 500)
"""


def test_many_threads_share_the_limit(many_chunks: Path) -> None:
    """A server that reads with 64 threads, as from a store, leaves descriptors to clients for as long as it runs."""
    assert run(_MANY_THREADS, many_chunks) == 6 * "1600 True\n"


@pytest.mark.slow
def test_an_epoch_needs_few_descriptors(many_chunks: Path) -> None:
    """At `ulimit -n 64` an epoch over 400 chunks delivers every sample, and no read fails."""
    assert run(_EPOCH, many_chunks, 64) == "True 0\n"


@pytest.mark.slow
@places.turns("limit")
@pytest.mark.parametrize("limit", [12, 24])
def test_too_few_descriptors_are_a_clear_error(many_chunks: Path, limit: int) -> None:
    """The training says that it is the limit of open files, how low it is, and how it is raised; or it just works."""
    said = run(_EPOCH, many_chunks, limit)
    assert f"no more than {limit} open files: raise the limit, `ulimit -n 1024`" in said or said == "True 0\n"
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_server_without_a_descriptor_for_a_client_says_so(many_chunks: Path) -> None:
    """A client that cannot be taken is told why at once, and those that are connected are served on."""
    address = f"unix:@brand-few-{os.getpid()}"
    command = [sys.executable, "-c", _SERVE, "64", "serve", str(many_chunks), "--address", address, "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline().strip() == address
        clients: list[Session] = []
        try:
            with pytest.raises(ServerError, match="no more than 64 open files: raise the limit"):
                clients.extend(Session(address, None, None) for _ in range(64))
            assert len(clients) > 10
            assert connected(clients[0]) == len(clients)
            clients.pop().close()
            wait_until(lambda: connected(clients[0]) == len(clients), "the server has noticed that a client is gone")
            clients.append(Session(address, None, None))
        finally:
            for client in clients:
                client.close()
            server.communicate(timeout=LIMIT_S)
    assert server.returncode == 0


def test_fewer_files_are_kept_open_where_few_may_be() -> None:
    """In proportion to the usual limit; one at least."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert (most_open(32), most_open(256), most_open(1)) == (16, 128, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most_open(256) == 256


def test_files_that_are_open_make_room_for_others(tmp_path: Path) -> None:
    """With no descriptor left in the process, the next file takes the place of those that were read before it."""
    for name in "abc":
        (tmp_path / name).write_text(name)
    code = (
        "import os, resource, sys\n"
        "from brand.storage.io.files import OpenFiles\n"
        "files = OpenFiles(8, lambda number: sys.argv[1] + '/' + 'abc'[number])\n"
        "first = files.descriptor(0)\n"
        "limit = first + 1\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "print(os.read(files.descriptor(1), 1).decode())\n"
        "files.close()\n"
        "held = os.dup(0)\n"
        "try:\n"
        "    files.descriptor(2)\n"
        "except OSError as error:\n"
        "    print(error.strerror, os.path.basename(error.filename), 'limit', limit)\n"
    )
    first, second = run(code, tmp_path).splitlines()
    assert first == "b"
    limit = second.rpartition(" ")[2]
    assert second.startswith(f"this process may have no more than {limit} open files: raise the limit")
    assert " c limit " in second
