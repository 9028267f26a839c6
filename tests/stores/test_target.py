"""Of two writers of a manifest one wins, and an answer that was lost changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brand.errors import TargetExistsError
from brand.stores import target as module
from brand.stores.opening import open_store
from brand.stores.target import StoreTarget
from tests.buckets import Bucket, bucket
from tests.tools.objects import S3, Busy, Fault, Faults, Flavour, Gcs, Http, Keys, Lost, Reset
from tests.tools.objects.faults import What

pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")


@pytest.fixture(params=[S3(Keys("key", "secret")), Gcs(), Http()], ids=repr)
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    flavour: Flavour = request.param
    monkeypatch.setattr(module, "_PAUSES_S", (0.001,) * 4)
    with bucket(tmp_path, monkeypatch, flavour) as found:
        yield found


@pytest.fixture
def target(there: Bucket) -> StoreTarget:
    return StoreTarget(open_store(there.url("set")))


def test_files_become_objects(target: StoreTarget, there: Bucket, tmp_path: Path) -> None:
    """And are gone here; the same file again replaces them."""
    for data in (b"first", b"second"):
        (tmp_path / "file").write_bytes(data)
        target.publish(tmp_path / "file", "chunks/a")
        assert not (tmp_path / "file").exists()
        assert (there.place("set") / "chunks/a").read_bytes() == data


def test_the_first_manifest_stays(target: StoreTarget, there: Bucket) -> None:
    """The same once more is no error; another one is, longer or shorter."""
    target.finish("brand.json", b"the first")
    target.finish("brand.json", b"the first")
    for other in (b"the other", b"longer than the first", b"short"):
        with pytest.raises(TargetExistsError, match="has finished there meanwhile"):
            target.finish("brand.json", other)
    assert (there.place("set") / "brand.json").read_bytes() == b"the first"


@pytest.mark.slow
def test_of_many_that_finish_together_one_wins(target: StoreTarget, there: Bucket) -> None:
    """All others hear it. A web server knows no create-only, so it is left out."""
    if isinstance(there.store.flavour, Http):
        return
    outcomes: list[bytes] = []

    def finish(data: bytes) -> None:
        try:
            target.finish("brand.json", data)
            outcomes.append(data)
        except TargetExistsError:
            outcomes.append(b"")

    threads = [threading.Thread(target=finish, args=(bytes([number]) * 100,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [data for data in outcomes if data]
    assert (len(outcomes), won) == (8, [(there.place("set") / "brand.json").read_bytes()])


@pytest.mark.parametrize("what", [Lost(), Reset(3), Busy()], ids=repr)
@pytest.mark.parametrize("times", [1, 3])
def test_a_broken_request_is_repeated(target: StoreTarget, there: Bucket, what: What, times: int) -> None:
    """Whether the store has done it or not."""
    there.store.faults = Faults(Fault(what, "PUT", only=range(1, times + 1)))
    target.finish("brand.json", b"the first")
    assert (there.place("set") / "brand.json").read_bytes() == b"the first"
    assert sum(request.fault is not None for request in there.store.requests) == times


def test_what_is_hopeless_is_not_repeated(target: StoreTarget, there: Bucket) -> None:
    """No permission."""
    there.store.faults = Faults(Fault(Busy(403), "PUT"))
    with pytest.raises(PermissionError):
        target.finish("brand.json", b"the first")
    assert sum(request.operation == "PUT" for request in there.store.requests) == 1
