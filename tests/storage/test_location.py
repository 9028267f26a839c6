"""A data set behind a `Location`: all bytes of chunks come from there: faults reach them, and it may be no folder."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brand.errors import ChecksumError, FormatError, MissingFileError, UnreadableError
from brand.formats.constants import PREAMBLE_SIZE, chunk_name
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.files import Range
from brand.storage.io.location import FolderLocation, Location, located
from brand.testing.node import random_address, running, running_server
from brand.testing.storage import BlockedStorage, CountedStorage, Fault, FaultyStorage, SlowStorage
from brand.torch import BrandDataset, BrandSampler
from tests.storage.support import NOTES, SAMPLES, chunk, divide
from tests.support import wait_until
from tests.tools.cluster import RunningCluster, running_cluster

FRONT = Fault(end=PREAMBLE_SIZE)
"""No chunk's front can be read, and all samples can."""


# -- faults, wherever bytes of chunks are read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("error", UnreadableError, "Input/output error"),
        ("short", ChecksumError, "the sample's bytes have changed"),
        ("wrong", ChecksumError, "the sample's bytes have changed"),
    ],
)
def test_faults_reach_exact_reads_of_a_client(plain_set: Path, kind: str, error: type[FormatError], said: str) -> None:
    """The error names chunk and sample, as for files that are broken; without the fault all is as before."""
    broken = FaultyStorage()
    data_set = BrandDataset(broken.at(plain_set), fields=("text",))
    stored = StoredDataSet(plain_set)
    index = int(stored.rows(9, 10)["index"][0])
    offset, size = (int(stored.rows(9, 10)[name][0]) for name in ("offset", "size"))
    assert data_set[index] == (SAMPLES[index]["text"],)
    broken.faults.append(Fault(chunk=2, first=offset, end=offset + size, kind=kind))  # type: ignore[arg-type]
    with pytest.raises(error, match=said) as caught:
        data_set[index]
    assert (caught.value.path, caught.value.chunk, caught.value.sample) == (chunk(plain_set, 2), 2, index)
    others = [k for k in range(10) if k != index]
    assert data_set.__getitems__(others) == [(SAMPLES[k]["text"],) for k in others]
    broken.faults.clear()
    assert data_set[index] == (SAMPLES[index]["text"],)


def test_faults_reach_the_tables_of_chunks(plain_set: Path) -> None:
    """A table that brings other bytes has a wrong front, so the index is believed; the samples themselves are right."""
    fronts_end = StoredDataSet(plain_set).rows(0, 10)["offset"][::4].tolist()
    faults = [Fault(chunk=number, end=end, kind="wrong") for number, end in enumerate(fronts_end)]
    counted = CountedStorage(inner=FaultyStorage(*faults))
    data_set = StoredDataSet(counted.at(plain_set))
    assert [data_set.sample(index) for index in range(10)] == SAMPLES
    assert {call.chunk for call in counted.reads if call.offset == 0} == {0, 1, 2}  # looked at the fronts
    assert all(call.exact for call in counted.reads)


def test_faults_reach_the_dictionary_of_a_compressed_data_set(dense_set: Path) -> None:
    """Another chunk has it, too; where no chunk gives it, no sample can be decoded, and the error names a chunk."""
    broken = FaultyStorage(Fault(chunk=0, end=PREAMBLE_SIZE))
    assert StoredDataSet(broken.at(dense_set)).sample(7) == NOTES[7]
    broken.faults[:] = [FRONT]
    data_set = StoredDataSet(broken.at(dense_set))
    with pytest.raises(UnreadableError, match="Input/output error") as caught:
        data_set.sample(7)
    assert caught.value.path == chunk(dense_set, 1)
    broken.faults.clear()
    assert data_set.sample(7) == NOTES[7]


def test_a_server_needs_no_dictionary(dense_set: Path) -> None:
    """It hands on what is stored: fronts that it cannot read do not keep it from reading samples."""
    with running_server(dense_set, memory=1.0, storage=FaultyStorage(FRONT)) as server:
        data_set = BrandDataset(dense_set, server=server.address, fields=("index", "number"))
        assert sorted(data_set.__getitems__(list(BrandSampler(data_set)))) == [(k, k) for k in range(130)]
        assert server.facts()["failed_reads"] == 0


def all_reachable(cluster: RunningCluster) -> bool:
    """Whether both nodes can ask each other."""
    return all(len(cluster.facts(node)["cluster"]["reachable"]) == 1 for node in cluster.servers)


@pytest.mark.parametrize("kind", ["error", "short", "wrong"])
def test_faults_reach_what_is_read_for_another_node(plain_set: Path, tmp_path: Path, kind: str) -> None:
    """Its client hears which sample the owner cannot read; it gets the sample when the owner can."""
    shares = [tmp_path / "0", tmp_path / "1"]
    divide(plain_set, shares)
    theirs = int(StoredDataSet(shares[1]).rows(9, 10)["index"][0])
    broken = FaultyStorage(inner=SlowStorage(longest_s=0.001))
    with running_cluster(shares, nodes=2, storage={1: broken}) as cluster:
        wait_until(lambda: all_reachable(cluster), "the nodes can be reached")
        data_set = BrandDataset(shares[0], server=cluster.addresses[0], fields=("text",))
        assert data_set[theirs] == (SAMPLES[theirs]["text"],)
        broken.faults.append(Fault(chunk=2, kind=kind))  # type: ignore[arg-type]
        with pytest.raises(UnreadableError, match="node 1, which has it, cannot read it") as caught:
            data_set[theirs]
        assert (caught.value.chunk, caught.value.sample) == (2, theirs)
        broken.faults.clear()
        assert data_set[theirs] == (SAMPLES[theirs]["text"],)


def test_storage_is_broken_alike_for_a_server_and_its_client(plain_set: Path) -> None:
    """What a server cannot read, a client of the same storage cannot read exactly either."""
    broken = FaultyStorage(Fault(chunk=1))
    with running_server(plain_set, memory=1.0, storage=broken) as server:
        data_set = BrandDataset(broken.at(plain_set), server=server.address, fields=("index",))
        with pytest.raises(UnreadableError, match="Input/output error") as caught:
            data_set.__getitems__(list(BrandSampler(data_set)))
        assert caught.value.chunk == 1


def test_a_broken_storage_can_be_pickled(plain_set: Path) -> None:
    """As a worker that is spawned gets it: with its faults. What waits for this process cannot go into another one."""
    storage = SlowStorage(longest_s=0.001, inner=FaultyStorage(Fault(chunk=0)))
    data_set = pickle.loads(pickle.dumps(StoredDataSet(storage.at(plain_set))))
    first, last = (int(data_set.rows(place, place + 1)["index"][0]) for place in (0, 9))
    assert data_set.sample(last) == SAMPLES[last]
    with pytest.raises(UnreadableError):
        data_set.sample(first)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(BlockedStorage().at(plain_set))


# -- a data set that is in no folder ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objects:
    """Chunks that are objects in memory; manifest and index are in files."""

    local: Path
    chunks: dict[int, bytes] = field(hash=False)

    def chunk_file(self, number: int) -> str:
        """See `Location`."""
        return f"objects/{chunk_name(number)}"

    in_store = False
    version = None
    traffic = None

    @property
    def name(self) -> str:
        """See `Location`."""
        return str(self.local)

    def dictionary(self) -> None:
        """See `Location`."""

    def chunk_bytes(self, number: int) -> int:
        """See `Location`."""
        return len(self.found(number))

    def reader(self) -> ObjectReader:
        """See `Location`."""
        return ObjectReader(self)

    def vector_reader(self, *, page_cache: bool) -> None:
        """Objects are not read into pieces of memory."""

    def found(self, number: int) -> bytes:
        """All of a chunk."""
        if number not in self.chunks:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.chunk_file(number))
        return self.chunks[number]


class ObjectReader:
    """See `Reader`."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read_into(self, ranges: Sequence[Range]) -> None:
        """See `Reader`."""
        for number, offset, buffer in ranges:
            size = buffer.nbytes
            buffer[:] = memoryview(self._objects.found(number)[offset : offset + size].ljust(size, b"\0"))

    def close(self) -> None:
        """See `Reader`."""


@pytest.fixture
def objects(dense: Path) -> Objects:
    """The compressed notes, whose chunks are in no file."""
    chunks = {int(path.stem): path.read_bytes() for path in (dense / "chunks").iterdir()}
    shutil.rmtree(dense / "chunks")
    return Objects(dense, chunks)


def test_exact_reads_of_objects(objects: Objects) -> None:
    """One by one, all together, and from a copy that was pickled."""
    data_set = StoredDataSet(objects)
    assert [data_set.sample(index) for index in range(130)] == NOTES
    copy = pickle.loads(pickle.dumps(data_set))
    assert [copy.sample(index) for index in (129, 0)] == [NOTES[129], NOTES[0]]


def test_draws_of_objects(objects: Objects) -> None:
    """A server reads stripes of them, and each sample comes once."""
    server = NodeServer(ServerSpec(objects, random_address(), memory=1.0))
    with running(str(objects.local), server) as found:
        data_set = BrandDataset(objects, server=found.address, fields=("index", "text"))
        drawn = data_set.__getitems__(list(BrandSampler(data_set)))
        assert sorted(drawn) == [(k, NOTES[k]["text"]) for k in range(130)]
        facts = found.facts()
    assert (facts["failed_reads"], facts["direct"]) == (0, 0)


def test_an_object_that_is_missing_is_named(objects: Objects) -> None:
    """By the name that its location gives it."""
    data_set = StoredDataSet(objects)
    lost = int(data_set.rows(129, 130)["index"][0])
    del objects.chunks[1]
    with pytest.raises(MissingFileError, match=r"objects/chunks/00000001\.brand, chunk 1, sample"):
        data_set.sample(lost)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_named_by_its_path(plain_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative one stays right when the working folder changes; a location is taken as it is."""
    monkeypatch.chdir(plain_set.parent)
    found: list[Location] = [located(where) for where in (plain_set, str(plain_set), plain_set.name)]
    assert found == [FolderLocation(plain_set)] * 3
    assert located(found[0]) is found[0]
    data_set = StoredDataSet(plain_set.name)
    monkeypatch.chdir("/")
    assert data_set.sample(3) == SAMPLES[3]
