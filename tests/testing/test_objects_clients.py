"""The object store of `tests.tools.objects`, asked by `obstore`, a client that training uses: S3, GCS and the web."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.tools.objects import (
    S3,
    Busy,
    Expired,
    Fault,
    Faults,
    Flavour,
    Gcs,
    Http,
    Keys,
    Longer,
    ObjectStore,
    Redirect,
    Reset,
    Short,
    Stall,
    WrongRange,
)
from tests.tools.objects.faults import What

obstore_store = pytest.importorskip("obstore.store", reason="obstore is not installed: pip install obstore")
obstore_errors = pytest.importorskip("obstore.exceptions", reason="obstore is not installed: pip install obstore")

DATA = random.Random(1).randbytes(300_000)
FLAVOURS: list[Flavour] = [S3(), S3(Keys("key", "secret")), S3(Keys("key", "secret", "session")), Gcs(), Gcs("token")]
WEB: list[Flavour] = [Http(), Http("token")]


def client(store: ObjectStore, retries: int = 0, **more: Any) -> Any:
    """A client for the bucket `bucket` that repeats a request so many times."""
    scheme = {S3: "s3://bucket", Gcs: "gs://bucket"}.get(type(store.flavour), f"{store.url}/bucket")
    soon = timedelta(milliseconds=1)
    backoff = {"init_backoff": soon, "max_backoff": soon, "base": 2}
    return obstore_store.from_url(
        scheme, retry_config={"max_retries": retries, "backoff": backoff}, **{**store.options, **more}
    )


@pytest.fixture(params=FLAVOURS + WEB, ids=repr)
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    flavour: Flavour = request.param
    with ObjectStore(flavour=flavour) as found:
        found.put("bucket/a b/ü=1+%.txt", DATA)
        found.put("bucket/k", DATA)
        yield found


def test_objects_and_ranges_are_read(store: ObjectStore) -> None:
    """Without a LIST or a HEAD, and no byte more than was asked for."""
    found = client(store)
    assert bytes(found.get("a b/ü=1+%.txt").bytes()) == DATA
    assert bytes(found.get_range("k", start=10, end=20)) == DATA[10:20]
    assert {(each.operation, each.status, each.sent) for each in store.requests} == {
        ("GET", 200, len(DATA)),
        ("GET", 206, 10),
    }
    assert found.head("k")["size"] == len(DATA)
    with pytest.raises(FileNotFoundError):
        found.get("none")


def test_objects_are_written(store: ObjectStore) -> None:
    """And read again, with the ETag that the write has told."""
    found = client(store)
    told = found.put("new/k", DATA[:1000], use_multipart=False)
    assert bytes(found.get("new/k").bytes()) == DATA[:1000]
    assert found.head("new/k")["e_tag"] == told["e_tag"]


@pytest.mark.parametrize("flavour", FLAVOURS, ids=repr)
def test_one_of_two_writers_creates(flavour: Flavour) -> None:
    """The other one hears that the object is there."""
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        found = client(store)
        found.put("k", b"first", mode="create", use_multipart=False)
        with pytest.raises(obstore_errors.AlreadyExistsError):
            found.put("k", b"second", mode="create", use_multipart=False)
        assert bytes(found.get("k").bytes()) == b"first"


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS, ids=repr)
def test_a_large_object_is_uploaded_in_parts(flavour: Flavour) -> None:
    """And appears whole; so do lists of what is there."""
    large = random.Random(2).randbytes(11_000_000)
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        found = client(store)
        found.put("x/large", large, use_multipart=True)
        assert [each.operation for each in store.requests].count("PART") == 3
        assert bytes(found.get("x/large").bytes()) == large
        assert [each["path"] for page in found.list("x") for each in page] == ["x/large"]
        assert list(found.list_with_delimiter()["common_prefixes"]) == ["x"]


def test_a_wrong_secret_is_told() -> None:
    """As is a wrong token of a session, and none at all."""
    with ObjectStore(flavour=S3(Keys("key", "secret"))) as store:
        store.put("bucket/k", DATA)
        with pytest.raises(obstore_errors.PermissionDeniedError):
            client(store, secret_access_key="wrong").get("k")
        options = {**store.options, "skip_signature": True}
        with pytest.raises(obstore_errors.PermissionDeniedError):
            obstore_store.from_url("s3://bucket", **options).get("k")
        assert bytes(client(store).get("k").bytes()) == DATA


@pytest.mark.parametrize("what", [Busy(), Busy(429, 0), Busy(500), Reset(1000), Short(1000)], ids=repr)
def test_a_client_repeats_what_has_failed(store: ObjectStore, what: What) -> None:
    """And has the right bytes then; without a repetition it has an error, never wrong bytes."""
    store.faults = Faults(Fault(what, "GET", only={1, 2}))
    with pytest.raises(obstore_errors.GenericError):
        bytes(client(store).get("k").bytes())
    assert bytes(client(store, retries=3).get("k").bytes()) == DATA
    assert [request.fault for request in store.requests] == [what, what, None]


@pytest.mark.parametrize("flavour", [S3(), Gcs()], ids=repr)
def test_an_expired_token_is_an_error(flavour: Flavour) -> None:
    """Which a client does not repeat."""
    with ObjectStore(flavour=flavour, faults=Faults(Fault(Expired()))) as store:
        store.put("bucket/k", DATA)
        with pytest.raises((obstore_errors.GenericError, obstore_errors.UnauthenticatedError)):
            client(store, retries=3).get("k")
        assert len(store.requests) == 1


def test_a_client_has_a_limit_for_an_answer_that_stalls() -> None:
    """Its own."""
    with ObjectStore(faults=Faults(Fault(Stall(600.0)))) as store:
        store.put("bucket/k", DATA)
        options = {**store.options["client_options"], "timeout": "50ms"}
        with pytest.raises(obstore_errors.GenericError):
            client(store, client_options=options).get("k")


def test_what_this_client_does_not_notice() -> None:
    """A caller must compare the length of what it gets, and its checksum: a redirect is followed to any host."""
    with ObjectStore() as store, ObjectStore() as other:
        store.put("bucket/k", DATA)
        other.put("bucket/evil", bytes(1000))
        found = client(store)
        store.faults = Faults(
            Fault(WrongRange(), only={1}),
            Fault(Longer(7), only={2}),
            Fault(Redirect(f"{other.url}/bucket/evil"), only={3}),
        )
        with pytest.raises(obstore_errors.GenericError, match=r"got 11\.\.21"):
            found.get_range("k", start=10, end=20)
        assert bytes(found.get_range("k", start=10, end=20)) == DATA[10:20] + bytes(7)
        assert bytes(found.get_range("k", start=10, end=20)) == bytes(10)
        assert len(other.requests) == 1
