"""`brand copy`: what it says, for people and as JSON, and with which exit code."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.formats.constants import chunk_name
from tests.buckets import Bucket, bucket
from tests.support import LIMIT_S, brand, running_brand, tree_digest, wait_until
from tests.tools.damage import flip_bit

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with bucket(tmp_path, monkeypatch) as found:
        yield found


def test_it_says_what_it_copied(photos_set: Path, there: Bucket) -> None:
    """Samples, chunks, bytes, where to; and, of a copy that goes on, what was there."""
    told = brand("copy", photos_set, there.url("set"))
    assert told.code == 0, told.err
    assert told.out.startswith("31 samples in 4 chunks, ")
    assert f"are now in {there.url('set')}\n" in told.out
    assert "copy: 4 of 4 (100 %)" in told.err
    assert "4 of these chunks were there already" in brand("copy", photos_set, there.url("set")).out
    assert there.digest("set") == tree_digest(photos_set)


def test_json_is_one_document(photos_set: Path, tmp_path: Path) -> None:
    """And no progress."""
    told = brand("copy", photos_set, tmp_path / "set", "--json")
    assert told.err == ""
    assert told.json == {
        "source": str(photos_set),
        "target": str(tmp_path / "set"),
        "samples": 31,
        "chunks": 4,
        "bytes": sum(path.stat().st_size for path in photos_set.rglob("*") if path.is_file()),
        "chunks_found": 0,
        "seconds": told.json["seconds"],
    }


def test_a_damaged_source_is_exit_code_1(photos_set: Path, tmp_path: Path) -> None:
    """Chunk and sample are named, and what is there is known as unfinished."""
    source = shutil.copytree(photos_set, tmp_path / "source")
    flip_bit(source / chunk_name(1), 8 * ((source / chunk_name(1)).stat().st_size - 2))
    told = brand("copy", source, tmp_path / "set")
    assert told.code == 1
    assert "chunk 1, sample " in told.err
    assert "the sample's bytes have changed" in told.err
    told = brand("info", tmp_path / "set")
    assert told.code == 1
    assert "run the same `brand copy` command again" in told.err


def test_wrong_use_is_exit_code_2(photos_set: Path, fashion_set: Path, tmp_path: Path) -> None:
    """The target is taken, a URL has a password, there is one argument."""
    shutil.copytree(fashion_set, tmp_path / "set")
    assert brand("copy", photos_set, tmp_path / "set").code == 2
    told = brand("copy", photos_set, "s3://user:password@bucket/set")
    assert (told.code, "password@" in told.err) == (2, False)
    assert brand("copy", photos_set).code == 2


@pytest.mark.slow
def test_ctrl_c_leaves_a_copy_that_goes_on(photos_set: Path, there: Bucket) -> None:
    """Exit code 130, and the next step."""
    there.store.latency_s = 0.5
    with running_brand("copy", photos_set, there.url("set"), environment=there.environment) as process:
        wait_until(lambda: there.chunks("set") >= 1 or process.poll() is not None, "a chunk")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert b"same command again" in err
    assert b"Traceback" not in out + err
    there.store.latency_s = 0
    assert brand("copy", photos_set, there.url("set")).code == 0
    assert there.digest("set") == tree_digest(photos_set)
