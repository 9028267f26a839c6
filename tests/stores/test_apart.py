"""A process that forks speaks to a store through another process, which does as it would, and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.errors import StorageError, UsageError
from brand.stores.apart import StoreProcess
from tests.buckets import Bucket, bucket
from tests.support import wait_until
from tests.tools.objects import Busy, Fault, Faults

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
pytestmark = pytest.mark.slow


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
def store(there: Bucket) -> Iterator[StoreProcess]:
    with StoreProcess(there.url("set"), 3) as found:
        yield found


def test_it_does_what_a_store_does(store: StoreProcess, there: Bucket, tmp_path: Path) -> None:
    """Objects are written from memory and from files, read in whole and in part, and listed; names may be any."""
    (tmp_path / "a b\n").write_bytes(bytes(range(256)) * 400)
    store.write("chunks/ü", b"hello", new=True)
    store.write("chunks/b", tmp_path / "a b\n", new=False)
    assert store.read("chunks/ü", 5) == b"hello"
    assert b"".join(store.pieces("chunks/b", 300, 5)) == bytes(range(44, 49))
    assert sorted(each[:2] for each in store.entries("chunks")) == [("chunks/b", 102400), ("chunks/ü", 5)]
    assert list(store.entries("none")) == []
    assert store.url.host == "bucket"


def test_errors_come_back_as_they_are(store: StoreProcess, there: Bucket) -> None:
    """Their class, their reason and the URL."""
    with pytest.raises(FileNotFoundError) as told:
        store.read("none", 5)
    assert told.value.filename == there.url("set/none")
    store.write("a", b"hello", new=True)
    with pytest.raises(FileExistsError, match="exists already"):
        store.write("a", b"other", new=True)
    with pytest.raises(OSError, match="sends more than the 4 bytes"):
        store.read("a", 4)
    there.store.faults = Faults(Fault(Busy(403)))
    with pytest.raises(PermissionError):
        store.read("a", 5)
    with StoreProcess("nothing://x/y", 1) as unknown, pytest.raises(UsageError, match="nothing://x"):
        unknown.read("a", 5)
    with (
        pytest.raises(UsageError, match="must not hold a user or password"),
        StoreProcess("s3://key:secret@bucket/set", 1),
    ):
        pass


def test_threads_have_a_line_each(store: StoreProcess, there: Bucket) -> None:
    """More threads than lines wait for their turn, and each gets its own answer."""
    wrong = []

    def work(number: int) -> None:
        name, data = f"object-{number}", bytes([number]) * 1000 * number
        for _ in range(5):
            store.write(name, data, new=False)
            if store.read(name, len(data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_process_that_was_killed_is_an_error(store: StoreProcess) -> None:
    """In a request and before one; the end of the block does not wait."""
    process = store._process
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(2):
        with pytest.raises(StorageError, match="the process that accesses it has ended"):
            store.read("a", 1)


CHILD = """
import os, sys, time
from brand.stores.apart import StoreProcess
with StoreProcess(sys.argv[1], 2) as store:
    try:
        store.read("none", 1)
    except FileNotFoundError:
        print(store._process.pid, flush=True)
    while True:
        time.sleep(0.1)  # a Ctrl-C that comes just before a sleep ends none: it is seen after it
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_its_parent(there: Bucket, repository: Path, number: signal.Signals) -> None:
    """However that ends. Ctrl-C, which all processes of a terminal get, is the parent's business."""
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", hear + CHILD, there.url("set")]
    with subprocess.Popen(
        command,
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        if number == signal.SIGINT:
            os.kill(child, number)
        os.killpg(process.pid, number) if number == signal.SIGINT else os.kill(process.pid, number)
        _, err = process.communicate()
        assert "in main" not in err, err  # the traceback is the parent's alone
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "it ends")


def test_it_says_its_state(store: StoreProcess) -> None:
    """Without a secret."""
    assert repr(store) == f"StoreProcess(s3://bucket/set, 3 lines idle, process {store._process.pid})"
