"""What goes wrong on purpose in the object store: a fault shows at the client as it is said; a seed repeats it."""

from __future__ import annotations

import gzip
import http.client
import random
import zlib
from collections.abc import Iterator
from http.client import IncompleteRead, RemoteDisconnected
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testing.support import LIMIT_S, Told, ask
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
    Keys,
    Longer,
    Lost,
    ObjectStore,
    Redirect,
    Request,
    Reset,
    Short,
    Stall,
    WrongETag,
    WrongRange,
)
from tests.tools.objects.answers import Answer, FilePiece, answer, split
from tests.tools.objects.faults import Asked, What

DATA = random.Random(1).randbytes(300_000)
TARGET = "/bucket/k"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as found:
        found.put("bucket/k", DATA)
        yield found


def spoiled(store: ObjectStore, what: What, **headers: str) -> Told:
    """A read that goes wrong; the next one is right."""
    store.faults = Faults(Fault(what, only={1}))
    told = ask(store.url, "GET", TARGET, headers=headers)
    right = ask(store.url, "GET", TARGET)
    assert (right.status, right.body) == (200, DATA)
    assert [request.fault for request in store.requests[-2:]] == [what, None]
    return told


@pytest.mark.parametrize(("status", "code"), [(503, b"SlowDown"), (429, b"TooManyRequests"), (500, b"InternalError")])
def test_a_busy_store_says_so(store: ObjectStore, status: int, code: bytes) -> None:
    """With the status, S3's code, and when to come again."""
    told = spoiled(store, Busy(status, retry_after_s=7))
    assert (told.status, code in told.body, told.headers["retry-after"]) == (status, True, "7")
    assert "retry-after" not in spoiled(store, Busy(status)).headers


@pytest.mark.parametrize(("flavour", "status"), [(S3(), 400), (Gcs(), 401), (Http(), 401)], ids=repr)
def test_an_expired_token_is_told_as_each_store_tells_it(flavour: Flavour, status: int) -> None:
    """S3 has a code for it."""
    with ObjectStore(flavour=flavour) as store:
        store.put("bucket/k", DATA)
        told = spoiled(store, Expired())
        assert (told.status, b"ExpiredToken" in told.body) == (status, flavour == S3())


@pytest.mark.parametrize("after", [0, 1, 1000, 65_537, len(DATA) - 1])
def test_a_connection_breaks_after_so_many_bytes(store: ObjectStore, after: int) -> None:
    """The client gets exactly those first, then an error; or an end before the body's."""
    told = spoiled(store, Reset(after))
    assert (told.status, told.body, told.broken) == (200, DATA[:after], ConnectionResetError)
    told = spoiled(store, Short(after))
    assert (told.status, told.body, told.broken) == (200, DATA[:after], IncompleteRead)
    assert told.headers["content-length"] == str(len(DATA))
    assert [request.sent for request in store.requests] == [after, len(DATA), after, len(DATA)]


def test_an_answer_is_lost(store: ObjectStore) -> None:
    """But what was asked is done: a client that creates again hears 412 from its own object."""
    store.faults = Faults(Fault(Lost(), "PUT", only={1}))
    with pytest.raises((ConnectionResetError, RemoteDisconnected)):
        ask(store.url, "PUT", "/bucket/new", body=DATA, headers={"If-None-Match": "*"})
    assert ask(store.url, "PUT", "/bucket/new", body=DATA, headers={"If-None-Match": "*"}).status == 412
    assert ask(store.url, "GET", "/bucket/new").body == DATA
    assert [request.status for request in store.requests] == [0, 412, 200]


@pytest.mark.parametrize("after", [0, 1000])
def test_an_upload_breaks_before_its_end(store: ObjectStore, after: int) -> None:
    """Nothing is stored, and nothing is left of it."""
    store.faults = Faults(Fault(Reset(after), "PUT"))
    with pytest.raises((ConnectionError, RemoteDisconnected)):
        ask(store.url, "PUT", "/bucket/new", body=DATA)
    assert store.requests == [Request("PUT", "bucket/new", None, 0, 0, after, Reset(after))]
    assert ask(store.url, "GET", "/bucket/new").status == 404
    assert list(store.folder.scratch().parent.iterdir()) == []


@pytest.mark.parametrize("after", [0, 1000])
def test_a_stalled_answer_comes_late_and_whole(store: ObjectStore, after: int) -> None:
    """A client with less patience sees a timeout."""
    assert spoiled(store, Stall(0.05, after)).body == DATA
    store.faults = Faults(Fault(Stall(LIMIT_S, after)))
    place = urlsplit(store.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=0.05)
    connection.request("GET", TARGET)
    with pytest.raises(TimeoutError):
        connection.getresponse().read()
    connection.close()


def test_headers_lie(store: ObjectStore) -> None:
    """The body is right, the ETag or the range is not."""
    etag = ask(store.url, "GET", TARGET).etag
    told = spoiled(store, WrongETag())
    assert (told.body, told.etag != etag) == (DATA, True)
    told = spoiled(store, WrongRange(5), Range="bytes=10-19")
    assert (told.body, told.headers["content-range"]) == (DATA[10:20], f"bytes 15-24/{len(DATA)}")
    assert "content-range" not in spoiled(store, WrongRange(5)).headers


@pytest.mark.parametrize("extra", [1, 65_536, 100_000])
def test_a_body_is_longer_than_asked(store: ObjectStore, extra: int) -> None:
    """By zeros, which Content-Length counts."""
    told = spoiled(store, Longer(extra), Range="bytes=10-19")
    assert told.body == DATA[10:20] + bytes(extra)
    assert told.headers["content-length"] == str(10 + extra)
    assert told.headers["content-range"] == f"bytes 10-19/{len(DATA)}"


@pytest.mark.parametrize("what", [Endless(), Longer(1 << 50)])
def test_a_body_has_no_end(store: ObjectStore, what: What) -> None:
    """It goes on until the client hangs up, and the store is none the worse."""
    store.faults = Faults(Fault(what, only={1}))
    place = urlsplit(store.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=LIMIT_S)
    connection.request("GET", TARGET)
    response = connection.getresponse()
    assert response.getheader("Content-Length") == (None if what == Endless() else str((1 << 50) + len(DATA)))
    assert response.read(len(DATA)) == DATA
    for _ in range(100):
        assert response.read(100_000) == bytes(100_000)
    response.close()
    connection.close()
    assert ask(store.url, "GET", TARGET).body == DATA


def test_a_redirect_leads_to_another_host(store: ObjectStore) -> None:
    """This client does not follow it."""
    told = spoiled(store, Redirect("http://other.example/x", status=302))
    assert (told.status, told.headers["location"]) == (302, "http://other.example/x")


@pytest.mark.slow
def test_a_bomb_unpacks_to_what_it_says(store: ObjectStore) -> None:
    """A thousand times its size."""
    told = spoiled(store, Bomb(3 << 24))
    assert told.headers["content-encoding"] == "gzip"
    assert len(told.body) < 3 << 15
    assert gzip.decompress(told.body) == bytes(3 << 24)
    unpacking = zlib.decompressobj(wbits=31)
    assert unpacking.decompress(told.body, 1000) == bytes(1000)


def test_a_script_counts_what_matches(store: ObjectStore) -> None:
    """Operation, key and number; the first fault that fits is met; all count all that match."""
    for name in "kl":
        store.put(f"bucket/{name}", DATA)
    store.faults = Faults(
        Fault(Busy(503), "GET", "bucket/k", only={2}),
        Fault(Busy(429), "GET", only=range(3, 5)),
        Fault(Busy(500), "HEAD"),
    )
    asked = [("GET", "k"), ("GET", "l"), ("HEAD", "k"), ("GET", "k"), ("GET", "k"), ("GET", "l")]
    assert [ask(store.url, method, f"/bucket/{key}").status for method, key in asked] == [200, 200, 500, 503, 429, 200]


requests = st.builds(
    Asked,
    st.sampled_from(["GET", "PUT"]),
    st.sampled_from(["bucket/k", "bucket/l"]),
    st.sampled_from([None, "bytes=0-1", "bytes=2-3"]),
)


@pytest.mark.slow
@given(st.lists(requests, max_size=40), st.integers(0, 3), st.randoms())
def test_chance_does_not_depend_on_who_is_first(asked: list[Asked], seed: int, order: random.Random) -> None:
    """The same requests in another order meet the same faults; another seed has others."""

    def met(requests: list[Asked]) -> dict[Asked, list[What | None]]:
        faults = Faults(Fault(Busy(), share=0.3), Fault(Lost(), "PUT", share=0.5), seed=seed)
        found: dict[Asked, list[What | None]] = {}
        for request in requests:
            found.setdefault(request, []).append(faults.meet(request))
        return found

    mixed = asked.copy()
    order.shuffle(mixed)
    assert met(asked) == met(mixed)


def test_a_share_of_the_requests_meets_a_fault() -> None:
    """Golden: the same ones for ever, others with another seed. A request that is repeated meets it no more often."""
    faults, others = (Faults(Fault(Busy(), share=0.1), seed=seed) for seed in (7, 8))
    asked = [Asked("GET", f"bucket/{number}", None) for number in range(2000)]
    met = [number for number, each in enumerate(asked) if faults.meet(each)]
    again = [number for number in range(2000) if faults.meet(asked[0])]
    assert met[:6] == [6, 14, 15, 27, 28, 29]
    for found in (met, again):
        assert abs(len(found) - 200) < 4 * (2000 * 0.1 * 0.9) ** 0.5
    assert met != [number for number, each in enumerate(asked) if others.meet(each)]


@pytest.mark.slow
@given(st.lists(st.binary(max_size=9), max_size=5), st.integers(0, 50))
def test_an_answer_is_cut_at_any_byte(pieces: list[bytes], at: int) -> None:
    """What comes before and what comes after are together the whole."""
    before, after = split(tuple(pieces), at)
    joined = [b"".join(piece for piece in part if isinstance(piece, bytes)) for part in (before, after)]
    whole = b"".join(pieces)
    assert joined == [whole[:at], whole[at:]]
    assert answer(200, {}, *before).headers == {"Content-Length": str(len(joined[0]))}


def test_a_file_is_cut_at_any_byte() -> None:
    """By its range; no byte is read."""
    with open(__file__, "rb") as file:
        assert split((FilePiece(file, 10, 5),), 2) == ((FilePiece(file, 10, 2),), (FilePiece(file, 12, 3),))
        assert Answer(200, {}, (FilePiece(file, 10, 5), b"ab")).size == 7


def test_a_fault_also_meets_one_who_may_not_ask() -> None:
    """Faults come before credentials, as a busy store does not check them."""
    with ObjectStore(flavour=S3(Keys("a", "b")), faults=Faults(Fault(Busy(), only={1}))) as store:
        assert [ask(store.url, "GET", TARGET).status for _ in range(2)] == [503, 403]
