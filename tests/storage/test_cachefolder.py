"""A cache folder holds the bytes of chunks, and says so only where it does, whatever goes wrong."""

from __future__ import annotations

import gc
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import brand
from brand.errors import CacheError
from brand.formats.contents import StoredSamples
from brand.storage.cache.cachefiles import BLOCK, CacheFacts, held_bytes, pack_held, part_name, unpack_held
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.cache.caches import list_caches, opened_caches
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.vectored import LocalFiles
from tests.rounds import examples
from tests.storage.support import chunk
from tests.support import SERVES, Disk, descriptors

SAMPLES = 60
CHUNK = 8
MUCH = 1 << 30


@pytest.fixture(scope="session")
def some_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples of 5 to 1,500 bytes in chunks of eight. Not to be changed."""
    target = tmp_path_factory.mktemp("sets") / "some.brand"
    samples = [{"number": k, "text": f"{k}," * (k * 31 % 400)} for k in range(SAMPLES)]
    brand.pack(samples, target, {"number": "int", "text": "str"}, chunk_size=CHUNK, compression="none", jobs=1)
    return target


@pytest.fixture(scope="module")
def big_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of several blocks."""
    target = tmp_path_factory.mktemp("sets") / "big.brand"
    samples = [{"text": f"{k}," * (8000 + k * 997 % 9000)} for k in range(40)]
    brand.pack(samples, target, {"text": "str"}, chunk_size=CHUNK, compression="none", jobs=1)
    return target


def on_disk(folder: Path, data: StoredDataSet) -> int:
    """What the parts take on the disk."""
    return sum(part.stat().st_blocks * 512 for part in (home(folder, data) / "chunks").iterdir())


def another_set(folder: Path, samples: int = 20) -> StoredDataSet:
    """One more data set."""
    values = [{"text": f"{folder.name} {k} " * 100} for k in range(samples)]
    brand.pack(values, folder, {"text": "str"}, chunk_size=CHUNK, compression="none", jobs=1)
    return StoredDataSet(folder)


def sizes_of(data: StoredDataSet) -> NDArray[np.uint32]:
    """Stored sizes by place."""
    return data.rows(0, len(data))["size"].astype(np.uint32)


def stored(data: StoredDataSet, places: NDArray[np.int64], wrong: frozenset[int] = frozenset()) -> StoredSamples:
    """The stored bytes of samples, a bit of some of them flipped."""
    found = [bytearray(each or b"") for each in data.stored_bytes(places)]
    for place, each in zip(places.tolist(), found, strict=True):
        if place in wrong and each:
            each[len(each) // 2] ^= 1
    lengths = np.array([len(each) for each in found], np.int64)
    memory = np.frombuffer(b"".join(found) or b"\0", np.uint8)
    return StoredSamples(memory, np.cumsum(lengths) - lengths, data.rows_at(places))


@contextmanager
def cache(folder: Path | str, data: StoredDataSet, limit: int | None = MUCH) -> Iterator[CacheFolder]:
    """A cache folder that is closed, and not published, at the end."""
    with closing(CacheFolder(str(folder), data, sizes_of(data), limit)) as found:
        yield found


def fill(found: CacheFolder, data: StoredDataSet, first: int = 0, end: int | None = None) -> NDArray[np.bool_]:
    """Store a run of samples."""
    places = np.arange(first, len(data) if end is None else end)
    return found.store(places, stored(data, places))


def home(folder: Path, data: StoredDataSet) -> Path:
    """Where a cache lies."""
    return folder / "brand-cache" / data.id


def wrong_bytes(folder: Path, data: StoredDataSet, held: NDArray[np.bool_]) -> list[int]:
    """Places that are said to be held, and whose bytes in the part are not those of the chunk."""
    found = []
    for place in np.flatnonzero(held).tolist():
        row, number = data.rows(place, place + 1)[0], place // CHUNK
        part = home(folder, data) / "chunks" / part_name(number)
        span = slice(int(row["offset"]), int(row["offset"]) + int(row["size"]))
        if not part.exists() or part.read_bytes()[span] != chunk(data.path, number).read_bytes()[span]:
            found.append(place)
    return found


# -- layout ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=100), st.data())
def test_held_bits_come_back_or_not_at_all(bits: list[bool], data: st.DataObject) -> None:
    """The bytes give the same bits; with any bit flipped, or any other length, they give none."""
    held = np.array(bits)
    packed = pack_held(held)
    assert len(packed) == held_bytes(len(bits))
    assert unpack_held(packed, len(bits)).tolist() == bits
    changed = bytearray(packed)
    changed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not unpack_held(bytes(changed), len(bits)).any()
    assert not unpack_held(packed[: data.draw(st.integers(0, len(packed) - 1))], len(bits)).any()
    assert not unpack_held(packed, len(bits) + 8).any()


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "{}", "null", '{"format": "brand cache", "version": 1}', "[" * 100_000),
        '{"format": "brand cache", "version": 2, "data_set": "", "samples": 1, "chunk_size": 1, "digest": ""}',
        '{"format": "brand cache", "version": 1, "data_set": 1, "samples": 1, "chunk_size": 1, "digest": ""}',
    ],
)
def test_facts_of_another_kind_are_none(text: str) -> None:
    """Garbage, another version, fields that are missing or of another type."""
    assert CacheFacts.unpack(text.encode()) is None
    right = CacheFacts("0" * 32, 5, 2, "digest")
    assert CacheFacts.unpack(right.pack()) == right


# -- bytes -----------------------------------------------------------------------------------------------------------


@examples(40)
@given(st.data())
def test_parts_equal_chunks_where_samples_are_held(some_set: Path, draws: st.DataObject) -> None:
    """Any samples in any order, some of them damaged, some written twice; also after the folder is opened anew."""
    data, model = StoredDataSet(some_set), np.zeros(SAMPLES, np.bool_)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with cache(folder, data) as found:
            for _ in range(draws.draw(st.integers(1, 6))):
                some = draws.draw(st.sets(st.integers(0, SAMPLES - 1), min_size=1))
                wrong = draws.draw(st.frozensets(st.sampled_from(sorted(some))))
                places = np.array(sorted(some))
                contents = stored(data, places, wrong)
                model[places[contents.right()]] = True
                assert found.store(places, contents).tolist() == model[places].tolist()
                if draws.draw(st.booleans()):
                    found.publish()
            assert found.held.tolist() == model.tolist()
            assert found.used == int(sizes_of(data)[model].sum())
            assert wrong_bytes(folder, data, model) == []
            found.publish()
        with cache(folder, data) as found:
            assert found.held.tolist() == model.tolist()
            assert found.used == int(sizes_of(data)[model].sum())


def test_a_read_of_a_chunk_goes_to_the_part_as_it_is(some_set: Path, tmp_path: Path) -> None:
    """Offsets and sizes are those of the chunk, up to its end, also where only some of the samples are held."""
    data = StoredDataSet(some_set)
    rows = data.rows(0, CHUNK)
    memory = np.zeros(int(rows["size"].sum()), np.uint8)
    vector = np.zeros(1, np.dtype([("base", "<u8"), ("length", "<u8")]))
    vector["base"], vector["length"] = memory.ctypes.data, len(memory)
    with cache(tmp_path, data) as found:
        fill(found, data, 0, 3)
        with closing(LocalFiles(found.part_file)) as files:
            files.scatter(0, int(rows["offset"][0]), len(memory), vector)
    held = int(rows["size"][:3].sum())
    assert memory[:held].tobytes() == b"".join(each or b"" for each in data.stored_bytes(np.arange(3)))
    assert not memory[held:].any()


def test_the_part_of_a_chunk_is_dropped(some_set: Path, tmp_path: Path) -> None:
    """Its bits go before its bytes do, and the others stay."""
    data = StoredDataSet(some_set)
    with cache(tmp_path, data) as found:
        fill(found, data)
        found.publish()
        found.drop(np.array([2 * CHUNK + 1]))
        assert not (home(tmp_path, data) / "chunks" / part_name(2)).exists()
        assert np.flatnonzero(~found.held).tolist() == list(range(2 * CHUNK, 3 * CHUNK))
        assert found.used == int(sizes_of(data)[found.held].sum())
    with cache(tmp_path, data) as again:
        assert np.flatnonzero(~again.held).tolist() == list(range(2 * CHUNK, 3 * CHUNK))


# -- crashes ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


class Machine:
    """Ends the process at the `at`-th call into the kernel, and knows what the device has then.

    Bytes that were not flushed since they were written may be lost with the machine, and so may new names.
    """

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0
        self.bytes: set[tuple[str, int, int]] = set()
        """Path, offset and size of what is not on the device."""
        self.names: set[str] = set()
        """Files whose names are not on the device."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        name, values = getattr(arg, "__name__", ""), frame.f_locals
        if event == "c_call" and (getattr(arg, "__module__", "") == "posix" or name == "write"):
            self.calls += 1
            if self.calls == self.at:
                raise Killed
        elif event == "c_return" and name == "pwritev":
            size = sum(len(view) for view in values["views"])
            self.bytes.add((path_of(values["descriptor"]), values["offset"], size))
        elif event == "c_return" and name == "ftruncate":
            self.names.add(path_of(values["part"]))
        elif event == "c_return" and name == "fdatasync":
            self.bytes = {each for each in self.bytes if each[0] != path_of(values["part"])}
        elif event == "c_return" and name == "fsync" and frame.f_code.co_name == "flush":
            self.names.clear()

    def ends(self) -> None:
        """Power is lost."""
        for name, offset, size in self.bytes:
            with suppress(FileNotFoundError), open(name, "r+b") as file:
                file.seek(offset)
                file.write(bytes(size))
        for name in self.names:
            Path(name).unlink(missing_ok=True)


def path_of(descriptor: int) -> str:
    """The path of an open file."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["the process ends", "the machine ends"])
def test_bits_never_run_ahead_of_bytes(some_set: Path, tmp_path: Path, *, power: bool) -> None:
    """At each call into the kernel of a life with writes, publishing and a dropped part, all is over."""
    data, at, over, seen = StoredDataSet(some_set), 0, False, set[int]()
    contents = {first: stored(data, np.arange(first, first + 10)) for first in (0, 10, 20)}
    while not over:
        at += 1
        folder, machine = tmp_path / str(at), Machine(at)
        found = CacheFolder(str(folder), data, sizes_of(data), MUCH)
        try:
            sys.setprofile(machine)
            for first, some in contents.items():
                found.store(np.arange(first, first + 10), some)
                if first % 20:
                    found.publish()
            found.drop(np.array([CHUNK]))
            found.publish()
            found.forget(np.arange(20, 30))
            found.publish()
            over = True
        except Killed:
            pass
        finally:
            sys.setprofile(None)
            found.close()
        if power:
            machine.ends()
        with cache(folder, data) as again:
            assert wrong_bytes(folder, data, again.held) == [], f"killed at call {at}"
            seen.add(int(again.held.sum()))
    assert at > 60
    assert seen == {0, 20, 30 - CHUNK, 20 - CHUNK}


# -- forgetting ------------------------------------------------------------------------------------------------------


def test_what_is_forgotten_gives_its_blocks_back_when_the_bits_are_published(big_set: Path, tmp_path: Path) -> None:
    """Not before; whole blocks, with those that two samples share once both are gone. The others stay as they are."""
    data = StoredDataSet(big_set)
    with cache(tmp_path, data) as found:
        fill(found, data)
        found.publish()
        full, sizes = on_disk(tmp_path, data), sizes_of(data)
        found.forget(np.arange(1, 6))
        assert on_disk(tmp_path, data) == full
        found.publish()
        gone = full - on_disk(tmp_path, data)
        assert 0 <= int(sizes[1:6].sum()) - gone < 2 * BLOCK
        found.forget(np.array([0, 6, 7]))
        found.publish()
        assert not (home(tmp_path, data) / "chunks" / part_name(0)).stat().st_blocks
        assert wrong_bytes(tmp_path, data, found.held) == []
        assert found.held.sum() == len(data) - 8
        assert fill(found, data, 0, 8).all()
        assert wrong_bytes(tmp_path, data, found.held) == []


@examples(20)
@given(st.data())
def test_samples_come_and_go_within_the_limit(big_set: Path, draws: st.DataObject) -> None:
    """Also on the disk, as far as a block at both ends of each sample goes. What is said to be held is there."""
    data = StoredDataSet(big_set)
    sizes = sizes_of(data)
    limit = draws.draw(st.integers(10 * BLOCK, int(sizes.sum()) * 5 // 4))
    with tempfile.TemporaryDirectory() as name, closing(CacheFolder(name, data, sizes, limit, moves=True)) as found:
        for _ in range(draws.draw(st.integers(5, 40))):
            some = np.array(sorted(draws.draw(st.sets(st.integers(0, len(data) - 1), min_size=1, max_size=8))))
            match draws.draw(st.sampled_from(["store", "store", "forget", "publish"])):
                case "store":
                    here = found.store(some, stored(data, some))
                    assert here.tolist() == found.held[some].tolist()
                case "forget":
                    found.forget(some)
                    assert not found.held[some].any()
                case _:
                    found.publish()
                    ends = 2 * BLOCK * int(found.held.sum())
                    assert on_disk(Path(name), data) <= min(found.used + ends, limit + 8 * 2 * BLOCK)
            assert found.used == int(sizes[found.held].sum()) <= limit
            assert not found.stopped
            assert wrong_bytes(Path(name), data, found.held) == []


def test_a_lack_of_room_passes_where_samples_move(big_set: Path, tmp_path: Path) -> None:
    """The folder takes samples again once others have left it. Without moves, writing has ended."""
    data = StoredDataSet(big_set)
    sizes = sizes_of(data)
    limit = int(sizes[:12].sum()) + 12 * BLOCK
    with closing(CacheFolder(str(tmp_path), data, sizes, limit, moves=True)) as found:
        for place in range(30):
            fill(found, data, place, place + 1)
        assert 8 < found.held.sum() < 20
        assert not fill(found, data, 30, 34).any()
        found.forget(np.arange(8))
        assert fill(found, data, 30, 34).all()
        assert on_disk(tmp_path, data) <= limit + 4 * BLOCK
    with cache(tmp_path, data, limit) as found:
        fill(found, data)
        assert found.stopped == "full"


def test_bytes_that_no_bit_tells_of_are_given_back(big_set: Path, tmp_path: Path) -> None:
    """A server was killed before it had published them."""
    data = StoredDataSet(big_set)
    with cache(tmp_path, data) as found:
        fill(found, data, 0, 10)
        found.publish()
        fill(found, data)
    assert on_disk(tmp_path, data) > sizes_of(data).sum()
    with closing(CacheFolder(str(tmp_path), data, sizes_of(data), MUCH, moves=True)) as found:
        found.publish()
        assert found.held.sum() == 10
        assert on_disk(tmp_path, data) <= found.used + 4 * BLOCK


# -- limits ----------------------------------------------------------------------------------------------------------


def test_the_limit_is_never_exceeded(some_set: Path, tmp_path: Path) -> None:
    """Whole runs of samples are left out where there is no room, and writing has ended then."""
    data = StoredDataSet(some_set)
    all_bytes = int(sizes_of(data).sum())
    for limit in range(0, all_bytes + 5000, 4000):
        with cache(tmp_path / str(limit), data, limit) as found:
            for first in range(0, SAMPLES, 5):
                fill(found, data, first, first + 5)
                assert found.used == int(sizes_of(data)[found.held].sum()) <= limit
            assert (found.stopped == "full") == (limit < all_bytes)
            assert found.held.all() == (limit >= all_bytes)


def test_without_a_limit_some_of_the_disk_stays_free(some_set: Path, disk: Disk, caplog: Any) -> None:
    """5 % and 5 GB: of a small disk, nothing is taken. A folder in memory is named in the log."""
    disk.mount("size=8m")
    data = StoredDataSet(some_set)
    with caplog.at_level(logging.WARNING), cache(disk.folder, data, None) as found:
        assert found.limit == 0
        assert not fill(found, data).any()
        assert found.stopped == "full"
    assert "is in memory (tmpfs)" in caplog.text


def test_a_full_disk_ends_writing_and_what_is_there_stays(disk: Disk, tmp_path: Path, caplog: Any) -> None:
    """One line in the log, however much follows."""
    disk.mount("size=1m")
    values = [{"text": f"{k % 10}" * 40_000} for k in range(60)]
    brand.pack(values, tmp_path / "large", {"text": "str"}, chunk_size=CHUNK, compression="none", jobs=1)
    data = StoredDataSet(tmp_path / "large")
    with caplog.at_level(logging.WARNING), cache(disk.folder, data) as found:
        for first in range(0, 60, 5):
            fill(found, data, first, first + 5)
        assert found.stopped == "full"
        assert 5 <= int(found.held.sum()) < 30
        held = found.held.copy()
        assert wrong_bytes(disk.folder, data, held) == []
    assert caplog.text.count("no space left on the device") == 1


def test_another_error_ends_writing_too(some_set: Path, tmp_path: Path, caplog: Any) -> None:
    """Here files may not be larger than some bytes: the log says it in words, once."""
    data, before = StoredDataSet(some_set), resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.WARNING), cache(tmp_path, data) as found:
        fill(found, data, 0, 8)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            for first in range(8, SAMPLES, 4):
                fill(found, data, first, first + 4)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert found.stopped == "failed: the file would be larger than allowed here"
        assert found.held.tolist() == [True] * 8 + [False] * (SAMPLES - 8)
    assert caplog.text.count("no more samples are written") == 1


# -- whose it is -----------------------------------------------------------------------------------------------------


def test_one_server_writes_and_another_reads(some_set: Path, tmp_path: Path) -> None:
    """The second one has what was published before it came, and changes nothing."""
    data = StoredDataSet(some_set)
    with cache(tmp_path, data) as first:
        fill(first, data, 0, 20)
        first.publish()
        fill(first, data, 20, 30)
        with cache(tmp_path, data) as second:
            assert (first.writes, second.writes) == (True, False)
            assert second.held.tolist() == [True] * 20 + [False] * (SAMPLES - 20)
            assert second.limit == second.used
            second.drop(np.array([3]))
            assert not second.held[:CHUNK].any()
        assert wrong_bytes(tmp_path, data, first.held) == []
    with cache(tmp_path, data) as third:
        assert third.writes


@pytest.mark.parametrize("what", ["held.bits", "cache.json"])
@pytest.mark.parametrize("data_of_it", [b"", b"x" * 100, b"x" * (1 << 20), None])
def test_what_is_damaged_counts_as_empty(some_set: Path, tmp_path: Path, what: str, data_of_it: bytes | None) -> None:
    """The server that writes removes the bytes, too; one that only reads holds nothing."""
    data = StoredDataSet(some_set)
    with cache(tmp_path, data) as found:
        fill(found, data)
        found.publish()
    file = home(tmp_path, data) / what
    if data_of_it is None:
        file.unlink()
    else:
        file.write_bytes(data_of_it)
    with cache(tmp_path, data) as found:
        assert not found.held.any()
        assert os.listdir(home(tmp_path, data) / "chunks") == []
        assert fill(found, data).all()


def test_a_cache_of_another_index_is_emptied(some_set: Path, tmp_path: Path) -> None:
    """The data set has the same id, and its samples lie elsewhere now."""
    data = StoredDataSet(some_set)
    with cache(tmp_path, data) as found:
        fill(found, data)
        found.publish()
    facts = home(tmp_path, data) / "cache.json"
    facts.write_text(facts.read_text().replace('"digest": "', '"digest": "0'))
    with cache(tmp_path, data) as found:
        assert not found.held.any()
        assert os.listdir(home(tmp_path, data) / "chunks") == []


def test_unused_caches_of_other_data_sets_make_room(some_set: Path, tmp_path: Path) -> None:
    """The longest unused one goes first, one that a server writes stays, and so does what there is room for."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    others = [another_set(tmp_path / name) for name in ("old", "used", "new")]
    for age, other in enumerate(others):
        with cache(folder, other) as found:
            fill(found, other)
            found.publish()
        os.utime(home(folder, other) / "LOCK", (1000 + age, 1000 + age))
    with opened_caches(str(folder), make=False) as (caches, shown):
        sizes = {cached.data_set: cached.bytes for cached in list_caches(caches, shown)}
    old, used, new = (other.id for other in others)
    assert list(sizes) == [old, used, new]
    limit = sizes[used] + sizes[new] + int(sizes_of(data).sum())
    with cache(folder, others[1]), cache(folder, data, limit) as found:
        assert {cached.name for cached in (folder / "brand-cache").iterdir()} == {used, new, data.id}
        assert found.limit == limit - sizes[used] - sizes[new]
        assert fill(found, data).all()
        found.publish()
    with cache(folder, others[1]), cache(folder, data, limit - 1) as found:
        assert {cached.name for cached in (folder / "brand-cache").iterdir()} == {used, data.id}


# -- attacks ---------------------------------------------------------------------------------------------------------


def refused(folder: Path, data: StoredDataSet) -> str:
    """Why a cache folder is refused."""
    with pytest.raises(CacheError) as caught:
        CacheFolder(str(folder), data, sizes_of(data), MUCH)
    return str(caught.value)


@pytest.mark.parametrize("inner", ["brand-cache", "brand-cache/ID", "brand-cache/ID/chunks"])
@pytest.mark.parametrize("mode", [0o702, 0o777, 0o1777])
def test_a_folder_that_all_may_write_is_refused(some_set: Path, tmp_path: Path, inner: str, mode: int) -> None:
    """The message names it, and its command helps. Nothing in the folder is looked at."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    with cache(folder, data):
        pass
    bad = folder / inner.replace("ID", data.id)
    bad.chmod(mode)
    told = refused(folder, data)
    assert f"other users may write to {bad}, so its contents cannot be trusted" in told
    command = re.findall("`(.*?)`", told)[0]
    subprocess.run(command.split(), check=True)
    with cache(folder, data) as found:
        assert found.writes


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o2777, 0o1777, 0o703])
def test_a_given_folder_may_be_open_to_others(some_set: Path, tmp_path: Path, mode: int) -> None:
    """Made with umask 002, or an emptyDir of Kubernetes: Brand's folder in it is closed to others."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    with cache(folder, data) as found:
        fill(found, data)
        found.publish()
    assert (folder / "brand-cache").stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o7777 == mode
    with cache(folder, data) as found:
        assert found.held.all()


@pytest.mark.parametrize("change", ["g+rwX,g+s", "g+w", "g=u", "ug+rwx"])
def test_a_cache_opened_to_the_group_is_taken_over(some_set: Path, tmp_path: Path, change: str) -> None:
    """As Kubernetes does at each start of a pod with an fsGroup: the samples stay, and the group is shut out again."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    with cache(folder, data) as found:
        fill(found, data, 0, 30)
        found.publish()
    if os.geteuid() == 0:
        subprocess.run(["chgrp", "-R", "2000", folder], check=True)
    subprocess.run(["chmod", "-R", change, folder], check=True)
    with cache(folder, data) as found:
        assert found.writes
        assert found.held.sum() == 30
        fill(found, data, 30)
        assert not found.stopped
        found.publish()
    assert closed_to_others(folder)
    with opened_caches(str(folder), make=False) as (caches, shown):
        assert [each.held for each in list_caches(caches, shown)] == [SAMPLES]


def closed_to_others(folder: Path) -> bool:
    """Whether no other user can reach a file of the caches in a folder."""
    return (folder / "brand-cache").stat().st_mode & 0o77 == 0


def test_a_file_with_two_names_is_not_taken_over(some_set: Path, tmp_path: Path) -> None:
    """A member of the group could have linked another file of this user to the name of a part file."""
    data, folder, mine = StoredDataSet(some_set), tmp_path / "cache", tmp_path / "mine"
    with cache(folder, data) as found:
        fill(found, data, 8)
        found.publish()
    mine.write_bytes(b"mine")
    mine.chmod(0o660)
    os.link(mine, home(folder, data) / "chunks" / part_name(0))
    with cache(folder, data) as found:
        assert not fill(found, data, 0, 4).any()
        assert "has several names (hard links): remove it" in found.stopped
    assert mine.read_bytes() == b"mine"
    assert mine.stat().st_mode & 0o777 == 0o660


TRAINING = """
import os, sys
os.umask(int(sys.argv[3], 8))
from brand import BrandDataset, BrandLoader, Cache
data = BrandDataset(sys.argv[1], memory="1MB", cache=Cache(sys.argv[2]))
loader = BrandLoader(data, batch_size=8)
for epoch in range(2):
    loader.set_epoch(epoch)
    print(sum(len(batch["number"]) for batch in loader))
"""


@SERVES
@pytest.mark.parametrize("umask", ["002", "000", "077"])
def test_any_umask_will_do(some_set: Path, tmp_path: Path, umask: str) -> None:
    """A training, the next one, the list of the caches, and a fill: with the umask that distributions set."""
    script, folder = tmp_path / "train.py", tmp_path / "cache"
    script.write_text(TRAINING)
    before = os.umask(int(umask, 8))
    try:
        folder.mkdir()
        for _ in range(2):
            told = subprocess.run(
                [sys.executable, script, some_set, folder, umask], capture_output=True, text=True, check=False
            )
            assert told.stdout == f"{SAMPLES}\n" * 2, told.stderr
            assert "cache" not in told.stderr
        command = [sys.executable, "-m", "brand", "cache"]
        told = subprocess.run([*command, "fill", some_set, folder], capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        told = subprocess.run([*command, "list", folder], capture_output=True, text=True, check=True)
    finally:
        os.umask(before)
    assert "1 data set" in told.stdout
    for path in (folder / "brand-cache").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_a_data_set_is_no_folder_for_caches(some_set: Path) -> None:
    """Two data sets named in place of one and a folder: nothing is written into the second one."""
    before = sorted(some_set.iterdir())
    assert refused(some_set, StoredDataSet(some_set)).startswith(f"{some_set} is a data set, not a folder for caches")
    assert sorted(some_set.iterdir()) == before


def test_a_folder_for_all_users_is_none_of_theirs(some_set: Path, tmp_path: Path) -> None:
    """As in /tmp, each user may only exchange what is their own; what Brand makes there is closed to others."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o1777)
    with cache(folder, data) as found:
        fill(found, data)
        found.publish()
    for path in [folder / "brand-cache", *(folder / "brand-cache").rglob("*")]:
        assert path.stat().st_mode & 0o022 == 0
    assert (folder / "brand-cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("inner", ["", "brand-cache", "brand-cache/ID", "brand-cache/ID/chunks", "brand-cache/ID/LOCK"])
def test_a_folder_of_another_user_is_refused(some_set: Path, tmp_path: Path, inner: str) -> None:
    """Also where its mode is right."""
    data, folder = StoredDataSet(some_set), tmp_path / "cache"
    with cache(folder, data):
        pass
    bad = folder / inner.replace("ID", data.id)
    os.chown(bad, 12345, 12345)
    assert f"{bad} belongs to another user (number 12345)" in refused(folder, data)


@pytest.mark.parametrize("inner", ["brand-cache", "brand-cache/ID", "brand-cache/ID/chunks"])
def test_a_link_to_a_folder_is_not_followed(some_set: Path, tmp_path: Path, inner: str) -> None:
    """Nothing is written behind it."""
    data, folder, elsewhere = StoredDataSet(some_set), tmp_path / "cache", tmp_path / "elsewhere"
    with cache(folder, data):
        pass
    bad = folder / inner.replace("ID", data.id)
    bad.rename(elsewhere)
    bad.symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    assert f"{bad} is a symbolic link" in refused(folder, data)
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("name", ["LOCK", "held.bits", "cache.json", ".held.bits.tmp", "chunks/00000003.part"])
def test_a_link_to_a_file_is_not_followed(some_set: Path, tmp_path: Path, name: str) -> None:
    """Nothing is written behind it."""
    data, folder, victim = StoredDataSet(some_set), tmp_path / "cache", tmp_path / "victim"
    with cache(folder, data):
        pass
    victim.write_bytes(b"mine")
    bad = home(folder, data) / name
    bad.unlink(missing_ok=True)
    bad.symlink_to(victim)
    assert f"{bad} is a symbolic link" in refused(folder, data)
    assert victim.read_bytes() == b"mine"


def test_a_link_that_comes_later_is_not_followed(some_set: Path, tmp_path: Path) -> None:
    """In the place of a part: the write ends all writing, and the file behind the link stays as it is."""
    data, victim = StoredDataSet(some_set), tmp_path / "victim"
    victim.write_bytes(b"mine")
    with cache(tmp_path / "cache", data) as found:
        (home(tmp_path / "cache", data) / "chunks" / part_name(0)).symlink_to(victim)
        assert not fill(found, data, 0, 4).any()
        assert found.stopped.startswith("failed: ")
    assert victim.read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_is_named(some_set: Path, tmp_path: Path) -> None:
    """A parent that is missing, and a file in its place."""
    data = StoredDataSet(some_set)
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "missing" / "cache", tmp_path / "file"):
        assert str(folder) in refused(folder, data)


def test_the_lock_goes_with_the_folder_also_where_a_child_was_forked(some_set: Path, tmp_path: Path) -> None:
    """A process that was forked meanwhile has the descriptor, too; closing lets go of the lock for both."""
    data = StoredDataSet(some_set)
    found = CacheFolder(str(tmp_path), data, sizes_of(data), MUCH)
    copy = os.dup(found._home.lock or 0)
    try:
        found.close()
        with cache(tmp_path, data) as again:
            assert again.writes
    finally:
        os.close(copy)


def test_no_descriptor_is_left(some_set: Path, tmp_path: Path) -> None:
    """After a life, and after a refusal."""
    data = StoredDataSet(some_set)
    everything = stored(data, np.arange(SAMPLES))
    gc.collect()  # other tests may have left some
    before = descriptors()
    with cache(tmp_path / "cache", data) as found:
        found.store(np.arange(SAMPLES), everything)
        found.publish()
    (home(tmp_path / "cache", data) / "chunks").chmod(0o707)
    refused(tmp_path / "cache", data)
    assert descriptors() <= before
