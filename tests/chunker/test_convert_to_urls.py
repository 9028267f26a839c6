"""Conversions to URLs: the same bytes as in a folder, whoever is killed and whatever the store answers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from brand import pack
from brand.chunker import convert_audio, convert_images
from brand.errors import SourceError, StorageError, TargetExistsError
from tests.buckets import Bucket, bucket
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.support import (
    LIMIT_S,
    Disk,
    Outcome,
    brand,
    brand_process,
    options,
    running_brand,
    session_processes,
    tree_digest,
    wait_until,
)
from tests.tools.objects import S3, Busy, Fault, Faults, Flavour, Gcs, Http, Keys, Lost, Reset
from tests.tools.objects.faults import What

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
pytestmark = pytest.mark.slow

SCHEMA = {"n": "int", "text": "str"}


def samples(count: int = 300) -> list[dict[str, Any]]:
    return [{"n": number, "text": f"sample {number} " * (number % 7)} for number in range(count)]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of an S3 that checks keys."""
    with bucket(tmp_path, monkeypatch) as found:
        yield found


@pytest.mark.parametrize("flavour", [S3(Keys("key", "secret")), Gcs(), Http()], ids=repr)
def test_the_bytes_are_those_of_a_conversion_to_a_folder(
    photos: Path, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: Flavour
) -> None:
    """Pictures, clips with a table, samples of a generator; on each kind of store, with nothing left over."""

    def conversions() -> Iterator[tuple[Callable[[Any], object], str]]:
        yield lambda to: convert_images(photos, to, options(5)), "images"
        table = clips / "transcripts.tsv"
        yield lambda to: convert_audio(clips, to, options(5, compression="zstd"), transcripts=table), "audio"
        yield lambda to: pack(iter(samples()), to, SCHEMA, chunk_size=30, jobs=1), "pack"

    with bucket(tmp_path, monkeypatch, flavour) as there:
        for run, name in conversions():
            run(tmp_path / name)
            run(there.url(name))
            assert there.digest(name) == tree_digest(tmp_path / name)
        assert there.works() == []


def test_a_url_of_a_folder_is_a_folder(photos: Path, photos_set: Path, tmp_path: Path) -> None:
    """`file:///...` needs no store."""
    convert_images(photos, f"file://{tmp_path}/set", options(8))
    assert tree_digest(tmp_path / "set") == tree_digest(photos_set)


def test_the_command_asks_for_nothing_else(fashion: Path, fashion_set: Path, there: Bucket) -> None:
    """Two GETs of the manifest, a PUT for each file and one for the claim: no LIST, no HEAD; with two processes."""
    command = ["convert", "images", fashion / "test", there.url("set"), "--chunk-size", 16, "-j", 2]
    done = brand_process(*command, "--json")
    assert done.code == 0, done.err
    assert there.digest("set") == tree_digest(fashion_set)
    assert there.asked() == {"GET": 2, "PUT": len(there.digest("set")) + 1}
    assert done.json["target"] == there.url("set")
    again = brand_process(*command)
    assert (again.code, there.asked()) == (2, {"GET": 1})
    assert f"{there.url('set')} is a finished data set already" in again.err


def test_a_dry_run_only_looks(photos: Path, there: Bucket) -> None:
    """One GET; it says what the conversion would say."""
    told = brand("convert", "images", photos, there.url("set"), "--dry-run", "-j", 1)
    assert told.code == 0, told.err
    assert there.url("set") in told.out
    assert there.asked() == {"GET": 1}
    assert there.works() == []
    convert_images(photos, there.url("set"), options(8))
    assert brand("convert", "images", photos, there.url("set"), "--dry-run").code == 2


def test_files_that_cannot_be_used_are_listed_in_the_store(photos: Path, tmp_path: Path, there: Bucket) -> None:
    """`--on-error skip` writes skipped.tsv and extras.zip there, as to a folder."""
    source = tmp_path / "photos"
    shutil.copytree(photos, source)
    (source / "tools" / "bad.png").write_text("no picture")
    (source / "empty").mkdir()
    for target in (tmp_path / "set", there.url("set")):
        assert brand("convert", "images", source, target, "--on-error", "skip", "-j", 1).code == 0
    assert there.digest("set") == tree_digest(tmp_path / "set")
    assert {"skipped.tsv", "extras.zip"} <= set(there.digest("set"))


@pytest.mark.parametrize("what", [Busy(), Busy(500), Reset(100), Lost()], ids=repr)
def test_a_store_that_fails_now_and_then_changes_nothing(
    fashion: Path, fashion_set: Path, there: Bucket, what: What
) -> None:
    """A tenth of all PUTs fail, and each first one of the claim and of the manifest."""
    there.store.faults = Faults(
        Fault(what, "PUT", "bucket/set/brand.json", only={1}),
        Fault(what, "PUT", "bucket/set/chunks/00000000.brand", only={1}),
        Fault(what, "PUT", share=0.1),
        seed=3,
    )
    convert_images(fashion / "test", there.url("set"), options(16))
    assert there.digest("set") == tree_digest(fashion_set)
    assert any(request.fault for request in there.store.requests)


def test_a_store_that_never_answers_well_is_an_error_and_the_same_call_goes_on(
    fashion: Path, fashion_set: Path, there: Bucket
) -> None:
    """The credentials expire in the middle: the message names the object and the next step; chunks are not lost."""
    there.store.faults = Faults(Fault(Busy(403), "PUT", "bucket/set/chunks/*", only=range(20, 1000)))
    with pytest.raises(StorageError, match=r"s3://bucket/set/chunks/\d+\.brand: .*Run the same command again") as told:
        convert_images(fashion / "test", there.url("set"), options(16))
    assert "secret" not in str(told.value)
    made = there.chunks("set")
    there.asked()
    there.store.faults = Faults()
    report = convert_images(fashion / "test", there.url("set"), options(16))
    assert report.chunks_found >= made - 2
    assert there.asked()["LIST"] == 1
    assert there.digest("set") == tree_digest(fashion_set)
    assert there.works() == []


@pytest.mark.parametrize("wrong", ["bucket", "keys"])
def test_what_cannot_be_written_is_said_at_once(
    photos: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """No such bucket; a wrong secret, which is not shown: exit code 1, and nothing is left here."""
    url = there.url("set") if wrong == "keys" else "s3://none/set"
    if wrong == "keys":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very wrong")
    told = brand("convert", "images", photos, url, "-j", 1)
    assert told.code == 1
    assert url in told.err
    assert ("no such bucket" if wrong == "bucket" else "secret key is wrong") in told.err
    assert "very wrong" not in told.err
    assert there.works() == []


def test_an_error_in_the_source_leaves_no_claim(tmp_path: Path, there: Bucket) -> None:
    """Nothing was written before the plan was made."""
    with pytest.raises(SourceError):
        pack([], there.url("set"), SCHEMA)
    assert there.asked() == {"GET": 1}
    assert there.works() == []


def unfinished(source: Path, there: Bucket, *more: object) -> None:
    """A conversion to `set` of which some chunks are there, and its work folder."""
    there.store.faults = Faults(Fault(Busy(403), "PUT", "bucket/set/chunks/*", only=range(10, 1000)))
    done = brand("convert", "images", source, there.url("set"), "--chunk-size", 16, "-j", 1, *more)
    assert done.code == 1, done.err
    assert there.chunks("set") >= 4
    there.store.faults = Faults()


def test_a_lost_work_folder_only_costs_time(fashion: Path, fashion_set: Path, there: Bucket) -> None:
    """All chunks are made again, and replace the same bytes."""
    unfinished(fashion / "test", there)
    shutil.rmtree(there.works()[0])
    assert convert_images(fashion / "test", there.url("set"), options(16)).chunks_found == 0
    assert there.digest("set") == tree_digest(fashion_set)


def test_objects_that_were_removed_are_made_again(fashion: Path, fashion_set: Path, there: Bucket) -> None:
    """The work folder alone is not believed; nor is an object of another size."""
    unfinished(fashion / "test", there)
    kept = sorted(int(path.name) for path in (there.works()[0] / "kept").iterdir())
    (there.place("set") / f"chunks/{kept[-1]:08d}.brand").unlink()
    (there.place("set") / f"chunks/{kept[-2]:08d}.brand").write_bytes(b"short")
    report = convert_images(fashion / "test", there.url("set"), options(16))
    assert report.chunks_found == len(kept) - 2
    assert there.digest("set") == tree_digest(fashion_set)


def test_other_options_are_refused_until_the_objects_are_removed(
    fashion: Path, fashion_set: Path, there: Bucket
) -> None:
    """Chunk 0, or its claim, says whose the target is, on this machine and on any other."""
    unfinished(fashion / "test", there)
    before = there.digest("set")
    for lost in (False, True):
        if lost:
            shutil.rmtree(there.works()[0])
        told = brand("convert", "images", fashion / "test", there.url("set"), "--seed", 1, "-j", 1)
        assert told.code == 2, told.err
        assert "another source or with other options" in told.err
        assert there.digest("set") == before
    shutil.rmtree(there.place("set"))
    convert_images(fashion / "test", there.url("set"), options(16))
    assert there.digest("set") == tree_digest(fashion_set)


def test_a_source_that_was_touched_is_read_again(fashion: Path, tmp_path: Path, there: Bucket) -> None:
    """A file of the same size may have changed: no chunk of the first run stays."""
    source = tmp_path / "source"
    shutil.copytree(fashion / "test", source)
    unfinished(source, there)
    os.utime(sorted((source / "8_bag").iterdir())[0], ns=(1, 1))
    assert convert_images(source, there.url("set"), options(16)).chunks_found == 0


def test_one_of_two_conversions_begins(photos: Path, fashion: Path, tmp_path: Path, there: Bucket) -> None:
    """Two at the same time, of two sources, on two machines: one is whole, the other is told."""
    commands = [
        ["convert", "images", source, there.url("set"), "--chunk-size", 16, "-j", 1]
        for source in (photos, fashion / "test")
    ]
    told: list[Outcome] = []

    def run(which: int) -> None:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / f"machine-{which}")}
        told.append(brand_process(*commands[which], env=environment))

    threads = [threading.Thread(target=run, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done.code for done in told) == [0, 2]
    convert_images(photos, tmp_path / "photos", options(16))
    convert_images(fashion / "test", tmp_path / "fashion", options(16))
    assert there.digest("set") in (tree_digest(tmp_path / "photos"), tree_digest(tmp_path / "fashion"))


def test_another_manifest_that_came_first_stays(fashion: Path, there: Bucket) -> None:
    """Create-only: the conversion that finishes second changes nothing, and says so."""
    unfinished(fashion / "test", there)
    (there.place("set") / "brand.json").write_bytes(b"another one")
    with pytest.raises(TargetExistsError, match="has finished there meanwhile"):
        convert_images(fashion / "test", there.url("set"), options(16))
    assert (there.place("set") / "brand.json").read_bytes() == b"another one"


def test_the_local_disk_holds_a_few_chunks(fashion: Path, tmp_path: Path, there: Bucket) -> None:
    """The store takes its time; the work folder never has more files of chunks than the bound."""
    there.store.latency_s = 0.02
    most, end = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not end.wait(0.001):
            for work in there.works():
                with suppress(FileNotFoundError):
                    most = max(most, sum(name[:8].isdigit() and name.endswith(".tmp") for name in os.listdir(work)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = convert_images(fashion / "test", there.url("set"), options(2))
    end.set()
    watcher.join()
    assert report.chunks == 300
    assert 1 <= most <= 8 + 2


def test_a_full_disk_here_is_said_and_the_same_call_goes_on(
    fashion: Path, tmp_path: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work folder is on a disk that is too small; with a larger one, the conversion goes on."""
    disk = Disk(tmp_path / "disk")
    disk.folder.mkdir()
    disk.mount("size=600k")
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk.folder))
        with pytest.raises(StorageError, match="no space left"):
            convert_images(fashion / "train", there.url("set"), options(8))
        disk.mount("remount", "size=20m")
        convert_images(fashion / "train", there.url("set"), options(8))
    finally:
        disk.unmount()
    convert_images(fashion / "train", tmp_path / "set", options(8))
    assert there.digest("set") == tree_digest(tmp_path / "set")


@rounds(2)
def test_a_conversion_is_killed(
    fashion: Path, fashion_set: Path, there: Bucket, left: Leftovers, chance: Chance
) -> None:
    """All its processes, its parent, a worker, or the one that speaks to the store; while requests fail, too."""
    rng, wanted = chance.rng, tree_digest(fashion_set)
    there.store.faults = Faults(
        Fault(Busy(), share=0.02),
        Fault(Reset(50), "PUT", share=0.02),
        Fault(Lost(), "PUT", share=0.02),
        seed=rng.randrange(1000),
    )
    environment = left.environment | there.environment

    def command() -> list[object]:
        return ["convert", "images", fashion / "test", there.url("set"), "--chunk-size", 16, "-j", rng.randint(1, 3)]

    for _ in range(rng.choice([1, 1, 2, 3])):
        with running_brand(*command(), environment=environment) as process:
            count = rng.randint(0, 38)
            wait_until(lambda c=count: there.chunks("set") >= c or process.poll() is not None, "some chunks")  # type: ignore[misc]
            time.sleep(rng.uniform(0, rng.choice([0.005, 0.1])))
            victims = session_processes(process.pid)
            others = [victim for victim in victims if victim != process.pid]
            for victim in rng.choice([victims, [process.pid], [rng.choice(others)] if others else victims]):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            process.communicate()
            wait_until(lambda session=process.pid: not session_processes(session), "all end")  # type: ignore[misc]
        left.check()
    if not (there.place("set") / "brand.json").exists() or there.works():
        done = brand_process(*command(), env=os.environ | environment)
        assert done.code == 0, done.err
    assert there.digest("set") == wanted
    assert there.works() == []
    left.check()


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_leaves_a_state_that_goes_on(fashion: Path, fashion_set: Path, there: Bucket, jobs: int) -> None:
    """SIGINT to the whole group, as a terminal sends it: exit code 130, no traceback, no process left."""
    there.store.latency_s = 0.05
    command = ["convert", "images", fashion / "test", there.url("set"), "--chunk-size", 16, "-j", jobs]
    with running_brand(*command, environment=there.environment) as process:
        wait_until(lambda: there.chunks("set") >= 5 or process.poll() is not None, "5 chunks")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, err
        wait_until(lambda: not session_processes(process.pid), "all end")
    assert b"same command again" in err
    assert b"Traceback" not in out + err
    there.store.latency_s = 0
    report = brand_process(*command, "--json").json
    assert report["chunks_found"] >= 1
    assert there.digest("set") == tree_digest(fashion_set)


FORKS = """
import sys, threading
from brand.chunker import convert_images
from brand.stores import store
from tests.support import options
convert_images(sys.argv[1], sys.argv[2], options(16, jobs=2))
convert_images(sys.argv[1], sys.argv[3], options(16, jobs=2))
assert not store._spoken and threading.active_count() == 1
"""


def test_the_process_that_converts_never_speaks_to_the_store(fashion: Path, repository: Path, there: Bucket) -> None:
    """So it forks its workers without threads of the library, again and again, and no warning comes."""
    command = [sys.executable, "-W", "error", "-c", FORKS, str(fashion / "test"), there.url("a"), there.url("b")]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert there.digest("a") == there.digest("b")
