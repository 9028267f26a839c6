"""Objects of S3, Google and web servers, at their best and at their worst."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brand.errors import UsageError
from brand.stores import cloud
from brand.stores.opening import open_store
from brand.stores.store import Store, read_all
from tests.buckets import KEYS, Bucket, bucket
from tests.tools.objects import (
    S3,
    Bomb,
    Busy,
    Endless,
    Expired,
    Fault,
    Faults,
    Flavour,
    Gcs,
    Http,
    Longer,
    Lost,
    ObjectStore,
    Redirect,
    Reset,
    Short,
    Stall,
    WrongETag,
    WrongRange,
)
from tests.tools.objects.faults import What

DATA = random.Random(1).randbytes(3_000_000)
PATIENCE_S = 1.0


@pytest.fixture(params=[S3(KEYS), S3(), Gcs(), Http()], ids=repr)
def any_bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of each flavour, with one object."""
    flavour: Flavour = request.param
    with bucket(tmp_path, monkeypatch, flavour) as found:
        if flavour == S3():
            monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        found.store.put("bucket/set/k", DATA)
        yield found


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of S3 with one object."""
    with bucket(tmp_path, monkeypatch) as found:
        found.store.put("bucket/set/k", DATA)
        yield found


def read(store: Store, offset: int = 0, size: int = len(DATA), name: str = "k") -> bytes:
    """A range of an object."""
    memory = bytearray(size)
    read_all(store, [(name, offset, memoryview(memory))])
    return bytes(memory)


def test_reads_ask_for_what_is_wanted_and_nothing_else(any_bucket: Bucket) -> None:
    """One GET for each range; no list, no question beforehand, no byte too many."""
    store = open_store(any_bucket.url("set"))
    assert store.read("k", len(DATA)) == DATA
    assert read(store) == DATA
    wanted = [(start, bytearray(100_000)) for start in range(0, 3_000_000, 100_000)]
    read_all(store, [("k", start, memoryview(memory)) for start, memory in wanted])
    assert b"".join(memory for _, memory in wanted) == DATA
    asked = any_bucket.store.requests
    assert {request.operation for request in asked} == {"GET"}
    assert sorted(request.sent for request in asked) == [100_000] * 30 + [len(DATA)] * 2


def test_an_object_that_is_not_there(any_bucket: Bucket) -> None:
    """As for files."""
    store = open_store(any_bucket.url("set"))
    acts: list[Callable[[], object]] = [lambda: store.read("none", 10), lambda: read(store, name="none")]
    for act in acts:
        with pytest.raises(FileNotFoundError) as caught:
            act()
        assert caught.value.filename == any_bucket.url("set") + "/none"


def test_an_object_larger_than_allowed_is_not_read(any_bucket: Bucket) -> None:
    """The rest of it is left where it is."""
    with pytest.raises(OSError, match="more than the 1,000 bytes"):
        open_store(any_bucket.url("set")).read("k", 1000)


@pytest.mark.parametrize(
    "what", [Busy(503), Busy(429), Lost(), Reset(after=1000), Short(after=1000), Stall(60, after=500_000)], ids=repr
)
def test_what_goes_wrong_once_is_repeated(s3: Bucket, what: What, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, cut, ended early, stuck: the bytes are right. A body goes on where it stopped."""
    monkeypatch.setattr(cloud, "EAGER_STALL_S", 0.3)
    s3.store.faults = Faults(Fault(what, only={1}))
    assert read(open_store(s3.url("set"))) == DATA
    again = s3.store.requests[1:]
    assert len(again) == 1
    if isinstance(what, Stall):
        assert again[0].range == f"bytes=500000-{len(DATA) - 1}"


def test_a_store_that_is_slow_as_a_whole_is_given_time(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager tries do not end a range that patience would have brought."""
    monkeypatch.setattr(cloud, "EAGER_STALL_S", 0.05)
    s3.store.faults = Faults(Fault(Stall(0.5)))
    assert read(open_store(s3.url("set"))) == DATA
    assert len(s3.store.requests) == 5  # four eager ones


HOSTILE: list[tuple[What, str]] = [
    (Longer(1), "more than the 5,000 bytes"),
    (Longer(1 << 40), "more than the 5,000 bytes"),
    (Endless(), "Content-Length"),
    (WrongRange(), "got 101..5101"),
    (WrongETag(), "replaced"),
    (Bomb(), "more than the 5,000 bytes|Content-Length|replaced"),
]


@pytest.mark.parametrize(("what", "told"), HOSTILE, ids=[repr(what) for what, _ in HOSTILE])
def test_a_hostile_store(s3: Bucket, what: What, told: str) -> None:
    """Answers that are no answers are errors that name the object, soon, and take no memory."""
    store = open_store(s3.url("set"), PATIENCE_S)
    assert read(store, 0, 10) == DATA[:10]
    s3.store.faults = Faults(Fault(what))
    with pytest.raises(OSError, match=told) as caught:
        read(store, 100, 5000)
    assert caught.value.filename == "s3://bucket/set/k"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_leads_to_another_host(s3: Bucket, status: int) -> None:
    """Also where that host has the object. The store itself may answer from another place of its own."""
    with ObjectStore() as other:
        other.put("bucket/set/k", DATA)
        elsewhere = other.url.replace("127.0.0.1", "localhost") + "/bucket/set/k"
        s3.store.faults = Faults(Fault(Redirect(elsewhere, status)))
        with pytest.raises(OSError, match="s3://bucket/set/k"):
            read(open_store(s3.url("set"), PATIENCE_S))
        assert other.requests == []


def test_a_redirect_within_the_host_is_followed(s3: Bucket) -> None:
    """As buckets that are new have them."""
    s3.store.put("bucket/moved/k", DATA)
    s3.store.faults = Faults(Fault(Redirect(s3.store.url + "/bucket/set/k"), key="bucket/moved/*"))
    with pytest.raises(OSError, match="the secret key is wrong"):  # signed for another name
        read(open_store(s3.url("moved"), PATIENCE_S))
    assert [request.key for request in s3.store.requests] == ["bucket/moved/k", "bucket/set/k"]


def test_an_object_that_is_replaced_is_an_error(any_bucket: Bucket) -> None:
    """From the first read on it stays the same one, until the data set is opened again."""
    store = open_store(any_bucket.url("set"))
    read(store)
    other = bytes(reversed(DATA))
    any_bucket.store.put("bucket/set/k", other)
    with pytest.raises(OSError, match="replaced while it was in use"):
        read(store, 5, 10)
    assert read(open_store(any_bucket.url("set"))) == other


def test_an_object_that_was_cut_is_an_error(any_bucket: Bucket) -> None:
    """A range that ends after it, and one that begins there."""
    any_bucket.store.put("bucket/set/k", DATA[:1000])
    for offset in (500, 5000):
        with pytest.raises(OSError, match=r"has only 500 of|ends before this range|Requested|416"):
            read(open_store(any_bucket.url("set"), PATIENCE_S), offset, 1000)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-secret", "the secret key is wrong"),
        ("AWS_ACCESS_KEY_ID", "a-secret", "the access key is unknown to the store"),
    ],
)
def test_wrong_credentials(s3: Bucket, name: str, value: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong is said in words; the credentials are not."""
    monkeypatch.setenv(name, value)
    with pytest.raises(PermissionError, match=told) as caught:
        read(open_store(s3.url("set"), PATIENCE_S))
    assert "a-secret" not in str(caught.value)


def test_expired_credentials(s3: Bucket) -> None:
    """New ones are looked for once: nothing else helps."""
    s3.store.faults = Faults(Fault(Expired()))
    with pytest.raises(OSError, match="the credentials have expired: renew them"):
        read(open_store(s3.url("set")))
    assert len(s3.store.requests) == 2


def test_a_bucket_that_is_not_there(s3: Bucket) -> None:
    """Is said, and not taken for a missing object."""
    with pytest.raises(OSError, match="there is no such"):
        read(open_store("s3://other/set", PATIENCE_S))


def test_a_store_that_is_not_there(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience, with what to look at."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match=r"no connection could be made: check host, port, network .*127\.0\.0\.1:9"):
        read(open_store(s3.url("set"), PATIENCE_S))


def test_a_forked_process_is_refused_before_it_waits(s3: Bucket) -> None:
    """With the cure."""
    store = open_store(s3.url("set"))
    read(store)
    child = os.fork()
    if not child:
        try:
            read(store)
        except UsageError as error:
            os._exit(0 if "spawn" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how it is installed."""
    for name in ("obstore", "fsspec.core", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    for url, told in (
        ("s3://bucket/x", r"obstore, .* pip install 'brand-data\[cloud\]'"),
        ("hf://datasets/owner/name", "pip install huggingface_hub"),
        ("ftp://host/x", "pip install fsspec"),
    ):
        with pytest.raises(UsageError, match=told):
            open_store(url)
