"""Objects read from front to back: the bytes are right whatever is left out, and what is in flight is bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.storage.io import frontback
from brand.storage.io.frontback import ReadAhead
from brand.stores.opening import open_store
from brand.stores.store import Store, Wanted, read_all
from tests.rounds import examples
from tests.tools.objects import Busy, Fault, Faults, Http, ObjectStore, Reset

pytestmark = pytest.mark.slow


def contents(number: int, size: int) -> bytes:
    """Bytes that tell where they belong."""
    return bytes((7 * number + at) % 251 for at in range(size))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ObjectStore, Store]]:
    """A web server with an empty folder, and the store that reads it."""
    with ObjectStore(tmp_path, Http()) as opened:
        yield opened, open_store(f"{opened.url}/set")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A web server for many examples."""
    with ObjectStore(tmp_path_factory.mktemp("server"), Http()) as opened:
        yield opened


def put(opened: ObjectStore, sizes: list[int]) -> list[tuple[int, str, int]]:
    """Objects of these sizes; numbers, names and sizes."""
    for number, size in enumerate(sizes):
        opened.put(f"set/{number}", contents(number, size))
    return [(number, str(number), size) for number, size in enumerate(sizes)]


@examples(40)
@given(data=st.data(), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_any_pass_brings_the_bytes(server: ObjectStore, data: st.DataObject, sizes: list[int]) -> None:
    """Reads that go forward, leave out bytes and objects, go back, and end anywhere."""
    objects = put(server, sizes)
    store = open_store(f"{server.url}/set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontback, "RANGE_BYTES", data.draw(st.integers(1, 40), "range"))
        patch.setattr(frontback, "AT_ONCE", data.draw(st.integers(1, 5), "at once"))
        with closing(ReadAhead(store, objects)) as reads:
            for number in sorted(data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12), "objects")):
                first = data.draw(st.integers(0, sizes[number]), "first")
                end = data.draw(st.integers(first, sizes[number]), "end")
                buffer = bytearray(end - first)
                reads.read_into(number, str(number), first, memoryview(buffer))
                assert buffer == contents(number, sizes[number])[first:end]


def test_a_pass_from_front_to_back_asks_for_each_byte_once(
    served: tuple[ObjectStore, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the reads are; and the size of each object is told without a request of its own."""
    opened, store = served
    sizes = [100, 1, 37, 1000, 64]
    objects = put(opened, sizes)
    monkeypatch.setattr(frontback, "RANGE_BYTES", 32)
    with closing(ReadAhead(store, objects)) as reads:
        for number, size in enumerate(sizes):
            assert reads.size(number, str(number)) == size
            for at in range(0, size, 10):
                buffer = bytearray(min(10, size - at))
                reads.read_into(number, str(number), at, memoryview(buffer))
                assert buffer == contents(number, size)[at : at + 10]
    assert len(opened.requests) == sum(-(-size // 32) for size in sizes)
    assert sum(request.sent for request in opened.requests) == sum(sizes)
    assert store.traffic.to_json() == {"requests": len(opened.requests), "bytes": sum(sizes)}


def test_what_is_in_flight_is_bounded_and_covers_what_comes_next(
    served: tuple[ObjectStore, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first byte is used, just so many ranges are asked for, of as many objects as it takes."""
    opened, store = served
    objects = put(opened, [10] * 100)
    begun, all_begun = [0], threading.Event()

    def counted(store: Store, wanted: Sequence[Wanted]) -> None:
        begun[0] += 1
        if begun[0] == 5:
            all_begun.set()
        assert all_begun.wait(60)  # no range ends before as many have begun as may be in flight
        read_all(store, wanted)

    monkeypatch.setattr(frontback, "read_all", counted)
    monkeypatch.setattr(frontback, "AT_ONCE", 5)
    with closing(ReadAhead(store, objects)) as reads:
        reads.read_into(0, "0", 0, memoryview(bytearray(10)))
        assert begun[0] == 5


def test_an_object_that_is_cut_gives_what_it_has(
    served: tuple[ObjectStore, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is told. A read within it is right, a read across its end is an error."""
    opened, store = served
    put(opened, [30])
    with closing(ReadAhead(store, [(0, "0", 100)])) as reads:
        assert reads.size(0, "0") == 30
        buffer = bytearray(20)
        reads.read_into(0, "0", 5, memoryview(buffer))
        assert buffer == contents(0, 30)[5:25]
        with pytest.raises(OSError, match="cut or replaced"):
            reads.read_into(0, "0", 25, memoryview(bytearray(10)))


def test_an_object_that_is_missing_stops_no_other(served: tuple[ObjectStore, Store]) -> None:
    """The error comes where it is read, also if it was asked for long before."""
    opened, store = served
    put(opened, [30, 30, 30])
    (opened.folder.root / "set" / "1").unlink()
    with closing(ReadAhead(store, [(number, str(number), 30) for number in range(3)])) as reads:
        reads.read_into(0, "0", 0, memoryview(bytearray(30)))
        with pytest.raises(FileNotFoundError):
            reads.size(1, "1")
        with pytest.raises(FileNotFoundError):
            reads.read_into(1, "1", 0, memoryview(bytearray(30)))
        buffer = bytearray(30)
        reads.read_into(2, "2", 0, memoryview(buffer))
        assert buffer == contents(2, 30)


def test_requests_that_were_repeated_by_the_library_are_not_counted(served: tuple[ObjectStore, Store]) -> None:
    """It does not tell of them. Bytes are those that came."""
    opened, store = served
    put(opened, [1000])
    opened.faults = Faults(Fault(Busy(), only={1}), Fault(Reset(10), only={2}))
    with closing(ReadAhead(store, [(0, "0", 1000)])) as reads:
        buffer = bytearray(1000)
        reads.read_into(0, "0", 0, memoryview(buffer))
    assert buffer == contents(0, 1000)
    assert len(opened.requests) >= 2
    assert store.traffic.to_json() == {"requests": 1, "bytes": 1000}
