"""A copy is the same data set, whole, wherever it goes; it goes on after a stop, and damage is never copied."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import brand
from brand.chunker import convert_images
from brand.errors import (
    ChecksumError,
    FormatError,
    MissingFileError,
    NotADataSetError,
    StorageError,
    TargetExistsError,
    UnreadableError,
    UsageError,
)
from brand.formats.constants import chunk_name
from brand.storage.maintenance.copying import Copied
from brand.storage.maintenance.copying import copy as run
from brand.stores import cloud
from tests.buckets import Bucket, bucket
from tests.leftovers import Leftovers
from tests.rounds import Chance, rounds
from tests.storage.support import divide
from tests.support import (
    Disk,
    brand_process,
    options,
    running_brand,
    session_processes,
    tree_digest,
    wait_until,
)
from tests.tools.damage import any_damage, flip_bit, read_files
from tests.tools.objects import Busy, Fault, Faults, Gcs, Lost, Reset, Short
from tests.tools.objects.faults import What

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")

WAYS = ["folder to folder", "folder to store", "store to folder", "store to store"]


def copy(source: str | Path, target: str | Path) -> Copied:
    """Copy, and compare the progress that it tells with what it has done."""
    told: list[tuple[int, int, int, int]] = []
    done = run(source, target, lambda *step: told.append(step))
    assert [step[0] for step in told] == list(range(1, done.chunks + 1))
    assert told[-1][2] == told[-1][3] <= done.bytes
    return done


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of an S3 that checks keys."""
    with bucket(tmp_path, monkeypatch) as found:
        yield found


class Way:
    """From `source` to `target`, and the folders whose files these are."""

    def __init__(self, name: str, original: Path, tmp_path: Path, there: Bucket) -> None:
        begin, _, end = name.partition(" to ")
        self.source_files = tmp_path / "source" if begin == "folder" else there.place("source")
        self.target_files = tmp_path / "target" if end == "folder" else there.place("target")
        self.source: str | Path = self.source_files if begin == "folder" else there.url("source")
        self.target: str | Path = self.target_files if end == "folder" else there.url("target")
        self.to_store = end == "store"
        shutil.copytree(original, self.source_files)

    def finished(self) -> bool:
        """Whether the copy has a manifest."""
        return (self.target_files / "brand.json").exists()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, photos_set: Path, tmp_path: Path, there: Bucket) -> Way:
    """The photos in four chunks, from and to each kind of place."""
    return Way(request.param, photos_set, tmp_path, there)


def test_a_copy_has_the_same_files(way: Way, there: Bucket) -> None:
    """Byte for byte, and nothing else; work folders are gone."""
    done = copy(way.source, way.target)
    wanted = tree_digest(way.source_files)
    assert tree_digest(way.target_files) == wanted
    assert (done.samples, done.chunks, done.chunks_found) == (31, 4, 0)
    assert done.bytes == sum(path.stat().st_size for path in way.source_files.rglob("*") if path.is_file())
    assert there.works() == []


def test_only_what_is_needed_is_asked_for(photos_set: Path, tmp_path: Path, there: Bucket) -> None:
    """No LIST and no HEAD: a PUT for each file and the claim, a GET for each file and for the share that is not."""
    files = len(tree_digest(photos_set))
    copy(photos_set, there.url("a"))
    assert there.asked() == {"GET": 1, "PUT": files + 1}
    copy(there.url("a"), there.url("b"))
    assert there.asked() == {"GET": files + 2, "PUT": files + 1}
    copy(there.url("b"), tmp_path / "c")
    assert there.asked() == {"GET": files + 1}


@pytest.mark.slow
def test_a_copy_goes_on_where_it_stopped(way: Way, there: Bucket) -> None:
    """One chunk is damaged at first; what was copied before is not copied again."""
    victim = way.source_files / chunk_name(2)
    data = victim.read_bytes()
    flip_bit(victim, 8 * (len(data) - 5))
    with pytest.raises(ChecksumError) as told:
        copy(way.source, way.target)
    assert told.value.chunk == 2
    assert told.value.sample is not None
    assert str(way.source) in str(told.value.path)
    assert not way.finished()
    victim.write_bytes(data)
    there.asked()
    copied = sum((way.target_files / chunk_name(number)).exists() for number in range(4))
    assert copied >= 2  # the fourth chunk may have waited for a thread when the third one failed
    assert copy(way.source, way.target).chunks_found == copied
    assert there.asked()["LIST"] == way.to_store
    assert tree_digest(way.target_files) == tree_digest(way.source_files)
    assert there.works() == []


@pytest.mark.slow
def test_a_finished_copy_is_copied_once_more_for_nothing(way: Way) -> None:
    """All chunks are found; a chunk that was cut or exchanged meanwhile is copied again."""
    copy(way.source, way.target)
    wanted = tree_digest(way.target_files)
    assert copy(way.source, way.target).chunks_found == 4
    with (way.target_files / chunk_name(1)).open("r+b") as file:
        file.truncate(100)
    shutil.copy(way.target_files / chunk_name(2), way.target_files / chunk_name(3))
    assert copy(way.source, way.target).chunks_found == 2
    assert tree_digest(way.target_files) == wanted


def test_another_data_set_is_not_overwritten(way: Way, fashion_set: Path, there: Bucket) -> None:
    """Finished or not."""
    shutil.copytree(fashion_set, way.target_files)
    before = tree_digest(way.target_files)
    with pytest.raises(TargetExistsError, match="finished data set already"):
        copy(way.source, way.target)
    (way.target_files / "brand.json").unlink()
    with pytest.raises(TargetExistsError, match=r"not empty|unfinished conversion or copy of another data set"):
        copy(way.source, way.target)
    del before["brand.json"]
    assert tree_digest(way.target_files) == before


def test_an_unfinished_copy_of_another_data_set_is_left_alone(
    photos_set: Path, fashion_set: Path, tmp_path: Path
) -> None:
    """The command that began there has to end there."""
    source = shutil.copytree(photos_set, tmp_path / "source")
    (source / chunk_name(3)).unlink()
    with pytest.raises(MissingFileError, match="chunk 3"):
        copy(source, tmp_path / "target")
    with pytest.raises(NotADataSetError, match="same `brand copy` command"):
        copy(tmp_path / "target", tmp_path / "other")
    with pytest.raises(TargetExistsError, match="unfinished copy of another data set"):
        copy(fashion_set, tmp_path / "target")


def test_only_one_copy_at_a_time(photos_set: Path, tmp_path: Path) -> None:
    """The lock ends with its process."""
    (tmp_path / "target/.brand-copy").mkdir(parents=True)
    with (tmp_path / "target/.brand-copy/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TargetExistsError, match="another copy is writing there"):
            copy(photos_set, tmp_path / "target")
    copy(photos_set, tmp_path / "target")


@pytest.mark.parametrize("place", ["same", "inside", "around"])
def test_a_copy_onto_itself_is_refused(photos_set: Path, tmp_path: Path, there: Bucket, place: str) -> None:
    """Also by another name, and at URLs."""
    source = tmp_path / "a" / "set"
    shutil.copytree(photos_set, source)
    (tmp_path / "link").symlink_to(source)
    target = {"same": tmp_path / "link", "inside": tmp_path / "link" / "copy", "around": tmp_path / "a"}[place]
    with pytest.raises(UsageError, match="outside of it"):
        copy(source, target)
    shutil.copytree(photos_set, there.place("a/set"))
    name = {"same": "a/set", "inside": "a/set/copy", "around": "a"}[place]
    with pytest.raises(UsageError, match="outside of it"):
        copy(there.url("a/set"), there.url(name))


def test_a_share_is_refused_with_the_cure(photos_set: Path, tmp_path: Path, there: Bucket) -> None:
    """As a source, and as a target, which has the same manifest."""
    divide(photos_set, [tmp_path / "0", tmp_path / "1"], 1)
    shutil.copytree(tmp_path / "0", there.place("share"))
    for source in (tmp_path / "0", there.url("share")):
        with pytest.raises(UsageError, match="copy the undivided data set"):
            copy(source, tmp_path / "target")
    with pytest.raises(TargetExistsError, match="partition of a node"):
        copy(photos_set, tmp_path / "0")


def test_nothing_there_is_no_data_set(tmp_path: Path, there: Bucket) -> None:
    """The message names the path or the URL, and nothing is made at the target."""
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "none", tmp_path / "empty", there.url("none")):
        with pytest.raises(NotADataSetError, match=str(source)):
            copy(source, tmp_path / "target")
    with pytest.raises(UnreadableError, match="no such bucket"):
        copy("s3://none/set", tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", [Busy(), Reset(1000), Lost(), Short(1000)], ids=repr)
def test_a_store_that_fails_now_and_then_changes_nothing(
    fashion_set: Path, tmp_path: Path, there: Bucket, what: What
) -> None:
    """Requests in both directions."""
    there.store.faults = Faults(Fault(what, share=0.1), seed=5)
    copy(fashion_set, there.url("a"))
    copy(there.url("a"), there.url("b"))
    copy(there.url("b"), tmp_path / "c")
    assert tree_digest(tmp_path / "c") == tree_digest(fashion_set)
    assert any(request.fault for request in there.store.requests)


def test_another_flavour(photos_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's store knows create-only by another header."""
    with bucket(tmp_path, monkeypatch, Gcs()) as there:
        copy(photos_set, there.url("set"))
        assert there.digest("set") == tree_digest(photos_set)


@pytest.mark.slow
def test_a_large_chunk_goes_in_parts(tmp_path: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """And arrives whole, also where a part has to be sent again."""
    monkeypatch.setattr(cloud, "_PART", 5 << 20)
    noise = random.Random(1).randbytes(3 << 20)
    brand.pack([{"data": noise}] * 4, tmp_path / "set", {"data": "bytes"}, compression="none", chunk_size=4, jobs=1)
    there.store.faults = Faults(Fault(Reset(1000), "PART", only={2}))
    copy(tmp_path / "set", there.url("set"))
    assert there.digest("set") == tree_digest(tmp_path / "set")
    assert there.asked()["PART"] == 4


def test_a_store_that_refuses_is_an_error_that_names_the_object(photos_set: Path, there: Bucket) -> None:
    """With the next step."""
    there.store.faults = Faults(Fault(Busy(403), "PUT", f"bucket/set/{chunk_name(2)}"))
    with pytest.raises(StorageError, match=r"s3://bucket/set/chunks/00000002\.brand.*Run the same command again"):
        copy(photos_set, there.url("set"))
    assert "brand.json" not in there.digest("set")


def test_a_full_disk_is_said_and_the_same_call_goes_on(fashion_set: Path, tmp_path: Path) -> None:
    """Nothing partly written has a name."""
    disk = Disk(tmp_path / "disk")
    disk.folder.mkdir()
    disk.mount("size=300k")
    try:
        with pytest.raises(StorageError, match="no space left"):
            copy(fashion_set, disk.folder / "set")
        assert not (disk.folder / "set/brand.json").exists()
        disk.mount("remount", "size=20m")
        assert copy(fashion_set, disk.folder / "set").chunks_found > 0
        assert tree_digest(disk.folder / "set") == tree_digest(fashion_set)
    finally:
        disk.unmount()


@pytest.mark.slow
@rounds(3)
def test_damage_is_never_copied(photos_set: Path, tmp_path: Path, chance: Chance) -> None:
    """Whatever happened to the files of the source: an error of the format, or the data set as it was."""
    rng: random.Random = chance.rng
    source = shutil.copytree(photos_set, tmp_path / "source")
    any_damage(read_files(source), rng).apply(source)
    try:
        copy(source, tmp_path / "target")
    except FormatError:
        assert not (tmp_path / "target/brand.json").exists()
    else:
        assert tree_digest(tmp_path / "target") == tree_digest(photos_set)


@pytest.mark.parametrize("name", ["index/samples.npy", "index/place.npy", "index/chunks.npy", "columns/label.npy"])
@pytest.mark.parametrize("change", ["flip", "cut", "remove"])
def test_a_damaged_index_is_not_copied(photos_set: Path, tmp_path: Path, there: Bucket, name: str, change: str) -> None:
    """The error names the file, or its URL, before a chunk was copied."""
    shutil.copytree(photos_set, there.place("source"))
    victim = there.place("source") / name
    if change == "flip":
        flip_bit(victim, 8 * (victim.stat().st_size - 3))
    elif change == "cut":
        os.truncate(victim, victim.stat().st_size - 1)
    else:
        victim.unlink()
    shutil.copytree(there.place("source"), tmp_path / "source")
    for source in (there.url("source"), tmp_path / "source"):
        with pytest.raises(FormatError) as told:
            copy(source, tmp_path / "target")
        assert str(told.value.path) == f"{source}/{name}"
        assert os.listdir(tmp_path / "target") == [".brand-copy"]


@pytest.fixture(scope="module")
def many(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 pictures in 375 chunks."""
    target = tmp_path_factory.mktemp("many") / "set"
    convert_images(fashion / "train", target, options(8))
    return target


@pytest.mark.slow
@rounds(2)
def test_a_copy_is_killed(many: Path, tmp_path: Path, there: Bucket, left: Leftovers, chance: Chance) -> None:
    """At any moment, once to three times, in any direction; then the same command ends it."""
    rng = chance.rng
    way = Way(rng.choice(WAYS), many, tmp_path, there)
    there.store.faults = Faults(Fault(Busy(), share=0.01), Fault(Lost(), share=0.01), seed=rng.randrange(1000))
    environment = left.environment | there.environment

    def count() -> int:
        with suppress(FileNotFoundError):
            return len(os.listdir(way.target_files / "chunks"))
        return 0

    for _ in range(rng.choice([1, 1, 2, 3])):
        with running_brand("copy", way.source, way.target, environment=environment) as process:
            goal = rng.randint(0, 375)
            wait_until(lambda goal=goal: count() >= goal or process.poll() is not None, f"{goal} chunks")  # type: ignore[misc]
            time.sleep(rng.uniform(0, rng.choice([0.005, 0.05])))
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            wait_until(lambda session=process.pid: not session_processes(session), "it ends")  # type: ignore[misc]
    done = brand_process("copy", way.source, way.target, env=os.environ | environment)
    assert done.code == 0, done.err
    assert tree_digest(way.target_files) == tree_digest(many)
    assert there.works() == []
    left.check()
