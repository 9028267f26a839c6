"""A data set at a URL: how its index comes to this machine, who speaks to the store, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.errors import (
    CacheError,
    ChecksumError,
    LayoutError,
    NotADataSetError,
    OversizedError,
    StorageError,
    UsageError,
)
from brand.formats.manifest import pack_manifest, read_manifest
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io import indexcopy
from brand.storage.io.indexcopy import copy_index
from brand.storage.io.remote import fetch_index
from tests.buckets import Bucket, bucket
from tests.filesystems import library, without_locks
from tests.storage.support import NOTES, SAMPLES, divide
from tests.support import FORKS
from tests.tools.objects import Busy, Fault, Faults, Lost, Request

DENSE = "s3://bucket/dense.brand"


@pytest.fixture
def store(plain_set: Path, dense_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A store with both data sets."""
    with bucket(tmp_path, monkeypatch) as found:
        shutil.copytree(plain_set, found.place("plain.brand"))
        shutil.copytree(dense_set, found.place("dense.brand"))
        yield found


def asked(store: Bucket) -> list[str]:
    """Which objects were asked for since the last call."""
    requests: list[Request] = list(store.store.requests)
    store.store.requests.clear()
    assert {request.operation for request in requests} <= {"GET"}
    return [request.key.removeprefix("bucket/") for request in requests]


def test_samples_are_those_of_the_folder(store: Bucket) -> None:
    """Also compressed ones, out of a copy by pickle, and all at once."""
    plain, dense = StoredDataSet("s3://bucket/plain.brand"), StoredDataSet(f"{DENSE}/")
    assert [plain.sample(index) for index in range(10)] == SAMPLES
    assert [pickle.loads(pickle.dumps(dense)).sample(index) for index in (129, 0)] == [NOTES[129], NOTES[0]]
    assert dense.column("number").tolist() == [note["number"] for note in NOTES]
    assert (plain.name, dense.name) == ("s3://bucket/plain.brand", DENSE)


def test_a_file_url_is_a_folder(plain_set: Path) -> None:
    """Nothing is copied."""
    data = StoredDataSet(f"file://{plain_set}")
    assert (data.path, data.sample(3)) == (plain_set, SAMPLES[3])


def test_the_index_is_copied_once(store: Bucket) -> None:
    """The first time each file of the index is read, and the dictionary; then the manifest alone."""
    StoredDataSet(DENSE)
    names = ["brand.json", "share.json", *(f"index/{name}.npy" for name in ("samples", "place", "chunks"))]
    front = 2 * ["dense.brand/chunks/00000000.brand"]
    assert asked(store) == [f"dense.brand/{name}" for name in (*names, "columns/number.npy")] + front
    data = StoredDataSet(DENSE)
    assert asked(store) == ["dense.brand/brand.json"]
    assert data.sample(7) == NOTES[7]
    assert asked(store) == [f"dense.brand/chunks/{data.chunk_of(7):08d}.brand"]  # one range, and no dictionary


def test_processes_that_open_at_the_same_time_copy_once(store: Bucket) -> None:
    """The others wait, and find the copy."""
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(fetch_index, [DENSE] * 4))
    assert len(found) == 1
    keys = asked(store)
    assert keys.count("dense.brand/brand.json") == 4
    assert keys.count("dense.brand/index/samples.npy") == 1


def test_what_a_killed_copy_has_left_is_no_copy(store: Bucket) -> None:
    """Nor is it in the way."""
    folder = copy_index(DENSE)
    folder.rename(folder.with_name(f"{folder.name}.part"))
    (folder.with_name(f"{folder.name}.part") / "index/samples.npy").write_bytes(b"half")
    assert StoredDataSet(DENSE).sample(100) == NOTES[100]
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_data_set_that_was_made_anew_is_another_one(store: Bucket, plain_set: Path) -> None:
    """Its index is copied as well; who has the old one open finds that its chunks were replaced."""
    old = StoredDataSet(DENSE)
    assert old.sample(0) == NOTES[0]
    shutil.rmtree(store.place("dense.brand"))
    shutil.copytree(plain_set, store.place("dense.brand"))
    assert StoredDataSet(DENSE).sample(4) == SAMPLES[4]
    with pytest.raises(OSError, match=r"replaced|changed"):
        old.sample(1)


def test_this_process_loads_no_library_that_speaks_to_a_store(store: Bucket) -> None:
    """So it may fork workers. And nothing that another program could see holds a credential."""
    code = f"""
import sys, threading
from brand.storage.dataset.dataset import StoredDataSet
data = StoredDataSet({DENSE!r})
print(len(data), "obstore" in sys.modules, threading.active_count(), data.column("number")[5])
"""
    command, env = [sys.executable, "-W", "error", "-c", code], {**os.environ, **store.environment}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert out.stdout.split() == ["130", "False", "1", str(NOTES[5]["number"])], out.stderr


# -- what is refused -------------------------------------------------------------------------------------------------


def test_where_there_is_no_data_set(store: Bucket) -> None:
    """The URL is named, and what to look at."""
    with pytest.raises(NotADataSetError, match=r"s3://bucket/none: not a data set.*Is the URL right"):
        StoredDataSet("s3://bucket/none")


def test_a_store_that_does_not_answer(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a time that a user waits, with host and port."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("brand.storage.io.indexcopy.PATIENCE_S", 0.5)
    with pytest.raises(StorageError, match=r"cannot be opened: no connection could be made: check .*127\.0\.0\.1:9"):
        copy_index(DENSE)


def test_requests_that_fail_once_are_repeated(store: Bucket) -> None:
    """Each of them."""
    store.store.faults = Faults(*(Fault(what, share=0.3) for what in (Busy(), Lost())), seed=3)
    assert StoredDataSet(DENSE).sample(9) == NOTES[9]


def test_an_index_whose_bytes_are_wrong(store: Bucket) -> None:
    """It is not kept."""
    file = store.place("dense.brand") / "index" / "samples.npy"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChecksumError, match="checksum of the index file") as caught:
        StoredDataSet(DENSE)
    assert caught.value.path == f"{DENSE}/index/samples.npy"
    assert [path for path in store.cache.glob("brand/data-sets/*") if path.is_dir() and path.suffix != ".part"] == []


def test_an_index_of_another_size_than_its_header_says(store: Bucket) -> None:
    """A manifest that claims a terabyte makes nobody write one."""
    folder = store.place("dense.brand")
    manifest = read_manifest(folder)
    huge = {**manifest.files, "index/samples.npy": (1 << 40, manifest.files["index/samples.npy"][1])}
    (folder / "brand.json").write_bytes(pack_manifest(type(manifest)(**{**vars(manifest), "files": huge})))
    with pytest.raises(LayoutError, match="size of an index file in the manifest"):
        StoredDataSet(DENSE)


def test_a_manifest_that_is_too_large(store: Bucket) -> None:
    """Is not read to its end."""
    with (store.place("dense.brand") / "brand.json").open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises((OversizedError, StorageError), match=r"more than the|too large"):
        StoredDataSet(DENSE)


def test_a_share_is_refused(store: Bucket, plain_set: Path, tmp_path: Path) -> None:
    """With the cure."""
    divide(plain_set, [store.place("a"), store.place("b")])
    with pytest.raises(UsageError, match="put the undivided data set into the store"):
        StoredDataSet("s3://bucket/a")


def test_a_folder_for_copies_that_others_may_write(store: Bucket) -> None:
    """What lies in it cannot be trusted."""
    home = copy_index(DENSE).parent
    home.chmod(0o777)
    with pytest.raises(CacheError, match="other users may write"):
        copy_index(DENSE)
    home.chmod(0o700)
    (home / "real").mkdir()
    folder = copy_index(DENSE)
    shutil.rmtree(folder)
    folder.symlink_to(home / "real")
    with pytest.raises(CacheError, match="symbolic link"):
        copy_index(DENSE)


@FORKS
def test_a_forked_process_may_open_what_its_parent_has_read(store: Bucket) -> None:
    """Another process speaks to the store for it; only reads of its own are refused."""
    data = StoredDataSet(DENSE)
    assert data.sample(1) == NOTES[1]
    child = os.fork()
    if not child:
        try:
            opened = StoredDataSet(DENSE)
            assert opened.indices(np.array([0])) == data.indices(np.array([0]))
            opened.sample(1)
        except UsageError as error:
            os._exit(0 if "spawn" in str(error) else 3)
        except BaseException:  # noqa: BLE001 - the parent sees the exit code
            os._exit(2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_process_that_copies_says_what_it_did(store: Bucket) -> None:
    """In JSON, on its standard output."""
    command = [sys.executable, "-c", "from brand.storage.io.indexcopy import main; main()"]
    env = {**os.environ, **store.environment}
    out = subprocess.run(command, env=env, input=DENSE, capture_output=True, text=True, check=True)
    assert Path(json.loads(out.stdout)["folder"]).is_relative_to(store.cache)
    out = subprocess.run(command, env=env, input="s3://bucket/none", capture_output=True, text=True, check=True)
    assert json.loads(out.stdout)["type"] == "NotADataSetError"


KILLED = """
import os, signal, sys
from brand.storage.io import indexcopy
indexcopy._copy = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
indexcopy.main()
"""


@pytest.mark.slow
def test_a_killed_copy_leaves_nothing_without_locks(store: Bucket, tmp_path: Path) -> None:
    """Its unfinished folder is removed by the next process that needs the index; with the folder of a slower one."""
    env = without_locks(library(tmp_path), store.cache, errno.ENOSYS) | store.environment
    command = [sys.executable, "-c", "from brand.storage.io.indexcopy import main; main()"]
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED], env=env, input=DENSE, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL
    assert len(list(store.cache.glob("brand/data-sets/*.part"))) == 2
    out = subprocess.run(command, env=env, input=DENSE, capture_output=True, text=True, check=True)
    assert "folder" in json.loads(out.stdout)
    assert list(store.cache.glob("brand/data-sets/*.part")) == []


@pytest.mark.slow
def test_a_copy_that_another_process_overtakes(store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the folder of the faster one, which has removed its own."""
    env = without_locks(library(tmp_path), store.cache, errno.ENOSYS) | store.environment
    copy = indexcopy._copy

    def overtaken(*arguments: Any) -> None:
        subprocess.run(
            [sys.executable, "-c", "from brand.storage.io.indexcopy import main; main()"],
            env=env,
            input=DENSE,
            capture_output=True,
            text=True,
            check=True,
        )
        copy(*arguments)

    monkeypatch.setattr(indexcopy, "_copy", overtaken)
    folder = copy_index(DENSE)
    assert list(folder.parent.glob("*.part")) == []
    assert StoredDataSet(DENSE).sample(1) == NOTES[1]
